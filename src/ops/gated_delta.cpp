#include "unsloth/ops/gated_delta.h"

#include <cmath>
#include <optional>

#include "ops/checks.h"
#include "ops/cpu_rows.h"
#include "ops/delta_cpu.h"
#include "unsloth/ops/profiler.h"
#ifdef UNSLOTH_CUDA
#include "ops/gated_delta_cuda.h"
#endif

namespace unsloth::ops {
namespace {

float sigmoid(float x) {
    return 1.0F / (1.0F + std::exp(-x));
}

/// `what` of a convolution's or the delta rule's rows fits the segments.
void check_segments(const Segments& segments, const at::Tensor& x_TC) {
    UNSLOTH_CHECK(segments.count() >= 0 && x_TC.dim() == 2 && segments.q_offsets.back() <= x_TC.size(0), "segments of ",
                  segments.q_offsets.empty() ? 0 : segments.q_offsets.back(), " tokens, rows of ", x_TC.sizes());
    UNSLOTH_CHECK(segments.q_offsets == segments.k_offsets, "segments with more keys than queries");
}

/// The segment of each token begins at this token.
std::vector<int32_t> starts(const Segments& segments) {
    std::vector<int32_t> of_token;
    for (size_t s = 0; s + 1 < segments.q_offsets.size(); ++s)
        of_token.resize(static_cast<size_t>(segments.q_offsets[s + 1]), segments.q_offsets[s]);
    return of_token;
}

/// The sums before SiLU of one channel's taps; `first`: of the token's segment; `sum`: of taps before that.
float convolve(const cpu::Rows& x, const float* taps, int64_t width, int64_t t, int64_t first, int64_t channel,
               float sum = 0) {
    float value = 0;
    for (int64_t tap = std::max<int64_t>(0, width - 1 - (t - first)); tap < width; ++tap) {
        x.read_into(t - (width - 1 - tap), channel, 1, &value);
        sum += taps[tap] * value;
    }
    return sum;
}

void check_kept(const Context& ctx, const KeptStates& kept, const Segments& segments, at::IntArrayRef sizes,
                at::ScalarType type) {
    if (!kept.defined()) return;
    UNSLOTH_CHECK(kept.data.dim() == static_cast<int64_t>(sizes.size()) + 1 && kept.data.sizes().slice(1) == sizes,
                  "kept states of ", kept.data.sizes(), " for ", sizes);
    check_contiguous(ctx, "kept states", kept.data, kept.data.sizes(), type);
    UNSLOTH_CHECK(static_cast<int64_t>(kept.rows.size()) == segments.count(), kept.rows.size(), " kept states for ",
                  segments.count(), " segments");
    for (const int32_t row : kept.rows)
        UNSLOTH_CHECK(row >= 0 && row < kept.data.size(0), "kept state ", row, " of ", kept.data.size(0));
}

/// The last inputs of sequences, which a convolution resumes from.
class KeptInputs {
  public:
    KeptInputs(const KeptStates& kept, const Segments& segments, const cpu::Rows& x, int64_t channels, int64_t width)
        : kept_(kept), segments_(segments), x_(x), channels_(channels), width_(width) {
        if (!kept.defined()) return;
        rows_ = cpu::Rows(kept.data.view({-1, channels}));
        for (size_t s = 0; s + 1 < segments.q_offsets.size(); ++s)
            of_token_.resize(static_cast<size_t>(segments.q_offsets[s + 1]), kept.keeps(s) ? kept.rows[s] : -1);
    }
    /// Of the taps that fall before the segment, which begins at token `first`.
    float convolve(const float* taps, int64_t t, int64_t first, int64_t channel) const {
        if (!kept_.defined() || of_token_[static_cast<size_t>(t)] < 0) return 0;
        const int64_t row = of_token_[static_cast<size_t>(t)] * (width_ - 1);
        float sum = 0, value = 0;
        for (int64_t tap = 0; tap < width_ - 1 - (t - first); ++tap) {
            rows_->read_into(row + t - first + tap, channel, 1, &value);
            sum += taps[tap] * value;
        }
        return sum;
    }
    void take() const {
        if (!kept_.defined()) return;
        std::vector<float> row(static_cast<size_t>(channels_));
        for (size_t s = 0; s < kept_.rows.size(); ++s) {
            if (!kept_.keeps(s)) continue;
            const int64_t first = segments_.q_offsets[s], end = segments_.q_offsets[s + 1],
                          own = kept_.rows[s] * (width_ - 1);
            for (int64_t i = 0; i < width_ - 1; ++i) {  // in this order none is read that was written
                const int64_t t = end - (width_ - 1) + i;
                if (t >= first)
                    x_.read_into(t, 0, channels_, row.data());
                else
                    rows_->read_into(own + width_ - 1 + t - first, 0, channels_, row.data());
                rows_->write(own + i, row.data());
            }
        }
    }

  private:
    const KeptStates& kept_;
    const Segments& segments_;
    const cpu::Rows& x_;
    int64_t channels_, width_;
    std::optional<cpu::Rows> rows_;
    std::vector<int32_t> of_token_;
};

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
    check_segments(segments, in.mixed_TC);
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

void short_conv_forward(Context& ctx, const Segments& segments, const at::Tensor& x_TC, const at::Tensor& weight_Cw,
                        const at::Tensor& y_TC, const KeptStates& kept) {
    const Region region(ctx, "short_conv");
    check_segments(segments, x_TC);
    check_compute_tensor(ctx, "x", x_TC, x_TC.sizes());
    check_tensor(ctx, "y", y_TC, x_TC.sizes(), x_TC.scalar_type());
    const int64_t channels = x_TC.size(1), width = weight_Cw.size(-1);
    check_contiguous(ctx, "weight", weight_Cw, {channels, width}, at::kFloat);
    check_kept(ctx, kept, segments, {width - 1, channels}, x_TC.scalar_type());
#ifdef UNSLOTH_CUDA
    if (ctx.is_cuda()) return short_conv_forward_cuda(ctx, segments, x_TC, weight_Cw, y_TC, kept);
#endif
    const cpu::Rows x(x_TC), y(y_TC);
    const KeptInputs before(kept, segments, x, channels, width);
    const std::vector<int32_t> first = starts(segments);
    const float* const taps = weight_Cw.const_data_ptr<float>();
    at::parallel_for(
        0, static_cast<int64_t>(first.size()), cpu::grain_size(8 * channels), [&](int64_t from, int64_t to) {
            std::vector<float> out(static_cast<size_t>(channels));
            for (int64_t t = from; t < to; ++t) {
                for (int64_t c = 0; c < channels; ++c) {
                    const int32_t begin = first[static_cast<size_t>(t)];
                    const float* const own = taps + c * width;
                    const float sum = convolve(x, own, width, t, begin, c, before.convolve(own, t, begin, c));
                    out[static_cast<size_t>(c)] = sum * sigmoid(sum);
                }
                y.write(t, out.data());
            }
        });
    before.take();
}

void short_conv_backward(Context& ctx, const Segments& segments, const at::Tensor& dy_TC, const at::Tensor& x_TC,
                         const at::Tensor& weight_Cw, const at::Tensor& dx_TC, const at::Tensor& dweight_Cw) {
    const Region region(ctx, "short_conv_backward");
    check_segments(segments, x_TC);
    check_compute_tensor(ctx, "x", x_TC, x_TC.sizes());
    check_tensor(ctx, "dy", dy_TC, x_TC.sizes(), x_TC.scalar_type());
    check_tensor(ctx, "dx", dx_TC, x_TC.sizes(), x_TC.scalar_type());
    const int64_t channels = x_TC.size(1), width = weight_Cw.size(-1);
    check_contiguous(ctx, "weight", weight_Cw, {channels, width}, at::kFloat);
    if (dweight_Cw.defined()) check_contiguous(ctx, "dweight", dweight_Cw, {channels, width}, at::kFloat);
#ifdef UNSLOTH_CUDA
    if (ctx.is_cuda()) return short_conv_backward_cuda(ctx, segments, dy_TC, x_TC, weight_Cw, dx_TC, dweight_Cw);
#endif
    const cpu::Rows x(x_TC), dy(dy_TC);
    const std::vector<int32_t> first = starts(segments);
    const auto tokens = static_cast<int64_t>(first.size());
    const float* const taps = weight_Cw.const_data_ptr<float>();
    // A channel's sums over tokens are one thread's, in order.
    at::parallel_for(0, channels, 1, [&](int64_t from, int64_t to) {
        std::vector<float> dsum(static_cast<size_t>(tokens));
        for (int64_t c = from; c < to; ++c) {
            const cpu::Rows dx(dx_TC.narrow(1, c, 1));
            const float* const w = taps + c * width;
            for (int64_t t = 0; t < tokens; ++t) {
                const float sum = convolve(x, w, width, t, first[static_cast<size_t>(t)], c), s = sigmoid(sum);
                float gradient = 0;
                dy.read_into(t, c, 1, &gradient);
                dsum[static_cast<size_t>(t)] = gradient * s * (1.0F + sum * (1.0F - s));
            }
            for (int64_t t = 0; t < tokens; ++t) {
                float gradient = 0;
                for (int64_t later = 0; later < width && t + later < tokens; ++later) {
                    const auto at = static_cast<size_t>(t + later);
                    if (first[at] != first[static_cast<size_t>(t)]) break;
                    gradient += w[width - 1 - later] * dsum[at];
                    if (!dweight_Cw.defined()) continue;
                    float value = 0;
                    x.read_into(t, c, 1, &value);
                    dweight_Cw.mutable_data_ptr<float>()[c * width + width - 1 - later] += value * dsum[at];
                }
                dx.write(t, &gradient);
            }
        }
    });
}

void delta_rule_forward(Context& ctx, const DeltaShape& shape, const Segments& segments, const DeltaInputs& in,
                        const at::Tensor& o_THv, const KeptStates& kept) {
    const Region region(ctx, "delta_rule");
    check_delta(ctx, shape, segments, in, o_THv);
    check_kept(ctx, kept, segments, {shape.value_heads, shape.key_dim, shape.value_dim}, at::kFloat);
#ifdef UNSLOTH_CUDA
    if (ctx.is_cuda()) return delta_forward_cuda(ctx, shape, segments, in, o_THv, kept);
#endif
    cpu::delta_forward(shape, segments, in, o_THv, kept);
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
                         const at::Tensor& do_THv, const at::Tensor& states, const DeltaGradients& out) {
    const Region region(ctx, "delta_rule_backward");
    check_delta(ctx, shape, segments, in, do_THv);
    const at::ScalarType type = in.mixed_TC.scalar_type();
    check_tensor(ctx, "dmixed", out.mixed_TC, in.mixed_TC.sizes(), type);
    check_tensor(ctx, "db", out.b_TH, in.b_TH.sizes(), type);
    check_tensor(ctx, "da", out.a_TH, in.a_TH.sizes(), type);
    UNSLOTH_CHECK(states.is_contiguous() && states.scalar_type() == at::kFloat, "states of ", states.scalar_type());
    UNSLOTH_CHECK(states.numel() >= delta_state_elements(shape, segments.q_offsets.back(), segments.count()),
                  states.numel(), " elements for states");
#ifdef UNSLOTH_CUDA
    if (ctx.is_cuda()) return delta_backward_cuda(ctx, shape, segments, in, do_THv, states, out);
#endif
    cpu::delta_backward(shape, segments, in, do_THv, states, out);
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
