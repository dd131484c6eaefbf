#include "unsloth/data/segments.h"

#include <gtest/gtest.h>

#include "unsloth/core/error.h"
#include "unsloth/data/batch.h"

namespace unsloth::data {
namespace {

TEST(Segments, EachZeroOfTheGivenPositionsBeginsOne) {
    EXPECT_TRUE(segments_at_zero({}).empty());
    EXPECT_TRUE(segments_at_zero({0, 1, 2}).empty());
    EXPECT_TRUE(segments_at_zero({5, 6}).empty());
    EXPECT_EQ(segments_at_zero({5, 6, 0, 0, 1}), (Segments{{0, 2}, {2, 1}, {3, 2}}));
}

TEST(Segments, OfARowWithoutAnyAreAllItsTokens) {
    EXPECT_EQ(listed({}, 3), (Segments{{0, 3}}));
    EXPECT_TRUE(listed({}, 0).empty());
    EXPECT_EQ(listed({{0, 1}, {1, 2}}, 3), (Segments{{0, 1}, {1, 2}}));
}

TEST(Segments, AreCutWithTheirTokens) {
    const Segments row{{0, 3}, {3, 4}, {7, 2}};
    EXPECT_EQ(cut(row, 0, 8), (Segments{{0, 3}, {3, 4}, {7, 1}}));
    EXPECT_EQ(cut(row, 2, 5), (Segments{{0, 1}, {1, 2}}));
    EXPECT_TRUE(cut(row, 3, 7).empty());
    EXPECT_TRUE(cut({}, 2, 5).empty());
    EXPECT_THROW((void)cut({{0, 3}, {3, 1, 0, 2}}, 0, 4), CheckError);
}

TEST(Segments, AreSoundWhereTheyAreTheRowsTokensAndOwnersHaveWhatIsShared) {
    EXPECT_TRUE(are_sound({}, 5));
    EXPECT_TRUE(are_sound({{0, 2}, {2, 3}}, 5));
    EXPECT_TRUE(are_sound({{0, 2}, {2, 1, 0, 2}, {3, 2, 0, 1}}, 5));
    const std::vector<Segments> wrong{{{0, 2}, {2, 2}},        {{0, 2}, {3, 2}},
                                      {{0, 5}, {5, 0}},        {{0, 2, 0, 1}, {2, 3}},
                                      {{0, 2}, {2, 3, 0, 3}},  {{0, 2}, {2, 3, 0, 0}},
                                      {{0, 2}, {2, 3, -1, 1}}, {{0, 2}, {2, 3, 1, 1}},
                                      {{0, 2}, {2, 3, 0, -1}}, {{0, 2}, {2, 2, 0, 1}, {4, 1, 1, 1}}};
    for (const Segments& segments : wrong) EXPECT_FALSE(are_sound(segments, 5)) << &segments - wrong.data();
}

TEST(Segments, TheFirstTokenIsATargetOfASharedOneAlone) {
    const std::vector<int32_t> labels{1, 2, ignore_label, 4, 5};
    EXPECT_EQ(count_targets(labels, {}), 3);
    EXPECT_EQ(count_targets(labels, {{0, 3}, {3, 2}}), 2);
    EXPECT_EQ(count_targets(labels, {{0, 3}, {3, 2, 0, 1}}), 3);
}

}  // namespace
}  // namespace unsloth::data
