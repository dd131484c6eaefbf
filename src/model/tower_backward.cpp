// Legend: P patches, C the tower's hidden size, H heads, d head_dim, F intermediate, N tokens, M values of a token's
// patches, D the text model's hidden size, R an adapter's columns.
#include <cmath>

#include "model/patches.h"
#include "model/tower_parts.h"
#include "unsloth/model/vision_tower.h"
#include "unsloth/ops/norm.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/ops/range_attention.h"
#include "unsloth/ops/rope.h"
#include "unsloth/ops/rows.h"
#include "unsloth/ops/swiglu.h"
#include "unsloth/ops/vision.h"

namespace unsloth::model {
namespace {

std::vector<ops::AttentionRange> ranges_of(const std::vector<int32_t>& offsets) {
    std::vector<ops::AttentionRange> ranges;
    for (std::size_t i = 1; i < offsets.size(); ++i)
        ranges.push_back({offsets[i - 1], offsets[i], offsets[i - 1], offsets[i]});
    return ranges;
}

/// The way of some images back through the tower.
class SightBackward {
  public:
    SightBackward(ops::Context& ctx, const spec::VisionSpec& spec, const weights::VisionWeights& w,
                  const VisionBuffers& b, const SeenTogether& some, const weights::Parameters& parameters)
        : ctx_(ctx),
          spec_(spec),
          w_(w),
          b_(b),
          back_(b.backward),
          parameters_(parameters),
          of_(spec, some.images),
          patches_(of_.count),
          feature_(some.feature),
          windows_(ranges_of(of_.order.windows)),
          whole_(ranges_of(of_.images)),
          g_PC_(rows(back_.g, spec.hidden_size)) {
        make_patch_rotation(ctx, spec, w, b, of_);
    }

    void pass() {
        const int64_t tokens = spec_.tokens_of(patches_);
        g_PC_.zero_();
        merge(w_.merger, spec_.hidden_size, spec_.depth, b_.features.narrow(0, feature_, tokens));
        for (int64_t layer = spec_.depth - 1; layer >= 0; --layer) {
            for (std::size_t i = 0; i < spec_.deepstack.size(); ++i)
                if (spec_.deepstack[i] == layer)
                    merge(w_.deepstack[i], spec_.merged_size(), layer + 1, b_.deepstack[i].narrow(0, feature_, tokens));
            block(layer);
        }
    }

  private:
    at::Tensor rows(const at::Tensor& flat, int64_t columns) const { return matrix_of(flat, patches_, columns); }

    void normalise(const weights::VisionNorm& w, const at::Tensor& x, const at::Tensor& y, const at::Tensor& rstd) {
        if (spec_.rms_norm)
            ops::rms_norm_forward(ctx_, x, w.weight, spec_.norm_eps, y, rstd.narrow(0, 0, x.size(0)));
        else
            ops::layer_norm_forward(ctx_, x, w.weight, w.bias, spec_.norm_eps, y);
    }
    /// dx +=
    void normalise_backward(const weights::VisionNorm& w, const at::Tensor& dy, const at::Tensor& x,
                            const at::Tensor& rstd, const at::Tensor& dx) {
        if (spec_.rms_norm)
            ops::rms_norm_backward(ctx_, dy, x, w.weight, rstd.narrow(0, 0, x.size(0)), dx, {});
        else
            ops::layer_norm_backward(ctx_, dy, x, w.weight, spec_.norm_eps, dx);
    }

    void multiply(const weights::VisionLinear& w, const at::Tensor& x, const at::Tensor& out, bool adds = false) {
        model::multiply(ctx_, w, x, out, adds, b_.u);
    }
    /// The gradients of the adapters, and dx = that of the input; undefined: it is not wanted.
    void multiply_backward(const weights::VisionLinear& w, const at::Tensor& dy, const at::Tensor& x,
                           const at::Tensor& dx) {
        if (dx.defined()) ops::gemm(ctx_, {.a = dy, .b = w.weight_NK, .out = dx, .label = "gemm dx tower"});
        for (const weights::VisionAdapter& adapter : w.adapters) {
            const int64_t n = adapter.b_NR.size(0), r = adapter.a_RK.size(0), k = adapter.a_RK.size(1);
            const at::Tensor dy_Pn = dy.narrow(1, adapter.n_begin, n), x_PK = x.narrow(1, 0, k);
            const at::Tensor u_PR = adapter_values(ctx_, adapter, x, b_.u), v_PR = matrix_of(b_.v, x.size(0), r);
            const std::vector<ops::LoraSlice> slice = {{.n_begin = 0,
                                                        .n = n,
                                                        .r_begin = 0,
                                                        .r = r,
                                                        .rank = adapter.a->shape[0],
                                                        .scale = adapter.scale,
                                                        .da = parameters_.gradient(*adapter.a),
                                                        .db = parameters_.gradient(*adapter.b)}};
            ops::lora_dy(ctx_, {.dy_TN = dy_Pn,
                                .b_NR = adapter.b_NR,
                                .u_TR = u_PR,
                                .v_TR = v_PR,
                                .slices = slice,
                                .label = "lora dyB+dB tower",
                                .label_v = "lora dyB tower",
                                .label_db = "lora dB tower"});
            ops::lora_da(ctx_, {.v_TR = v_PR, .x_TK = x_PK, .slices = slice, .label = "lora dA tower"});
            if (dx.defined())
                ops::gemm(
                    ctx_,
                    {.a = v_PR, .b = adapter.a_RK, .out = dx.narrow(1, 0, k), .beta = 1.0, .label = "lora vA tower"});
        }
    }

    const std::vector<ops::AttentionRange>& ranges(int64_t layer) const {
        return spec_.attends_in_windows(layer) ? windows_ : whole_;
    }
    ops::AttentionShape attention() const {
        return {.heads = spec_.num_heads,
                .kv_heads = spec_.num_heads,
                .head_dim = spec_.head_dim(),
                .scale = 1.0 / std::sqrt(static_cast<double>(spec_.head_dim()))};
    }
    void rotate(const at::Tensor& qkv_PN, bool backward) {
        const int64_t pairs = spec_.head_dim() / 2;
        ops::rope_apply(ctx_, heads_of(qkv_PN, 0, 2 * spec_.num_heads, spec_.head_dim()), rows(b_.cos, pairs),
                        rows(b_.sin, pairs), backward);
    }
    at::Tensor lse() const {
        return back_.lse.narrow(0, 0, spec_.num_heads * patches_).view({spec_.num_heads, patches_});
    }

    /// A block forward once more, up to its MLP's inner values, and back.
    void block(int64_t layer) {
        const weights::VisionBlock& w = w_.blocks[static_cast<std::size_t>(layer)];
        const int64_t c = spec_.hidden_size, heads = spec_.num_heads, d = spec_.head_dim();
        const at::Tensor x_PC = block_input(spec_, b_, layer, feature_, patches_);
        const at::Tensor h_PC = rows(b_.h, c), qkv_PN = rows(back_.qkv, 3 * c), out_PC = rows(back_.out, c),
                         middle_PC = rows(back_.middle, c);
        normalise(w.norm1, x_PC, h_PC, back_.rstd1);
        multiply(w.qkv, h_PC, qkv_PN);
        rotate(qkv_PN, /*backward=*/false);
        const auto part = [&](const at::Tensor& of_PN, int64_t number) {
            return heads_of(of_PN, number * c, heads, d);
        };
        ops::range_attention_forward(ctx_, attention(), ranges(layer), part(qkv_PN, 0), part(qkv_PN, 1),
                                     part(qkv_PN, 2), part(out_PC, 0), lse());
        ops::copy_2d(ctx_, x_PC, middle_PC);
        multiply(w.proj, out_PC, middle_PC, /*adds=*/true);
        mlp(w, middle_PC);
        const at::Tensor dout_PC = rows(back_.dh, c), dqkv_PN = rows(back_.dqkv, 3 * c);
        multiply_backward(w.proj, g_PC_, out_PC, dout_PC);
        ops::range_attention_backward(ctx_, attention(), ranges(layer), part(dout_PC, 0), part(qkv_PN, 0),
                                      part(qkv_PN, 1), part(qkv_PN, 2), part(out_PC, 0), lse(), part(dqkv_PN, 0),
                                      part(dqkv_PN, 1), part(dqkv_PN, 2));
        rotate(dqkv_PN, /*backward=*/true);
        if (layer == 0) return multiply_backward(w.qkv, dqkv_PN, h_PC, {});  // what is below is frozen
        multiply_backward(w.qkv, dqkv_PN, h_PC, dout_PC);
        normalise_backward(w.norm1, dout_PC, x_PC, back_.rstd1, g_PC_);
    }

    /// A block's MLP, from what enters it; its part of the gradient is added.
    void mlp(const weights::VisionBlock& w, const at::Tensor& x_PC) {
        const int64_t c = spec_.hidden_size, f = spec_.inner_size();
        const at::Tensor h_PC = rows(back_.normed2, c), inner = rows(b_.wide, (spec_.gated_mlp ? 2 : 1) * f),
                         act_PF = rows(back_.act, f), dact_PF = rows(back_.dact, f), dh_PC = rows(back_.dh, c);
        normalise(w.norm2, x_PC, h_PC, b_.rstd);
        multiply(w.in, h_PC, inner);
        if (spec_.gated_mlp)
            ops::swiglu_forward(ctx_, inner, act_PF);
        else
            activate(inner, ops::Gelu::tanh, act_PF);
        multiply_backward(w.out, g_PC_, act_PF, dact_PF);
        if (spec_.gated_mlp) {
            ops::swiglu_backward(ctx_, dact_PF, inner);
            multiply_backward(w.in, inner, h_PC, dh_PC);
        } else {
            ops::gelu_backward(ctx_, inner, ops::Gelu::tanh, dact_PF);
            multiply_backward(w.in, dact_PF, h_PC, dh_PC);
        }
        normalise_backward(w.norm2, dh_PC, x_PC, b_.rstd, g_PC_);
    }
    void activate(const at::Tensor& x, ops::Gelu form, const at::Tensor& out) {
        ops::copy_2d(ctx_, x, out);
        ops::gelu(ctx_, out, form);
    }

    /// Adds the gradient of what leaves the block before `block`, from that of the merger's tokens.
    void merge(const weights::VisionMerger& w, int64_t normed, int64_t block, const at::Tensor& dout_ND) {
        const int64_t tokens = dout_ND.size(0), merged = spec_.merged_size(), c = spec_.hidden_size,
                      count = patches_ * c / normed;
        const at::Tensor x = block_input(spec_, b_, block, feature_, patches_).view({count, normed});
        const auto of_tokens = [&](const at::Tensor& flat, int64_t columns) {
            return matrix_of(flat, tokens, columns);
        };
        const at::Tensor h_NM = of_tokens(b_.h, merged), inner_NM = of_tokens(b_.wide, merged),
                         act_NM = of_tokens(back_.act, merged), dact_NM = of_tokens(back_.dact, merged),
                         dh_NM = of_tokens(back_.dh, merged);
        normalise(w.norm, x, h_NM.view({count, normed}), b_.rstd);
        multiply(w.in, h_NM, inner_NM);
        activate(inner_NM, ops::Gelu::erf, act_NM);
        at::Tensor dy_ND = dout_ND;
        if (spec_.window > 0) {
            dy_ND = of_tokens(back_.dqkv, spec_.out_size);
            ops::gather_rows(ctx_, dout_ND, b_.tokens.narrow(0, 0, tokens), dy_ND);
        }
        multiply_backward(w.out, dy_ND, act_NM, dact_NM);
        ops::gelu_backward(ctx_, inner_NM, ops::Gelu::erf, dact_NM);
        multiply_backward(w.in, dact_NM, h_NM, dh_NM);
        normalise_backward(w.norm, dh_NM.view({count, normed}), x, b_.rstd, g_PC_.view({count, normed}));
    }

    ops::Context& ctx_;
    const spec::VisionSpec& spec_;
    const weights::VisionWeights& w_;
    const VisionBuffers& b_;
    const TowerBackward& back_;
    const weights::Parameters& parameters_;
    const Patches of_;
    const int64_t patches_, feature_;
    const std::vector<ops::AttentionRange> windows_, whole_;
    const at::Tensor g_PC_;
};

}  // namespace

void see_images_backward(ops::Context& ctx, const spec::VisionSpec& spec, const weights::VisionWeights& w,
                         const VisionBuffers& b, const std::vector<data::Image>& images,
                         const weights::Parameters& parameters) {
    const ops::Region region(ctx, "tower backward");
    for (const SeenTogether& some : seen_together(spec, b, images, /*together=*/true))
        SightBackward(ctx, spec, w, b, some, parameters).pass();
}

}  // namespace unsloth::model
