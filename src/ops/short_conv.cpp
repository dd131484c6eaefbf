// The short convolution of gated delta nets (ops/gated_delta.h).
#include <optional>

#include "ops/cpu_rows.h"
#include "ops/gated_delta_parts.h"
#include "unsloth/ops/profiler.h"
#ifdef UNSLOTH_CUDA
#include "ops/gated_delta_cuda.h"
#endif

namespace unsloth::ops {
namespace {

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
    /// The rows before a segment; none where it begins.
    std::optional<int64_t> first_row(size_t segment) const {
        return kept_.keeps(segment) ? std::optional(kept_.rows[segment] * (width_ - 1)) : std::nullopt;
    }
    const cpu::Rows& rows() const { return *rows_; }
    void take() const {
        if (!kept_.defined() || kept_.read_only) return;
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

}  // namespace

void short_conv_forward(Context& ctx, const Segments& segments, const at::Tensor& x_TC, const at::Tensor& weight_Cw,
                        const at::Tensor& y_TC, const KeptStates& kept) {
    const Region region(ctx, "short_conv");
    check_rows_of_segments(segments, x_TC);
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

namespace {

/// A convolution's backward, a channel at a time.
class ConvBackward {
  public:
    ConvBackward(const Segments& segments, const at::Tensor& dy_TC, const at::Tensor& x_TC, const at::Tensor& weight_Cw,
                 const KeptStates& kept)
        : segments_(segments),
          dy_(dy_TC),
          x_(x_TC),
          width_(weight_Cw.size(1)),
          weight_(weight_Cw.const_data_ptr<float>()),
          first_(starts(segments)),
          before_(kept, segments, x_, x_TC.size(1), width_) {}

    /// Of sums before SiLU, and of the segments' tokens.
    void tokens(int64_t channel, std::vector<float>& dsum, const cpu::Rows& dx, float* dweight) const {
        const auto count = static_cast<int64_t>(first_.size());
        const float* const w = weight_ + channel * width_;
        dsum.resize(first_.size());
        for (int64_t t = 0; t < count; ++t) {
            const int32_t begin = first_[static_cast<size_t>(t)];
            const float sum = convolve(x_, w, width_, t, begin, channel, before_.convolve(w, t, begin, channel)),
                        s = sigmoid(sum);
            float gradient = 0;
            dy_.read_into(t, channel, 1, &gradient);
            dsum[static_cast<size_t>(t)] = gradient * s * (1.0F + sum * (1.0F - s));
        }
        for (int64_t t = 0; t < count; ++t) {
            float gradient = 0;
            for (int64_t later = 0; later < width_ && t + later < count; ++later) {
                const auto at = static_cast<size_t>(t + later);
                if (first_[at] != first_[static_cast<size_t>(t)]) break;
                gradient += w[width_ - 1 - later] * dsum[at];
                if (dweight == nullptr) continue;
                float value = 0;
                x_.read_into(t, channel, 1, &value);
                dweight[width_ - 1 - later] += value * dsum[at];
            }
            dx.write(t, &gradient);
        }
    }

    /// Of the rows before the segments. dkept: one channel.
    void rows_before(int64_t channel, const std::vector<float>& dsum, const cpu::Rows& dkept, float* dweight) const {
        const float* const w = weight_ + channel * width_;
        for (size_t s = 0; s + 1 < segments_.q_offsets.size(); ++s) {
            const std::optional<int64_t> row = before_.first_row(s);
            if (!row) continue;
            const int64_t first = segments_.q_offsets[s], end = segments_.q_offsets[s + 1];
            for (int64_t i = 0; i < width_ - 1; ++i) {
                float gradient = 0, value = 0;
                before_.rows().read_into(*row + i, channel, 1, &value);
                for (int64_t t = first; t < std::min(first + i + 1, end); ++t) {
                    const int64_t tap = i - (t - first);
                    gradient += w[tap] * dsum[static_cast<size_t>(t)];
                    if (dweight != nullptr) dweight[tap] += value * dsum[static_cast<size_t>(t)];
                }
                dkept.write(*row + i, &gradient);
            }
        }
    }

  private:
    const Segments& segments_;
    cpu::Rows dy_, x_;
    int64_t width_;
    const float* weight_;
    std::vector<int32_t> first_;
    KeptInputs before_;
};

}  // namespace

void short_conv_backward(Context& ctx, const Segments& segments, const at::Tensor& dy_TC, const at::Tensor& x_TC,
                         const at::Tensor& weight_Cw, const at::Tensor& dx_TC, const at::Tensor& dweight_Cw,
                         const KeptStates& kept, const at::Tensor& dkept_NwC) {
    const Region region(ctx, "short_conv_backward");
    check_rows_of_segments(segments, x_TC);
    check_compute_tensor(ctx, "x", x_TC, x_TC.sizes());
    check_tensor(ctx, "dy", dy_TC, x_TC.sizes(), x_TC.scalar_type());
    check_tensor(ctx, "dx", dx_TC, x_TC.sizes(), x_TC.scalar_type());
    const int64_t channels = x_TC.size(1), width = weight_Cw.size(-1);
    check_contiguous(ctx, "weight", weight_Cw, {channels, width}, at::kFloat);
    if (dweight_Cw.defined()) check_contiguous(ctx, "dweight", dweight_Cw, {channels, width}, at::kFloat);
    check_kept(ctx, kept, segments, {width - 1, channels}, x_TC.scalar_type());
    UNSLOTH_CHECK(!kept.defined() || kept.read_only, "a backward pass leaves no inputs");
    if (kept.defined()) check_contiguous(ctx, "dkept", dkept_NwC, kept.data.sizes(), x_TC.scalar_type());
#ifdef UNSLOTH_CUDA
    if (ctx.is_cuda())
        return short_conv_backward_cuda(ctx, segments, dy_TC, x_TC, weight_Cw, dx_TC, dweight_Cw, kept, dkept_NwC);
#endif
    const ConvBackward back(segments, dy_TC, x_TC, weight_Cw, kept);
    // A channel's sums over tokens are one thread's, in order.
    at::parallel_for(0, channels, 1, [&](int64_t from, int64_t to) {
        std::vector<float> dsum;
        for (int64_t c = from; c < to; ++c) {
            float* const dweight = dweight_Cw.defined() ? dweight_Cw.mutable_data_ptr<float>() + c * width : nullptr;
            back.tokens(c, dsum, cpu::Rows(dx_TC.narrow(1, c, 1)), dweight);
            if (kept.defined())
                back.rows_before(c, dsum, cpu::Rows(dkept_NwC.view({-1, channels}).narrow(1, c, 1)), dweight);
        }
    });
}

}  // namespace unsloth::ops
