#include "unsloth/ops/dora.h"

#include "ops/checks.h"
#include "ops/dora_cpu.h"
#include "unsloth/ops/profiler.h"
#ifdef UNSLOTH_CUDA
#include "kernels/dora.h"
#include "ops/kernel_arguments.h"
#endif

namespace unsloth::ops {

namespace {

constexpr std::size_t most_gradients = 4;
#ifdef UNSLOTH_CUDA
static_assert(most_gradients == kernels::most_magnitude_slices);
#endif

void check_scale(const Context& ctx, const OutputScale& scale, int64_t columns, at::ScalarType type) {
    check_contiguous(ctx, "scale", scale.scale_N, {columns}, at::kFloat);
    check_contiguous(ctx, "inverse", scale.inverse_N, {columns}, at::kFloat);
    if (scale.bias_N.defined()) check_contiguous(ctx, "bias", scale.bias_N, {columns}, type);
}

void check_gradients(const Context& ctx, const std::vector<MagnitudeGradient>& gradients, int64_t columns) {
    UNSLOTH_CHECK(gradients.size() <= most_gradients, gradients.size(), " runs of magnitudes in a group");
    for (const MagnitudeGradient& gradient : gradients) {
        check_contiguous(ctx, "magnitude's gradient", gradient.out_n, {gradient.out_n.numel()}, at::kFloat);
        UNSLOTH_CHECK(gradient.n_begin >= 0 && gradient.n_begin + gradient.out_n.numel() <= columns,
                      "magnitudes of columns ", gradient.n_begin, " to ", gradient.n_begin + gradient.out_n.numel(),
                      " of ", columns);
    }
}

#ifdef UNSLOTH_CUDA

const void* bias_of(const OutputScale& scale) {
    return scale.bias_N.defined() ? scale.bias_N.const_data_ptr() : nullptr;
}

kernels::MagnitudeSums sums_of(const Context& ctx, const OutputScale& scale, int64_t tokens,
                               const std::vector<MagnitudeGradient>& gradients) {
    const int64_t bytes = dora_backward_workspace(ctx.device(), tokens, scale.scale_N.numel());
    UNSLOTH_CHECK(tokens == 0 || (ctx.workspace.defined() && ctx.workspace.numel() >= bytes),
                  "the workspace is smaller than ", bytes, " bytes");
    kernels::MagnitudeSums sums;
    sums.inverse = scale.inverse_N.const_data_ptr<float>();
    if (tokens > 0) sums.partial = static_cast<float*>(ctx.workspace.mutable_data_ptr());
    for (const MagnitudeGradient& gradient : gradients)
        sums.slice[sums.slices++] = {gradient.n_begin, gradient.out_n.numel(),
                                     gradient.out_n.mutable_data_ptr<float>()};
    return sums;
}

#endif

}  // namespace

void row_square_sums(Context& ctx, const at::Tensor& w_NK, const at::Tensor& out_N) {
    const Region region(ctx, "row_square_sums");
    check_matrix(ctx, "w", w_NK);
    check_contiguous(ctx, "out", out_N, {w_NK.size(0)}, at::kFloat);
    if (!ctx.is_cuda()) return cpu::row_square_sums(w_NK, out_N);
#ifdef UNSLOTH_CUDA
    kernels::row_square_sums(
        {w_NK.size(0), w_NK.size(1), dtype_of(w_NK), source_of(w_NK), out_N.mutable_data_ptr<float>()}, stream_of(ctx));
#endif
}

void dora_norms(Context& ctx, const DoraNorms& args) {
    const Region region(ctx, "dora_norms");
    check_matrix(ctx, "b", args.b_Nr);
    const int64_t rows = args.b_Nr.size(0), rank = args.b_Nr.size(1);
    check_matrix(ctx, "wa", args.wa_rN, rank, rows, at::kFloat);
    check_matrix(ctx, "gram", args.gram_rr, rank, rank, at::kFloat);
    check_contiguous(ctx, "base", args.base_N, {rows}, at::kFloat);
    check_contiguous(ctx, "magnitude", args.magnitude_N, {rows}, at::kFloat);
    check_contiguous(ctx, "scale", args.scale_N, {rows}, at::kFloat);
    check_contiguous(ctx, "inverse", args.inverse_N, {rows}, at::kFloat);
    if (!ctx.is_cuda()) return cpu::dora_norms(args);
#ifdef UNSLOTH_CUDA
    kernels::DoraNorms params;
    params.rows = rows;
    params.rank = rank;
    params.type = dtype_of(args.b_Nr);
    params.base = args.base_N.const_data_ptr<float>();
    params.b = source_of(args.b_Nr);
    params.wa = source_of(args.wa_rN);
    params.gram = source_of(args.gram_rr);
    params.magnitude = args.magnitude_N.const_data_ptr<float>();
    params.scale = args.scale_N.mutable_data_ptr<float>();
    params.inverse = args.inverse_N.mutable_data_ptr<float>();
    kernels::dora_norms(params, stream_of(ctx));
#endif
}

void dora_forward(Context& ctx, const at::Tensor& z_TN, const OutputScale& scale, const at::Tensor& residual_TN,
                  const at::Tensor& y_TN) {
    const Region region(ctx, "dora_forward");
    check_matrix(ctx, "z", z_TN);
    check_tensor(ctx, "y", y_TN, z_TN.sizes(), z_TN.scalar_type());
    check_scale(ctx, scale, z_TN.size(1), z_TN.scalar_type());
    if (residual_TN.defined()) check_tensor(ctx, "residual", residual_TN, z_TN.sizes(), z_TN.scalar_type());
    if (!ctx.is_cuda()) return cpu::dora_forward(z_TN, scale, residual_TN, y_TN);
#ifdef UNSLOTH_CUDA
    kernels::DoraForward params;
    params.tokens = z_TN.size(0);
    params.columns = z_TN.size(1);
    params.type = dtype_of(z_TN);
    params.z = source_of(z_TN);
    params.scale = scale.scale_N.const_data_ptr<float>();
    params.bias = bias_of(scale);
    if (residual_TN.defined()) params.residual = source_of(residual_TN);
    params.y = target_of(y_TN);
    kernels::dora_forward(params, stream_of(ctx));
#endif
}

void dora_backward(Context& ctx, const at::Tensor& dy_TN, const at::Tensor& z_TN, const OutputScale& scale,
                   const at::Tensor& dz_TN, const std::vector<MagnitudeGradient>& gradients) {
    const Region region(ctx, "dora_backward");
    check_matrix(ctx, "dy", dy_TN);
    check_tensor(ctx, "z", z_TN, dy_TN.sizes(), dy_TN.scalar_type());
    check_tensor(ctx, "dz", dz_TN, dy_TN.sizes(), dy_TN.scalar_type());
    check_scale(ctx, scale, dy_TN.size(1), dy_TN.scalar_type());
    check_gradients(ctx, gradients, dy_TN.size(1));
    if (!ctx.is_cuda()) return cpu::dora_backward(dy_TN, z_TN, scale, dz_TN, gradients);
#ifdef UNSLOTH_CUDA
    kernels::DoraBackward params;
    params.tokens = dy_TN.size(0);
    params.columns = dy_TN.size(1);
    params.type = dtype_of(dy_TN);
    params.dy = source_of(dy_TN);
    params.z = source_of(z_TN);
    params.scale = scale.scale_N.const_data_ptr<float>();
    params.dz = target_of(dz_TN);
    params.sums = sums_of(ctx, scale, params.tokens, gradients);
    kernels::dora_backward(params, stream_of(ctx));
#endif
}

void dora_swiglu_forward(Context& ctx, const at::Tensor& z_T2F, const OutputScale& scale, const at::Tensor& act_TF,
                         spec::GateActivation activation) {
    const Region region(ctx, "dora_swiglu");
    check_matrix(ctx, "act", act_TF);
    check_tensor(ctx, "z", z_T2F, {act_TF.size(0), 2 * act_TF.size(1)}, act_TF.scalar_type());
    check_scale(ctx, scale, z_T2F.size(1), act_TF.scalar_type());
    if (!ctx.is_cuda()) return cpu::dora_swiglu_forward(z_T2F, scale, act_TF, activation);
#ifdef UNSLOTH_CUDA
    kernels::DoraSwigluForward params;
    params.activation = activation;
    params.tokens = act_TF.size(0);
    params.columns = act_TF.size(1);
    params.type = dtype_of(act_TF);
    params.z = source_of(z_T2F);
    params.scale = scale.scale_N.const_data_ptr<float>();
    params.bias = bias_of(scale);
    params.act = target_of(act_TF);
    kernels::dora_swiglu_forward(params, stream_of(ctx));
#endif
}

void dora_swiglu_backward(Context& ctx, const at::Tensor& dact_TF, const at::Tensor& z_T2F, const OutputScale& scale,
                          const at::Tensor& act_TF, const std::vector<MagnitudeGradient>& gradients,
                          spec::GateActivation activation) {
    const Region region(ctx, "dora_swiglu_backward");
    check_matrix(ctx, "dact", dact_TF);
    check_tensor(ctx, "act", act_TF, dact_TF.sizes(), dact_TF.scalar_type());
    check_tensor(ctx, "z", z_T2F, {dact_TF.size(0), 2 * dact_TF.size(1)}, dact_TF.scalar_type());
    check_scale(ctx, scale, z_T2F.size(1), dact_TF.scalar_type());
    check_gradients(ctx, gradients, z_T2F.size(1));
    if (!ctx.is_cuda()) return cpu::dora_swiglu_backward(dact_TF, z_T2F, scale, act_TF, gradients, activation);
#ifdef UNSLOTH_CUDA
    kernels::DoraSwigluBackward params;
    params.activation = activation;
    params.tokens = dact_TF.size(0);
    params.columns = dact_TF.size(1);
    params.type = dtype_of(dact_TF);
    params.dact = source_of(dact_TF);
    params.z = target_of(z_T2F);
    params.scale = scale.scale_N.const_data_ptr<float>();
    params.bias = bias_of(scale);
    params.act = target_of(act_TF);
    params.sums = sums_of(ctx, scale, params.tokens, gradients);
    kernels::dora_swiglu_backward(params, stream_of(ctx));
#endif
}

int64_t dora_backward_workspace(at::Device device, int64_t tokens, int64_t columns) {
#ifdef UNSLOTH_CUDA
    if (device.is_cuda()) return kernels::dora_chunks(tokens) * columns * static_cast<int64_t>(sizeof(float));
#endif
    static_cast<void>(device), static_cast<void>(tokens), static_cast<void>(columns);
    return 0;
}

}  // namespace unsloth::ops
