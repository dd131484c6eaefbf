#include "ops/checks.h"
#include "unsloth/ops/gated_delta.h"
#include "unsloth/ops/profiler.h"
#ifdef UNSLOTH_CUDA
#include "ops/gated_delta_cuda.h"
#endif

namespace unsloth::ops {
namespace {

void check_net(const Context& ctx, const Segments& segments, const DeltaNet& net, const at::Tensor& y_THv) {
    const int64_t tokens = segments.q_offsets.back(), heads = net.shape.value_heads, v = net.shape.value_dim;
    UNSLOTH_CHECK(net.inputs.defined() == net.states.defined() && net.inputs.rows == net.states.rows &&
                      !net.inputs.read_only && !net.states.read_only,
                  "a net keeps inputs and states of the same places");
    check_compute_tensor(ctx, "x", net.in.mixed_TC, {tokens, net.shape.channels()});
    check_contiguous(ctx, "taps", net.taps_Cw, {net.shape.channels(), net.taps_Cw.size(-1)}, at::kFloat);
    check_contiguous(ctx, "norm", net.norm_v, {v}, at::kFloat);
    check_tensor(ctx, "z", net.z_THv, {tokens, heads, v}, net.in.mixed_TC.scalar_type());
    check_tensor(ctx, "y", y_THv, {tokens, heads, v}, net.in.mixed_TC.scalar_type());
}

}  // namespace

void delta_net_forward(Context& ctx, const Segments& segments, const DeltaNet& net, const at::Tensor& convolved_TC,
                       const at::Tensor& o_THv, const at::Tensor& y_THv) {
    const Region region(ctx, "delta_net");
    check_net(ctx, segments, net, y_THv);
#ifdef UNSLOTH_CUDA
    if (ctx.is_cuda() && delta_net_forward_cuda(ctx, segments, net, y_THv)) return;
#endif
    short_conv_forward(ctx, segments, net.in.mixed_TC, net.taps_Cw, convolved_TC, net.inputs);
    DeltaInputs in = net.in;
    in.mixed_TC = convolved_TC;
    delta_rule_forward(ctx, net.shape, segments, in, o_THv, net.states);
    gated_norm_forward(ctx, o_THv, net.z_THv, net.norm_v, net.eps, y_THv);
}

}  // namespace unsloth::ops
