#include "ops/int8_codes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/code_scale.h"
#include "ops/cpu_rows.h"
#include "unsloth/core/error.h"

namespace unsloth::ops {
namespace {

constexpr float largest_code = 127.0F;

/// The product is exact in fp64, and so rounded once.
int8_t code_of(float value, float inverse) {
    return static_cast<int8_t>(std::nearbyint(static_cast<double>(value) * inverse));
}

/// A power of two for each column, by which x is multiplied and w divided: what brings its largest magnitude to their
/// median, where it is far off. Columns of ordinary sizes stay, for where x is even, it loses by that what w wins.
at::Tensor levels(const at::Tensor& w_NK) {
    constexpr int ordinary = 2, most = 12;
    const at::Tensor largest = at::maximum(w_NK.amax(0), w_NK.amin(0).neg()).to(at::kFloat), there = largest > 0;
    const at::Tensor exponents = std::get<1>(at::frexp(largest)), counted = exponents.masked_select(there);
    if (counted.numel() == 0) return at::ones_like(largest);
    const at::Tensor off = exponents - at::median(counted);
    const at::Tensor far = off.abs().gt(ordinary).logical_and(there);
    return at::ldexp(at::ones_like(largest), off.clamp(-most, most) * far);
}

}  // namespace

void quantize_int8_cpu(const at::Tensor& x_TC, const CodedMatrix& out) {
    UNSLOTH_CHECK(out.scales.dim() == 2, "int8 codes of rows have scales for blocks");
    // By powers of two: but for the smallest numbers exact in any type; f16's range is too small.
    const auto type = x_TC.scalar_type() == at::kHalf ? at::kFloat : x_TC.scalar_type();
    const at::Tensor levelled_TC = out.factors.defined() ? x_TC.to(type) * out.factors.to(type) : x_TC;
    const cpu::Rows x(levelled_TC);
    const int64_t columns = x.columns(), stride = out.scales.stride(0);
    auto* const codes = out.codes.mutable_data_ptr<int8_t>();
    float* const scales = out.scales.mutable_data_ptr<float>();
    at::parallel_for(0, x.rows(), cpu::grain_size(columns), [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<std::size_t>(columns));
        for (int64_t row = begin; row < end; ++row) {
            const float* const values = x.read(row, scratch.data());
            for (int64_t first = 0; first < columns; first += int8_block) {
                const int64_t last = std::min(columns, first + int8_block);
                const float scale = code_scale(largest_magnitude(values + first, last - first), largest_code),
                            inverse = 1.0F / scale;
                scales[first / int8_block * stride + row] = scale;
                for (int64_t c = first; c < last; ++c)
                    codes[row * columns + c] = std::isfinite(scale) ? code_of(values[c], inverse) : int8_t{0};
            }
        }
    });
}

void quantize_int8_weight(const at::Tensor& w_NK, const CodedMatrix& out) {
    constexpr int64_t floats_at_once = int64_t{16} << 20;
    const int64_t rows_at_once = std::max<int64_t>(1, floats_at_once / w_NK.size(1));
    const at::Tensor factors = levels(w_NK);
    out.factors.copy_(factors);
    for (int64_t first = 0; first < w_NK.size(0); first += rows_at_once) {
        const int64_t rows = std::min(rows_at_once, w_NK.size(0) - first);
        const at::Tensor values = w_NK.narrow(0, first, rows).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
        values.div_(factors);
        at::Tensor scales = at::maximum(values.amax(1), values.amin(1).neg());
        scales = at::where(scales == 0, at::ones_like(scales),
                           (scales / largest_code).clamp_min_(std::numeric_limits<float>::min()));
        out.scales.narrow(0, first, rows).copy_(scales);
        out.codes.narrow(0, first, rows)
            .copy_(values.mul_(scales.reciprocal_().unsqueeze(1)).round_().clamp_(-largest_code, largest_code));
    }
}

}  // namespace unsloth::ops
