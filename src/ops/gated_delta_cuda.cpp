#ifdef UNSLOTH_CUDA
#include "ops/gated_delta_cuda.h"

#include "kernels/common/launch.h"
#include "kernels/gated_delta.h"
#include "ops/checks.h"
#include "ops/kernel_arguments.h"

namespace unsloth::ops {
namespace {

kernels::DeltaSegments segments_on_device(const Segments& segments) {
    return {segments.q_offsets_device.const_data_ptr<int32_t>(), static_cast<int>(segments.count()),
            segments.q_offsets.back()};
}
kernels::DeltaHeads heads_of(const DeltaShape& shape) {
    return {static_cast<int>(shape.key_heads), static_cast<int>(shape.value_heads), static_cast<int>(shape.key_dim),
            static_cast<int>(shape.value_dim)};
}
kernels::DeltaRule rule_of(const DeltaShape& shape, const Segments& segments, const DeltaInputs& in) {
    kernels::DeltaRule p;
    p.shape = heads_of(shape);
    p.segments = segments_on_device(segments);
    p.in = {dtype_of(in.mixed_TC),
            source_of(in.mixed_TC),
            source_of(in.b_TH),
            source_of(in.a_TH),
            in.a_log_H.const_data_ptr<float>(),
            in.dt_bias_H.const_data_ptr<float>()};
    return p;
}
kernels::ConstHeads source_rows(const at::Tensor& x_THv) {
    return {x_THv.const_data_ptr(), x_THv.stride(0), x_THv.stride(1)};
}
kernels::Heads target_rows(const at::Tensor& x_THv) {
    return {x_THv.mutable_data_ptr(), x_THv.stride(0), x_THv.stride(1)};
}
float* floats_of_gradient(const at::Tensor& x) {
    return x.defined() ? x.mutable_data_ptr<float>() : nullptr;
}

/// `Kept`: of the kernels' states or of their convolution's inputs.
template <class Kept>
Kept kept_of(const KeptStates& kept) {
    if (!kept.defined()) return {};
    using Data = decltype(Kept::data);
    return {static_cast<Data>(kept.data.mutable_data_ptr()), kept.rows_S.const_data_ptr<int32_t>(),
            static_cast<int>(kept.places()), kept.read_only};
}

/// ctx.workspace, which must hold this much.
void* workspace_of(const Context& ctx, int64_t bytes, const char* what) {
    if (bytes == 0) return nullptr;
    UNSLOTH_CHECK(ctx.workspace.defined() && static_cast<int64_t>(ctx.workspace.nbytes()) >= bytes,
                  "ctx.workspace must hold ", bytes, " bytes for ", what);
    return ctx.workspace.mutable_data_ptr();
}

bool rows_allow_16_bytes(const at::Tensor& x) {
    return kernels::aligned_16(x.const_data_ptr(), {x.stride(0), x.dim() == 3 ? x.stride(1) : 0}, dtype_of(x));
}

kernels::ShortConv conv_of(const Segments& segments, const at::Tensor& x_TC, const at::Tensor& weight_Cw) {
    UNSLOTH_CHECK(weight_Cw.size(1) >= 1 && weight_Cw.size(1) <= kernels::most_conv_width, "a convolution of ",
                  weight_Cw.size(1), " taps");
    kernels::ShortConv p;
    p.segments = segments_on_device(segments);
    p.channels = x_TC.size(1);
    p.width = static_cast<int>(weight_Cw.size(1));
    p.type = dtype_of(x_TC);
    p.x = source_of(x_TC);
    p.weight = weight_Cw.const_data_ptr<float>();
    return p;
}

kernels::GatedNorm norm_of(const at::Tensor& x_THv, const at::Tensor& z_THv, const at::Tensor& weight_v, double eps) {
    kernels::GatedNorm p;
    p.tokens = x_THv.size(0);
    p.heads = x_THv.size(1);
    p.columns = x_THv.size(2);
    p.type = dtype_of(x_THv);
    p.x = source_rows(x_THv);
    p.z = source_rows(z_THv);
    p.weight = weight_v.const_data_ptr<float>();
    p.eps = static_cast<float>(eps);
    return p;
}

kernels::SigmoidGate gate_of(const at::Tensor& x_THd, const at::Tensor& gate_THd) {
    kernels::SigmoidGate p;
    p.tokens = x_THd.size(0);
    p.heads = x_THd.size(1);
    p.columns = x_THd.size(2);
    p.type = dtype_of(x_THd);
    p.x = source_rows(x_THd);
    p.gate = source_rows(gate_THd);
    return p;
}

}  // namespace

void short_conv_forward_cuda(const Context& ctx, const Segments& segments, const at::Tensor& x_TC,
                             const at::Tensor& weight_Cw, const at::Tensor& y_TC, const KeptStates& kept) {
    kernels::ShortConv p = conv_of(segments, x_TC, weight_Cw);
    p.y = target_of(y_TC);
    p.kept = kept_of<kernels::ConvKept>(kept);
    kernels::short_conv_forward(p, stream_of(ctx));
}

void short_conv_backward_cuda(const Context& ctx, const Segments& segments, const at::Tensor& dy_TC,
                              const at::Tensor& x_TC, const at::Tensor& weight_Cw, const at::Tensor& dx_TC,
                              const at::Tensor& dweight_Cw, const KeptStates& kept, const at::Tensor& dkept_NwC) {
    kernels::ShortConv p = conv_of(segments, x_TC, weight_Cw);
    p.dy = source_of(dy_TC);
    p.dx = target_of(dx_TC);
    p.dweight = floats_of_gradient(dweight_Cw);
    p.kept = kept_of<kernels::ConvKept>(kept);
    p.dkept = kept.defined() ? dkept_NwC.mutable_data_ptr() : nullptr;
    kernels::short_conv_backward(p, stream_of(ctx));
}

int64_t delta_workspace_cuda(const DeltaShape& shape, at::ScalarType dtype, int64_t tokens, int64_t segments,
                             bool backward, bool aligned) {
    const kernels::DeltaHeads heads = heads_of(shape);
    if (aligned && kernels::delta_chunked_serves(heads, dtype_of(dtype)))
        return kernels::delta_chunked_scratch_bytes(heads, tokens, segments);
    return backward ? kernels::delta_recurrent_scratch_bytes(heads, tokens, segments) : 0;
}

void delta_forward_cuda(const Context& ctx, const DeltaShape& shape, const Segments& segments, const DeltaInputs& in,
                        const at::Tensor& o_THv, const KeptStates& kept, const DeltaTurns& turns) {
    kernels::DeltaRule p = rule_of(shape, segments, in);
    if (p.segments.tokens == 0) return;
    p.o = target_rows(o_THv);
    p.kept = kept_of<kernels::DeltaKept>(kept);
    const bool kernel_sizes = shape.key_dim == 128 && shape.value_dim == 128,
               decodes = kept.defined() && !kept.read_only && turns.count == 1;
    if (kernel_sizes && decodes && p.segments.tokens == segments.count())
        return kernels::delta_decode(p, stream_of(ctx));
    const bool chunked = kernels::delta_chunked_serves(p.shape, p.in.type) && rows_allow_16_bytes(in.mixed_TC) &&
                         rows_allow_16_bytes(o_THv);
    if (chunked) {
        const int64_t bytes = kernels::delta_chunked_scratch_bytes(p.shape, p.segments.tokens, p.segments.count);
        kernels::delta_chunked_place(p, workspace_of(ctx, bytes, "the delta rule"), nullptr);
        kernels::delta_prepare(p, stream_of(ctx));
    }
    for (int turn = 0; turn < turns.count; ++turn) {
        turns.begin(turn);
        p.turn = {turn, turns.count};
        (chunked ? kernels::delta_scan : kernels::delta_recurrent_forward)(p, stream_of(ctx));
    }
}

void delta_backward_cuda(const Context& ctx, const DeltaShape& shape, const Segments& segments, const DeltaInputs& in,
                         const at::Tensor& do_THv, const at::Tensor& states, const DeltaGradients& out,
                         const DeltaResumed& resumed) {
    kernels::DeltaRule p = rule_of(shape, segments, in);
    if (p.segments.tokens == 0) return;
    const cudaStream_t stream = stream_of(ctx);
    p.dout = source_rows(do_THv);
    p.out = {target_of(out.mixed_TC), target_of(out.b_TH), target_of(out.a_TH), floats_of_gradient(out.a_log_H),
             floats_of_gradient(out.dt_bias_H)};
    const bool aligned =
        rows_allow_16_bytes(in.mixed_TC) && rows_allow_16_bytes(do_THv) && rows_allow_16_bytes(out.mixed_TC);
    const int64_t bytes = delta_workspace_cuda(shape, in.mixed_TC.scalar_type(), p.segments.tokens, p.segments.count,
                                               /*backward=*/true, aligned);
    void* const workspace = workspace_of(ctx, bytes, "the delta rule's gradient");
    p.kept = kept_of<kernels::DeltaKept>(resumed.kept);
    p.dkept = kept_of<kernels::DeltaKept>(resumed.dkept);
    const bool chunked = aligned && kernels::delta_chunked_serves(p.shape, p.in.type);
    (chunked ? kernels::delta_chunked_place : kernels::delta_recurrent_place)(p, workspace, states.mutable_data_ptr());
    if (chunked) {
        kernels::delta_prepare(p, stream);
        kernels::delta_scan(p, stream);  // of all turns: their first states are known
    }
    for (int turn = resumed.turns.count - 1; turn >= 0; --turn) {
        resumed.turns.begin(turn);
        p.turn = {turn, resumed.turns.count};
        (chunked ? kernels::delta_scan_back : kernels::delta_recurrent_backward)(p, stream);
    }
    if (chunked) kernels::delta_gradient(p, stream);
    kernels::delta_add_over_tokens(p, stream);
}

void gated_norm_forward_cuda(const Context& ctx, const at::Tensor& x_THv, const at::Tensor& z_THv,
                             const at::Tensor& weight_v, double eps, const at::Tensor& y_THv) {
    kernels::GatedNorm p = norm_of(x_THv, z_THv, weight_v, eps);
    p.y = target_rows(y_THv);
    kernels::gated_norm_forward(p, stream_of(ctx));
}

int64_t gated_norm_workspace_cuda(int64_t columns) {
    return kernels::gated_norm_scratch_bytes(columns);
}

void gated_norm_backward_cuda(const Context& ctx, const at::Tensor& dy_THv, const at::Tensor& x_THv,
                              const at::Tensor& z_THv, const at::Tensor& weight_v, double eps, const at::Tensor& dx_THv,
                              const at::Tensor& dz_THv, const at::Tensor& dweight_v) {
    kernels::GatedNorm p = norm_of(x_THv, z_THv, weight_v, eps);
    p.dy = source_rows(dy_THv);
    p.dx = target_rows(dx_THv);
    p.dz = target_rows(dz_THv);
    if (dweight_v.defined()) {
        p.dweight = dweight_v.mutable_data_ptr<float>();
        p.partials = static_cast<float*>(
            workspace_of(ctx, kernels::gated_norm_scratch_bytes(p.columns), "the gated norm's weight"));
    }
    kernels::gated_norm_backward(p, stream_of(ctx));
}

bool delta_net_forward_cuda(const Context& ctx, const Segments& segments, const DeltaNet& net,
                            const at::Tensor& y_THv) {
    if (!net.states.defined() || segments.q_offsets.back() != segments.count()) return false;
    const kernels::DeltaRule rule = rule_of(net.shape, segments, net.in);
    kernels::DeltaStep p;
    p.shape = rule.shape;
    p.segments = rule.segments;
    p.in = rule.in;
    p.taps = net.taps_Cw.const_data_ptr<float>();
    p.width = static_cast<int>(net.taps_Cw.size(1));
    p.channels = net.shape.channels();
    p.inputs = kept_of<kernels::ConvKept>(net.inputs);
    p.states = kept_of<kernels::DeltaKept>(net.states);
    p.z = source_rows(net.z_THv);
    p.norm = net.norm_v.const_data_ptr<float>();
    p.eps = static_cast<float>(net.eps);
    p.y = target_rows(y_THv);
    if (!kernels::delta_step_serves(p)) return false;
    kernels::delta_step(p, stream_of(ctx));
    return true;
}

void sigmoid_gate_forward_cuda(const Context& ctx, const at::Tensor& x_THd, const at::Tensor& gate_THd,
                               const at::Tensor& y_THd) {
    kernels::SigmoidGate p = gate_of(x_THd, gate_THd);
    p.y = target_rows(y_THd);
    kernels::sigmoid_gate_forward(p, stream_of(ctx));
}

void sigmoid_gate_backward_cuda(const Context& ctx, const at::Tensor& dy_THd, const at::Tensor& x_THd,
                                const at::Tensor& gate_THd, const at::Tensor& dx_THd, const at::Tensor& dgate_THd) {
    kernels::SigmoidGate p = gate_of(x_THd, gate_THd);
    p.dy = source_rows(dy_THd);
    p.dx = target_rows(dx_THd);
    p.dgate = target_rows(dgate_THd);
    kernels::sigmoid_gate_backward(p, stream_of(ctx));
}

}  // namespace unsloth::ops
#endif
