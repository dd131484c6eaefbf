#include "unsloth/data/batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "unsloth/core/error.h"

namespace unsloth::data {
namespace {

using Ints = std::vector<int32_t>;
constexpr int32_t ignored = ignore_label;

TEST(Batch, ShiftsLabelsAndJoinsRows) {
    const Sample a{7, {10, 11, 12}, {ignored, 11, 12}, {0, 1, 2}};
    const Sample b{3, {20, 21}, {20, 21}, {0, 1}};
    const Batch batch = make_batch(std::vector{a, b});
    EXPECT_EQ(batch.ids_T, (Ints{10, 11, 12, 20, 21}));
    EXPECT_EQ(batch.targets_T, (Ints{11, 12, ignored, 21, ignored}));
    EXPECT_EQ(batch.positions_T, (Ints{0, 1, 2, 0, 1}));
    EXPECT_EQ(batch.row_T, (Ints{7, 7, 7, 3, 3}));
    EXPECT_EQ(batch.offset_T, (Ints{0, 1, 2, 0, 1}));
    EXPECT_EQ(batch.segments, (Ints{0, 3, 5}));
    EXPECT_EQ(batch.target_index, (Ints{0, 1, 3}));
    EXPECT_EQ(batch.target_ids, (Ints{11, 12, 21}));
    EXPECT_EQ(batch.rows, (std::vector<int64_t>{7, 3}));
    EXPECT_EQ(batch.labels, 3);
    EXPECT_EQ(batch.longest, 3);
    EXPECT_EQ(batch.tokens(), 5);
    EXPECT_TRUE(batch.token_order.empty());
}

TEST(Batch, HasTheSegmentsOfItsRows) {
    const Sample packed{0, {1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 5, 6}, {0, 1, 0, 0, 1, 2}, {{0, 2}, {2, 1}, {3, 3}}};
    const Batch batch = make_batch({&packed, 1});
    EXPECT_EQ(batch.segments, (Ints{0, 2, 3, 6}));
    EXPECT_EQ(batch.targets_T, (Ints{2, ignored, ignored, 5, 6, ignored}));
    EXPECT_EQ(batch.offset_T, (Ints{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(batch.longest, 3);
    EXPECT_EQ(batch.labels, count_targets(packed.labels, packed.segments));
    EXPECT_TRUE(batch.shared.empty());
    EXPECT_TRUE(batch.owners.empty());
}

TEST(Batch, PositionsAreFree) {
    const Sample free{0, {1, 2, 3, 4}, {1, 2, 3, 4}, {4, 4, 0, 7}};
    const Batch batch = make_batch({&free, 1});
    EXPECT_EQ(batch.segments, (Ints{0, 4}));
    EXPECT_EQ(batch.labels, 3);
    EXPECT_EQ(batch.positions_T, free.positions);
}

TEST(Batch, SeveralCompletionsReadOnePrompt) {
    const Sample plain{4, {9, 9}, {ignored, 9}, {0, 1}};
    // The prompt 10, 11 with the completion 20, 21; then the completions 30 and 40, 41 of the same prompt.
    const Sample group{7,
                       {10, 11, 20, 21, 30, 40, 41},
                       {ignored, ignored, 20, 21, 30, 40, 41},
                       {0, 1, 2, 3, 2, 2, 3},
                       {{0, 4}, {4, 1, 0, 2}, {5, 2, 0, 2}}};
    const Batch batch = make_batch(std::vector{plain, group});
    EXPECT_EQ(batch.segments, (Ints{0, 2, 6, 7, 9}));
    EXPECT_EQ(batch.shared, (Ints{0, 0, 2, 2}));
    EXPECT_EQ(batch.owners, (Ints{-1, -1, 1, 1}));
    EXPECT_EQ(batch.target_index, (Ints{0, 3, 4, 3, 3, 7}));
    EXPECT_EQ(batch.target_ids, (Ints{9, 20, 21, 30, 40, 41}));
    EXPECT_EQ(batch.target_starts, (Ints{0, 1, 3, 4, 6}));
    EXPECT_EQ(batch.longest, 4);
    EXPECT_EQ(count_targets(group.labels, group.segments), 5);
}

TEST(Batch, ARowMayStartBeyondPositionZero) {
    const Sample continued{0, {1, 2, 3}, {1, 2, 3}, {5, 6, 7}};
    const Sample next{1, {4, 5}, {4, 5}, {2, 9}};
    EXPECT_EQ(make_batch(std::vector{continued, next}).segments, (Ints{0, 3, 5}));
}

TEST(Batch, PutsImagesAtTheirTokens) {
    const auto pixels = std::make_shared<const std::vector<uint8_t>>(4 * 3 * 4, uint8_t{7});
    const Sample text{0, {1, 2}, {1, 2}, {0, 1}};
    Sample image{1, {3, 6, 4}, {3, ignore_label, 4}, {0, 1, 2}};
    image.images = {{1, 2, 2, pixels}};
    image.axes = {0, 0, 0, 1, 1, 1, 2, 2, 2};
    const Batch batch = make_batch(std::vector{text, image, text, image});
    ASSERT_EQ(batch.images.size(), 2U);
    EXPECT_EQ(batch.images[0].first, 3);
    EXPECT_EQ(batch.images[1].first, 8);
    EXPECT_EQ(batch.images[1].patches(), 4);
    EXPECT_EQ(batch.images[1].pixels, pixels);
    EXPECT_EQ(batch.axes_T3, (Ints{0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 2, 2, 2,  //
                                   0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 2, 2, 2}));
    EXPECT_TRUE(make_batch({&text, 1}).axes_T3.empty());

    Sample beyond = image, cut = image;
    beyond.images[0].first = 3;
    cut.axes.pop_back();
    EXPECT_THROW(make_batch({&beyond, 1}), CheckError);
    EXPECT_THROW(make_batch({&cut, 1}), CheckError);
}

TEST(Batch, MayBeEmpty) {
    const Batch batch = make_batch({});
    EXPECT_EQ(batch.tokens(), 0);
    EXPECT_EQ(batch.segments, (Ints{0}));
    EXPECT_EQ(batch.labels, 0);
}

TEST(Batch, RefusesUnequalLengths) {
    const Sample sample{0, {1, 2}, {1, 2}, {0}}, cut{0, {1, 2}, {1, 2}, {0, 1}, {{0, 1}}};
    EXPECT_THROW(make_batch({&sample, 1}), CheckError);
    EXPECT_THROW(make_batch({&cut, 1}), CheckError);
}

void expect_grouped(const Ints& ids, const TokenOrder& sorted) {
    std::map<int32_t, Ints> places;
    for (std::size_t t = 0; t < ids.size(); ++t) places[ids[t]].push_back(static_cast<int32_t>(t));
    TokenOrder expected;
    for (const auto& [id, list] : places) {
        expected.unique.push_back(id);
        expected.starts.push_back(static_cast<int32_t>(expected.order.size()));
        expected.order.insert(expected.order.end(), list.begin(), list.end());
    }
    expected.starts.push_back(static_cast<int32_t>(ids.size()));
    EXPECT_EQ(sorted.order, expected.order);
    EXPECT_EQ(sorted.unique, expected.unique);
    EXPECT_EQ(sorted.starts, expected.starts);
}

TEST(TokenOrder, GroupsTokensById) {
    std::mt19937 random(5);
    for (const int32_t vocabulary : {1, 2, 255, 256, 257, 128256, 1 << 24, 2147483647})
        for (const std::size_t length : {1u, 2u, 17u, 3000u}) {
            Ints ids(length);
            for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary));
            expect_grouped(ids, sort_tokens(ids));
        }
}

TEST(TokenOrder, EmptyAndNegative) {
    EXPECT_TRUE(sort_tokens({}).empty());
    EXPECT_THROW(sort_tokens(Ints{4, -100}), CheckError);
}

}  // namespace
}  // namespace unsloth::data
