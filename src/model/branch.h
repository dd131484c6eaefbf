// How what attention and the MLP give comes onto the residual stream, and the gradient that comes back from it: as it
// is by the product itself, or normed and multiplied on its way.
#pragma once

#include "model/layer_parts.h"
#include "unsloth/ops/dora.h"
#include "unsloth/ops/norm.h"

namespace unsloth::model {

struct Branch {
    spec::TensorRole norm;
    Place place;        ///< of a norm that is the layer's only one there
    at::Tensor out_tD;  ///< before the norm; undefined without
    at::Tensor rstd_t;
};
inline Branch attention_branch(const LayerSaved& a) {
    return {spec::TensorRole::attention_out_norm, Place::input_norm, a.branch_o_tD, a.rstd_o_t};
}
inline Branch mlp_branch(const LayerSaved& a) {
    return {spec::TensorRole::mlp_out_norm, Place::post_norm, a.branch_down_tD, a.rstd_down_t};
}

/// What each token gets of it, fp32; undefined: all of it.
inline at::Tensor gate_of(const LayerContext& c, const Branch& branch) {
    if (!c.spec.crosses(c.layer())) return {};
    return branch.norm == spec::TensorRole::attention_out_norm ? c.scratch.attention_gate_T : c.scratch.mlp_gate_T;
}

/// sum_tD = stream_tD and the branch. multiply(out, residual): the product's outputs to `out`, with `residual` added,
/// which may be undefined.
template <class Multiply>
void onto_stream(const LayerContext& c, const weights::LayerWeights& w, const Branch& branch,
                 const at::Tensor& stream_tD, const at::Tensor& sum_tD, const Multiply& multiply) {
    const spec::ModelSpec& spec = c.spec;
    const at::Tensor gate_t = gate_of(c, branch);
    if (!spec.changes_branches() && !gate_t.defined()) return multiply(sum_tD, stream_tD);
    multiply(spec.norms_after() ? branch.out_tD : sum_tD, at::Tensor());
    if (spec.norms_after()) {
        const ops::Site site = spec.norms_before() ? ops::Site{} : norm_site(c, branch.place, Direction::forward);
        ops::rms_norm_forward(c.group.ctx, branch.out_tD, w.norm(branch.norm), spec.rms_norm_eps, sum_tD, branch.rstd_t,
                              site);
        observe(c, layer_norm_name(spec, branch.norm).data(), sum_tD);
    }
    if (gate_t.defined()) sum_tD.mul_(gate_t.unsqueeze(1));
    if (spec.residual_multiplier != 1.0) sum_tD.mul_(spec.residual_multiplier);
    sum_tD.add_(stream_tD);
}

/// The gradient of a product that comes onto the residual stream, with its R columns (of experts without): the stream's
/// own; or elsewhere, because the stream's continues, what the branch and DoRA's scale leave of it, and all
/// tensor-parallel ranks' rows.
inline at::Tensor product_gradient(const LayerContext& c, Group g, const weights::LayerWeights& w, const Branch& branch,
                                   const at::Tensor& z_tD) {
    ops::Context& ctx = c.group.ctx;
    const spec::ModelSpec& spec = c.spec;
    const int64_t hidden = spec.hidden_size, columns = hidden + (weights::is_of_experts(g) ? 0 : c.group.layout[g].r);
    const TensorParallel& tp = c.group.tp;
    const bool scaled = scales_outputs(c.group);
    const at::Tensor gate_t = gate_of(c, branch);
    if (!scaled && !spec.changes_branches() && !gate_t.defined() && tp.alone())
        return c.scratch.g_full.narrow(1, 0, columns);
    at::Tensor own_tD = tp.own(c.scratch.dz_full).narrow(1, 0, hidden);
    at::Tensor g_tD = c.scratch.g_full.narrow(1, 0, hidden);
    if (gate_t.defined()) g_tD = at::mul_out(own_tD, g_tD, gate_t.unsqueeze(1));
    if (spec.residual_multiplier != 1.0) g_tD = at::mul_out(own_tD, g_tD, at::scalar_tensor(spec.residual_multiplier));
    if (spec.norms_after()) {
        ops::head_norm_backward(ctx, g_tD.unsqueeze(1), branch.out_tD.unsqueeze(1), w.norm(branch.norm),
                                branch.rstd_t.unsqueeze(1), own_tD.unsqueeze(1), norm_gradient(c, branch.norm));
        g_tD = own_tD;
    }
    if (scaled)
        ops::dora_backward(ctx, g_tD, z_tD, w[g].scale, own_tD, magnitude_gradients(c.group, g));
    else if (!g_tD.is_same(own_tD))
        ops::copy_2d(ctx, g_tD, own_tD);
    tp.gather(ctx, c.scratch.dz_full, "the gradient of the residual stream");
    return c.scratch.dz_full.narrow(1, 0, columns);
}

}  // namespace unsloth::model
