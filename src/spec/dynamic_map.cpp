#include "unsloth/spec/dynamic_map.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "unsloth/core/error.h"

namespace unsloth::spec {
namespace {

constexpr int exponents = 7;

/// `count` values from 0.1 to 1. Filled from both ends with fused multiply-adds, as torch.linspace is on current CPUs:
/// the published map has exactly these bits.
std::vector<float> linear_fractions(int count) {
    const float step = (1.0F - 0.1F) / static_cast<float>(count - 1);
    std::vector<float> values(static_cast<std::size_t>(count));
    for (int k = 0; k < count; ++k)
        values[static_cast<std::size_t>(k)] = k < count / 2 ? std::fma(step, static_cast<float>(k), 0.1F)
                                                            : std::fma(-step, static_cast<float>(count - 1 - k), 1.0F);
    return values;
}

std::array<float, 256> make_map(bool is_signed) {
    std::vector<float> values = {0.0F, 1.0F};
    for (int i = 0; i < exponents; ++i) {
        const int fractions = is_signed ? 1 << i : 2 << i;
        const std::vector<float> edges = linear_fractions(fractions + 1);
        const auto scale = static_cast<float>(std::pow(10.0, i - (exponents - 1)));
        for (std::size_t k = 0; k + 1 < edges.size(); ++k) {
            const float value = scale * ((edges[k] + edges[k + 1]) / 2.0F);
            values.push_back(value);
            if (is_signed) values.push_back(-value);
        }
    }
    std::array<float, 256> map{};
    UNSLOTH_CHECK(values.size() == map.size(), "the dynamic map has ", values.size(), " values");
    std::sort(values.begin(), values.end());
    std::copy(values.begin(), values.end(), map.begin());
    return map;
}

}  // namespace

const std::array<float, 256>& dynamic_map_256(bool is_signed) {
    static const std::array<float, 256> signed_map = make_map(true);
    static const std::array<float, 256> unsigned_map = make_map(false);
    return is_signed ? signed_map : unsigned_map;
}

}  // namespace unsloth::spec
