// Buckets and groups of the packed form: every batch is covered, in order, within the scratch that was
// planned.
#include "src/ops/attention_packed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace unsloth::ops {
namespace {

std::vector<int32_t> offsets_of(const std::vector<int32_t>& lengths) {
    std::vector<int32_t> offsets = {0};
    for (const int32_t n : lengths) offsets.push_back(offsets.back() + n);
    return offsets;
}

TEST(AttentionPacked, Buckets) {
    const PackedLimits limits{16384, 20, 2000};
    EXPECT_EQ(packed_tokens(limits, 100), 16384);
    EXPECT_EQ(packed_tokens(limits, 16385), 32768);
    EXPECT_EQ(packed_tokens({}, 5), 1024);
    const auto bucket = [&](int64_t n, int64_t longest) {
        const PackedBucket b = packed_bucket(limits, n, longest);
        return std::pair(b.batch, b.length);
    };
    EXPECT_EQ(bucket(1, 3), std::pair(int64_t{1}, int64_t{256}));
    EXPECT_EQ(bucket(5, 700), std::pair(int64_t{8}, int64_t{1024}));
    EXPECT_EQ(bucket(17, 1500), std::pair(int64_t{20}, int64_t{2048}));  // as planned, in whole tiles
    EXPECT_EQ(bucket(21, 2001), std::pair(int64_t{32}, int64_t{2048}));  // beyond the plan
    EXPECT_EQ(packed_bucket(limits, 3, 300, 8).batch, 8);
}

TEST(AttentionPacked, RowsOfABatchGoTogether) {
    const PackedLimits limits{8 * 2048, 8, 2048};
    EXPECT_EQ(packed_groups(limits, offsets_of({2000, 17, 1024, 600, 2048, 3, 900, 1300})).size(), 1u);
    const PackedLimits no_power{8 * 2000, 8, 2000};
    EXPECT_EQ(packed_groups(no_power, offsets_of({2000, 17, 1024, 600, 1999, 3, 900, 1300})).size(), 1u);
}

TEST(AttentionPacked, OneLongSegmentAmongShortOnes) {
    std::vector<int32_t> lengths(101, 80);
    lengths[0] = 8000;
    const PackedLimits limits{16080, 101, 8000};
    const auto groups = packed_groups(limits, offsets_of(lengths));
    ASSERT_GE(groups.size(), 2u);
    EXPECT_EQ(groups[0].longest, 8000);
    EXPECT_LE(groups[0].count, 2);
    EXPECT_EQ(groups[1].longest, 80);
    EXPECT_LE(groups.size(), 5u);
}

TEST(AttentionPacked, AnyBatchIsCoveredWithinThePlan) {
    std::mt19937 random(5);
    const auto draw = [&](int64_t low, int64_t high) {
        return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    for (int round = 0; round < 2000; ++round) {
        const int64_t longest = draw(1, 5000), tokens = draw(longest, 40000);
        const int64_t segments = std::max((tokens + longest - 1) / longest, draw(1, 300));
        const PackedLimits limits{tokens, segments, longest};
        std::vector<int32_t> lengths;
        for (int64_t left = tokens; left > 0 && static_cast<int64_t>(lengths.size()) < segments; left -= lengths.back())
            lengths.push_back(static_cast<int32_t>(std::min(left, draw(1, draw(1, longest)))));
        int64_t planned = 0;
        for (const PackedBucket& bucket : largest_packed_buckets(limits)) planned = std::max(planned, bucket.area());
        int64_t next = 0;
        for (const PackedGroup& group : packed_groups(limits, offsets_of(lengths))) {
            ASSERT_EQ(group.first, next);
            ASSERT_GE(group.count, 1);
            next += group.count;
            const auto first = lengths.begin() + group.first;
            ASSERT_EQ(group.longest, *std::max_element(first, first + group.count));
            const PackedBucket bucket = packed_bucket(limits, group.count, group.longest);
            ASSERT_GE(bucket.batch, group.count);
            ASSERT_GE(bucket.length, group.longest);
            ASSERT_LE(bucket.area(), planned)
                << "tokens " << tokens << " segments " << segments << " longest " << longest;
        }
        ASSERT_EQ(next, static_cast<int64_t>(lengths.size()));
        // The plan stays near the tokens: S is rounded up to a tile, and is 256 at least.
        ASSERT_LE(planned, tokens + tokens / 2 + longest + 1024)
            << "tokens " << tokens << " segments " << segments << " longest " << longest;
    }
}

TEST(AttentionPacked, WithoutAPlan) {
    int64_t covered = 0;
    for (const PackedGroup& group : packed_groups({}, offsets_of({3000, 5, 5, 5}))) covered += group.count;
    EXPECT_EQ(covered, 4);
}

}  // namespace
}  // namespace unsloth::ops
