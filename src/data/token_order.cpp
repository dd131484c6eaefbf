#include "unsloth/data/token_order.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "unsloth/core/error.h"

namespace unsloth::data {
namespace {

constexpr int digit_bits = 8;
constexpr std::size_t digits = std::size_t{1} << digit_bits;

/// One stable pass of counting sort: `from` is a permutation of the places, `to` the same one sorted by one
/// digit.
void sort_by_digit(std::span<const int32_t> ids_T, int shift, const std::vector<int32_t>& from,
                   std::vector<int32_t>& to) {
    const auto digit = [&](int32_t place) {
        return (static_cast<uint32_t>(ids_T[static_cast<std::size_t>(place)]) >> shift) & (digits - 1);
    };
    std::array<int32_t, digits> next{};
    for (const int32_t place : from) ++next[digit(place)];
    std::exclusive_scan(next.begin(), next.end(), next.begin(), 0);
    for (const int32_t place : from) to[static_cast<std::size_t>(next[digit(place)]++)] = place;
}

}  // namespace

TokenOrder sort_tokens(std::span<const int32_t> ids_T) {
    TokenOrder result;
    UNSLOTH_CHECK(ids_T.size() <= static_cast<std::size_t>(std::numeric_limits<int32_t>::max()), "batch too large");
    if (ids_T.empty()) return result;
    const auto [smallest, largest] = std::minmax_element(ids_T.begin(), ids_T.end());
    UNSLOTH_CHECK(*smallest >= 0, "negative token id ", *smallest);

    result.order.resize(ids_T.size());
    std::iota(result.order.begin(), result.order.end(), 0);
    std::vector<int32_t> other(ids_T.size());
    for (int shift = 0; shift < 32 && (static_cast<uint32_t>(*largest) >> shift) != 0; shift += digit_bits) {
        sort_by_digit(ids_T, shift, result.order, other);
        result.order.swap(other);
    }
    for (std::size_t k = 0; k < result.order.size(); ++k) {
        const int32_t id = ids_T[static_cast<std::size_t>(result.order[k])];
        if (!result.unique.empty() && result.unique.back() == id) continue;
        result.unique.push_back(id);
        result.starts.push_back(static_cast<int32_t>(k));
    }
    result.starts.push_back(static_cast<int32_t>(ids_T.size()));
    return result;
}

}  // namespace unsloth::data
