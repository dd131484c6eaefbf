#include "ops/attention_packed.h"

#include <algorithm>
#include <bit>

namespace unsloth::ops {
namespace {

constexpr int64_t tile = 128;
constexpr int64_t least_length = 256, least_tokens = 1024;

int64_t round_to_tile(int64_t n) {
    return (n + tile - 1) / tile * tile;
}

int64_t next_power_of_two(int64_t n) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
}

int64_t bucket(int64_t n, int64_t least, int64_t most) {
    const int64_t power = next_power_of_two(std::max(n, least));
    return n <= most ? std::min(power, std::max(most, least)) : power;
}

}  // namespace

int64_t packed_tokens(const PackedLimits& limits, int64_t tokens) {
    return round_to_tile(tokens <= limits.tokens ? limits.tokens : next_power_of_two(std::max(tokens, least_tokens)));
}

PackedBucket packed_bucket(const PackedLimits& limits, int64_t segments, int64_t longest, int64_t least_batch) {
    return {bucket(segments, least_batch, limits.segments),
            round_to_tile(bucket(longest, least_length, limits.longest))};
}

int64_t packed_area(const PackedLimits& limits, int64_t tokens, int64_t longest) {
    const bool planned = tokens <= limits.tokens && longest <= limits.longest;
    const int64_t t = planned ? limits.tokens : tokens;
    const int64_t l = std::max(planned ? limits.longest : longest, least_length);
    return std::max(packed_tokens(limits, tokens), std::max<int64_t>(1, t / l) * packed_bucket(limits, 1, l).length);
}

std::vector<PackedGroup> packed_groups(const PackedLimits& limits, const std::vector<int32_t>& offsets) {
    const int64_t count = static_cast<int64_t>(offsets.size()) - 1;
    const auto length_of = [&](int64_t i) -> int64_t {
        return offsets[static_cast<std::size_t>(i) + 1] - offsets[static_cast<std::size_t>(i)];
    };
    int64_t longest = 0;
    for (int64_t i = 0; i < count; ++i) longest = std::max(longest, length_of(i));
    const int64_t area = packed_area(limits, offsets.back(), longest);
    std::vector<PackedGroup> groups;
    for (int64_t i = 0; i < count; ++i) {
        if (!groups.empty()) {
            PackedGroup& last = groups.back();
            const int64_t together = std::max(last.longest, length_of(i));
            if (packed_bucket(limits, last.count + 1, together).area() <= area) {
                last.count += 1;
                last.longest = together;
                continue;
            }
        }
        groups.push_back({i, 1, length_of(i)});
    }
    return groups;
}

std::vector<PackedBucket> largest_packed_buckets(const PackedLimits& limits) {
    const int64_t area = packed_area(limits, limits.tokens, limits.longest);
    const auto fullest = [&](int64_t length) {
        PackedBucket best = packed_bucket(limits, 1, length);
        for (int64_t n = 2; n / 2 < limits.segments; n *= 2) {
            const PackedBucket more = packed_bucket(limits, std::min(n, limits.segments), length);
            if (more.area() <= area) best = more;
        }
        return best;
    };
    // Of equal areas the one with more sequences takes a little more.
    PackedBucket largest = fullest(std::min(least_length, limits.longest));
    for (int64_t length = 2 * least_length; length < limits.longest; length *= 2)
        if (const PackedBucket b = fullest(length); b.area() > largest.area()) largest = b;
    std::vector<PackedBucket> result = {fullest(limits.longest)};
    if (largest.area() >= result.front().area() && largest.batch != result.front().batch) result.push_back(largest);
    return result;
}

}  // namespace unsloth::ops
