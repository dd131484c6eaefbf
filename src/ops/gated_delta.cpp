#include "unsloth/ops/gated_delta.h"

#include <cmath>

#include "ops/checks.h"
#include "ops/cpu_rows.h"
#include "ops/delta_cpu.h"
#include "ops/gated_delta_parts.h"
#include "unsloth/ops/profiler.h"
#ifdef UNSLOTH_CUDA
#include "ops/gated_delta_cuda.h"
#endif

namespace unsloth::ops {
namespace {

void check_heads(const Context& ctx, const char* name, const at::Tensor& x, const at::Tensor& like) {
    check_tensor(ctx, name, x, like.sizes(), like.scalar_type());
}

/// The inverse root of the mean square of a head's values.
float inverse_rms(const float* x, int64_t n, double eps) {
    const float sum = cpu::lane_sum(n, [&](int64_t i) { return x[i] * x[i]; });
    return 1.0F / std::sqrt(sum / static_cast<float>(n) + static_cast<float>(eps));
}

void check_delta(const Context& ctx, const DeltaShape& shape, const Segments& segments, const DeltaInputs& in,
                 const at::Tensor& o_THv) {
    UNSLOTH_CHECK(shape.key_heads > 0 && shape.value_heads % shape.key_heads == 0, shape.value_heads,
                  " value heads for ", shape.key_heads, " key heads");
    check_rows_of_segments(segments, in.mixed_TC);
    const int64_t tokens = in.mixed_TC.size(0);
    check_compute_tensor(ctx, "mixed", in.mixed_TC, {tokens, shape.channels()});
    const at::ScalarType type = in.mixed_TC.scalar_type();
    check_tensor(ctx, "b", in.b_TH, {tokens, shape.value_heads}, type);
    check_tensor(ctx, "a", in.a_TH, {tokens, shape.value_heads}, type);
    check_contiguous(ctx, "a_log", in.a_log_H, {shape.value_heads}, at::kFloat);
    check_contiguous(ctx, "dt_bias", in.dt_bias_H, {shape.value_heads}, at::kFloat);
    check_tensor(ctx, "o", o_THv, {tokens, shape.value_heads, shape.value_dim}, type);
}

}  // namespace

void delta_rule_forward(Context& ctx, const DeltaShape& shape, const Segments& segments, const DeltaInputs& in,
                        const at::Tensor& o_THv, const KeptStates& kept, const DeltaTurns& turns) {
    const Region region(ctx, "delta_rule");
    check_delta(ctx, shape, segments, in, o_THv);
    check_kept(ctx, kept, segments, {shape.value_heads, shape.key_dim, shape.value_dim}, at::kFloat);
#ifdef UNSLOTH_CUDA
    if (ctx.is_cuda()) return delta_forward_cuda(ctx, shape, segments, in, o_THv, kept, turns);
#endif
    cpu::delta_forward(shape, segments, in, o_THv, kept, turns);
}

int64_t delta_rule_workspace([[maybe_unused]] const DeltaShape& shape, [[maybe_unused]] at::ScalarType dtype,
                             [[maybe_unused]] at::Device device, [[maybe_unused]] int64_t tokens,
                             [[maybe_unused]] int64_t segments, [[maybe_unused]] bool backward,
                             [[maybe_unused]] bool aligned) {
#ifdef UNSLOTH_CUDA
    if (device.is_cuda()) return delta_workspace_cuda(shape, dtype, tokens, segments, backward, aligned);
#endif
    return 0;
}

int64_t delta_state_elements(const DeltaShape& shape, int64_t tokens, int64_t segments) {
    const int64_t chunks = tokens / delta_chunk + segments;  // a segment's last one may be shorter
    return chunks * shape.value_heads * shape.key_dim * shape.value_dim;
}

void delta_rule_backward(Context& ctx, const DeltaShape& shape, const Segments& segments, const DeltaInputs& in,
                         const at::Tensor& do_THv, const at::Tensor& states, const DeltaGradients& out,
                         const DeltaResumed& resumed) {
    const Region region(ctx, "delta_rule_backward");
    check_delta(ctx, shape, segments, in, do_THv);
    const at::ScalarType type = in.mixed_TC.scalar_type();
    check_tensor(ctx, "dmixed", out.mixed_TC, in.mixed_TC.sizes(), type);
    check_tensor(ctx, "db", out.b_TH, in.b_TH.sizes(), type);
    check_tensor(ctx, "da", out.a_TH, in.a_TH.sizes(), type);
    UNSLOTH_CHECK(states.is_contiguous() && states.scalar_type() == at::kFloat, "states of ", states.scalar_type());
    UNSLOTH_CHECK(states.numel() >= delta_state_elements(shape, segments.q_offsets.back(), segments.count()),
                  states.numel(), " elements for states");
    for (const KeptStates& kept : {resumed.kept, resumed.dkept})
        check_kept(ctx, kept, segments, {shape.value_heads, shape.key_dim, shape.value_dim}, at::kFloat);
    UNSLOTH_CHECK(!resumed.kept.defined() || resumed.kept.read_only, "a backward pass leaves no states");
#ifdef UNSLOTH_CUDA
    if (ctx.is_cuda()) return delta_backward_cuda(ctx, shape, segments, in, do_THv, states, out, resumed);
#endif
    cpu::delta_backward(shape, segments, in, do_THv, states, out, resumed);
}

void gated_norm_forward(Context& ctx, const at::Tensor& x_THv, const at::Tensor& z_THv, const at::Tensor& weight_v,
                        double eps, const at::Tensor& y_THv) {
    const Region region(ctx, "gated_norm");
    check_compute_tensor(ctx, "x", x_THv, x_THv.sizes());
    check_heads(ctx, "z", z_THv, x_THv);
    check_heads(ctx, "y", y_THv, x_THv);
    const int64_t heads = x_THv.size(1), v = x_THv.size(2);
    check_contiguous(ctx, "weight", weight_v, {v}, at::kFloat);
#ifdef UNSLOTH_CUDA
    if (ctx.is_cuda()) return gated_norm_forward_cuda(ctx, x_THv, z_THv, weight_v, eps, y_THv);
#endif
    const cpu::Rows x_rows(x_THv), z_rows(z_THv), y_rows(y_THv);
    const float* const weight = weight_v.const_data_ptr<float>();
    at::parallel_for(0, x_THv.size(0), cpu::grain_size(8 * heads * v), [&](int64_t from, int64_t to) {
        std::vector<float> x_scratch(static_cast<size_t>(v)), z_scratch(x_scratch.size()), y(x_scratch.size());
        for (int64_t t = from; t < to; ++t)
            for (int64_t h = 0; h < heads; ++h) {
                const float *const x = x_rows.read(t, h, x_scratch.data()), *const z =
                                                                                z_rows.read(t, h, z_scratch.data());
                const float rstd = inverse_rms(x, v, eps);
                for (int64_t i = 0; i < v; ++i)
                    y[static_cast<size_t>(i)] = x[i] * rstd * weight[i] * z[i] * sigmoid(z[i]);
                y_rows.write(t, h, y.data());
            }
    });
}

void gated_norm_backward(Context& ctx, const at::Tensor& dy_THv, const at::Tensor& x_THv, const at::Tensor& z_THv,
                         const at::Tensor& weight_v, double eps, const at::Tensor& dx_THv, const at::Tensor& dz_THv,
                         const at::Tensor& dweight_v) {
    const Region region(ctx, "gated_norm_backward");
    check_compute_tensor(ctx, "x", x_THv, x_THv.sizes());
    check_heads(ctx, "dy", dy_THv, x_THv);
    check_heads(ctx, "z", z_THv, x_THv);
    check_heads(ctx, "dx", dx_THv, x_THv);
    check_heads(ctx, "dz", dz_THv, x_THv);
    const int64_t tokens = x_THv.size(0), heads = x_THv.size(1), v = x_THv.size(2);
    check_contiguous(ctx, "weight", weight_v, {v}, at::kFloat);
    if (dweight_v.defined()) check_contiguous(ctx, "dweight", dweight_v, {v}, at::kFloat);
#ifdef UNSLOTH_CUDA
    if (ctx.is_cuda())
        return gated_norm_backward_cuda(ctx, dy_THv, x_THv, z_THv, weight_v, eps, dx_THv, dz_THv, dweight_v);
#endif
    const cpu::Rows dy_rows(dy_THv), x_rows(x_THv), z_rows(z_THv), dx_rows(dx_THv), dz_rows(dz_THv);
    const float* const weight = weight_v.const_data_ptr<float>();
    const size_t size = static_cast<size_t>(v);
    std::vector<float> dweight(static_cast<size_t>(tokens) * size * (dweight_v.defined() ? 1 : 0));
    at::parallel_for(0, tokens, cpu::grain_size(8 * heads * v), [&](int64_t from, int64_t to) {
        std::vector<float> x_scratch(size), z_scratch(size), dy_scratch(size), dnormed(size), dx(size), dz(size);
        for (int64_t t = from; t < to; ++t)
            for (int64_t h = 0; h < heads; ++h) {
                const float *const x = x_rows.read(t, h, x_scratch.data()),
                                   *const z = z_rows.read(t, h, z_scratch.data()),
                                   *const dy = dy_rows.read(t, h, dy_scratch.data());
                const float rstd = inverse_rms(x, v, eps);
                for (int64_t i = 0; i < v; ++i) {
                    const auto at = static_cast<size_t>(i);
                    const float normed = x[i] * rstd, s = sigmoid(z[i]), gate = z[i] * s;
                    dnormed[at] = dy[i] * weight[i] * gate;
                    dz[at] = dy[i] * weight[i] * normed * s * (1.0F + z[i] * (1.0F - s));
                    if (!dweight.empty()) dweight[static_cast<size_t>(t) * size + at] += dy[i] * normed * gate;
                }
                const float along =
                    cpu::lane_sum(v, [&](int64_t i) { return dnormed[static_cast<size_t>(i)] * x[i]; }) * rstd * rstd /
                    static_cast<float>(v);
                for (int64_t i = 0; i < v; ++i)
                    dx[static_cast<size_t>(i)] = rstd * (dnormed[static_cast<size_t>(i)] - along * x[i]);
                dx_rows.write(t, h, dx.data());
                dz_rows.write(t, h, dz.data());
            }
    });
    for (size_t i = 0; i < dweight.size(); ++i) dweight_v.mutable_data_ptr<float>()[i % size] += dweight[i];
}

int64_t gated_norm_workspace([[maybe_unused]] at::Device device, [[maybe_unused]] int64_t columns) {
#ifdef UNSLOTH_CUDA
    if (device.is_cuda()) return gated_norm_workspace_cuda(columns);
#endif
    return 0;
}

void sigmoid_gate_forward(Context& ctx, const at::Tensor& x_THd, const at::Tensor& gate_THd, const at::Tensor& y_THd) {
    const Region region(ctx, "sigmoid_gate");
    check_compute_tensor(ctx, "x", x_THd, x_THd.sizes());
    check_heads(ctx, "gate", gate_THd, x_THd);
    check_heads(ctx, "y", y_THd, x_THd);
#ifdef UNSLOTH_CUDA
    if (ctx.is_cuda()) return sigmoid_gate_forward_cuda(ctx, x_THd, gate_THd, y_THd);
#endif
    const int64_t heads = x_THd.size(1), d = x_THd.size(2);
    const cpu::Rows x_rows(x_THd), gate_rows(gate_THd), y_rows(y_THd);
    at::parallel_for(0, x_THd.size(0), cpu::grain_size(8 * heads * d), [&](int64_t from, int64_t to) {
        std::vector<float> x_scratch(static_cast<size_t>(d)), gate_scratch(x_scratch.size()), y(x_scratch.size());
        for (int64_t t = from; t < to; ++t)
            for (int64_t h = 0; h < heads; ++h) {
                const float *const x = x_rows.read(t, h, x_scratch.data()), *const gate = gate_rows.read(
                                                                                t, h, gate_scratch.data());
                for (int64_t i = 0; i < d; ++i) y[static_cast<size_t>(i)] = x[i] * sigmoid(gate[i]);
                y_rows.write(t, h, y.data());
            }
    });
}

void sigmoid_gate_backward(Context& ctx, const at::Tensor& dy_THd, const at::Tensor& x_THd, const at::Tensor& gate_THd,
                           const at::Tensor& dx_THd, const at::Tensor& dgate_THd) {
    const Region region(ctx, "sigmoid_gate_backward");
    check_compute_tensor(ctx, "x", x_THd, x_THd.sizes());
    check_heads(ctx, "dy", dy_THd, x_THd);
    check_heads(ctx, "gate", gate_THd, x_THd);
    check_heads(ctx, "dx", dx_THd, x_THd);
    check_heads(ctx, "dgate", dgate_THd, x_THd);
#ifdef UNSLOTH_CUDA
    if (ctx.is_cuda()) return sigmoid_gate_backward_cuda(ctx, dy_THd, x_THd, gate_THd, dx_THd, dgate_THd);
#endif
    const int64_t heads = x_THd.size(1), d = x_THd.size(2);
    const cpu::Rows dy_rows(dy_THd), x_rows(x_THd), gate_rows(gate_THd), dx_rows(dx_THd), dgate_rows(dgate_THd);
    at::parallel_for(0, x_THd.size(0), cpu::grain_size(8 * heads * d), [&](int64_t from, int64_t to) {
        const auto size = static_cast<size_t>(d);
        std::vector<float> x_scratch(size), gate_scratch(size), dy_scratch(size), dx(size), dgate(size);
        for (int64_t t = from; t < to; ++t)
            for (int64_t h = 0; h < heads; ++h) {
                const float *const x = x_rows.read(t, h, x_scratch.data()),
                                   *const gate = gate_rows.read(t, h, gate_scratch.data()),
                                   *const dy = dy_rows.read(t, h, dy_scratch.data());
                for (int64_t i = 0; i < d; ++i) {
                    const float s = sigmoid(gate[i]);
                    dx[static_cast<size_t>(i)] = dy[i] * s;
                    dgate[static_cast<size_t>(i)] = dy[i] * x[i] * s * (1.0F - s);
                }
                dx_rows.write(t, h, dx.data());
                dgate_rows.write(t, h, dgate.data());
            }
    });
}

}  // namespace unsloth::ops
