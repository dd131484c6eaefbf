#include "formats/values_fit.h"

#include <algorithm>
#include <bit>

#include "unsloth/core/error.h"
#include "unsloth/spec/convert.h"

namespace unsloth::formats {

/// Bits of positive floats are ordered as the floats are, with NaNs above infinity: one comparison finds both.
void require_values_fit(const float* values, int64_t n, spec::DType type, const std::string& name) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7FFFFFFFU);
    if (largest < spec::first_infinite(type)) return;
    const float value = std::bit_cast<float>(largest);
    if (largest >= 0x7F800000U)
        throw Error("checkpoint.not-finite",
                    cat("tensor '", name, "' would hold a value that is not finite (", value, ")"),
                    "The base or the adapter is damaged, or its training diverged.");
    throw Error("checkpoint.too-large-value",
                cat("tensor '", name, "' would hold ", value, ", which is too large for ", name_of(type)),
                "Write another type: --dtype bf16 or fp32.");
}

}  // namespace unsloth::formats
