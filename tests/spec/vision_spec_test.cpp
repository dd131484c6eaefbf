#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "unsloth/core/error.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::spec {
namespace {

using Ints32 = std::vector<int32_t>;

VisionSpec small_tower() {
    return {.hidden_size = 8,
            .intermediate_size = 12,
            .depth = 2,
            .num_heads = 2,
            .out_size = 16,
            .patch_size = 4,
            .merge = 2};
}

TEST(VisionSpec, PatchesOfATokenLieTogether) {
    const PatchOrder order = patch_order(small_tower(), 4, 6);
    EXPECT_EQ(order.tokens, (Ints32{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(order.windows, (Ints32{0, 24}));
    EXPECT_EQ(Ints32(order.rows.begin(), order.rows.begin() + 5), (Ints32{0, 0, 1, 1, 0}));
    EXPECT_EQ(Ints32(order.columns.begin(), order.columns.begin() + 5), (Ints32{0, 1, 0, 1, 2}));
    EXPECT_EQ(order.rows.back(), 3);
    EXPECT_EQ(order.columns.back(), 5);
    EXPECT_THROW(patch_order(small_tower(), 3, 6), CheckError);
}

TEST(VisionSpec, WindowsEndWhereTheImageDoes) {
    VisionSpec tower = small_tower();
    tower.window = 2;
    tower.unwindowed = {1};
    EXPECT_TRUE(tower.attends_in_windows(0));
    EXPECT_FALSE(tower.attends_in_windows(1));
    const PatchOrder order = patch_order(tower, 6, 6);  // 3 x 3 tokens
    EXPECT_EQ(order.tokens, (Ints32{0, 1, 3, 4, 2, 5, 6, 7, 8}));
    EXPECT_EQ(order.windows, (Ints32{0, 16, 24, 32, 36}));
    EXPECT_EQ(std::set<int32_t>(order.patches.begin(), order.patches.end()).size(), 36U);
}

TEST(VisionSpec, LearnedPositionsReachFromCornerToCorner) {
    VisionSpec tower = small_tower();
    tower.position_side = 5;
    const PatchOrder order = patch_order(tower, 4, 2);
    const PatchPositions positions = patch_positions(tower, order, 4, 2);
    ASSERT_EQ(positions.index.size(), 32U);
    const auto place = [&](std::size_t patch) {
        double y = 0, x = 0, whole = 0;
        for (std::size_t j = 4 * patch; j < 4 * patch + 4; ++j) {
            y += positions.share[j] * (positions.index[j] / 5);
            x += positions.share[j] * (positions.index[j] % 5);
            whole += positions.share[j];
        }
        EXPECT_NEAR(whole, 1, 1e-6);
        return std::pair(y, x);
    };
    EXPECT_EQ(place(0), (std::pair<double, double>{0, 0}));
    EXPECT_EQ(place(1), (std::pair<double, double>{0, 4}));
    EXPECT_NEAR(place(2).first, 4.0 / 3, 1e-6);
    EXPECT_EQ(place(7), (std::pair<double, double>{4, 4}));
}

TEST(RopeSpec, FrequenciesHaveAnAxis) {
    ModelSpec spec;
    spec.head_dim = 16;
    RopeSpec rope{.sections = {2, 3, 3}};
    EXPECT_EQ(rope_axes(spec, rope), (Ints32{0, 0, 1, 1, 1, 2, 2, 2}));
    rope.interleaved = true;
    rope.sections = {4, 2, 2};
    EXPECT_EQ(rope_axes(spec, rope), (Ints32{0, 1, 2, 0, 1, 2, 0, 0}));
    EXPECT_FALSE(RopeSpec{}.by_axes());
}

TEST(ModelSpec, PartsAreStoredUnderThreeNames) {
    ModelSpec spec;
    EXPECT_EQ(spec.stored_name("model.norm.weight"), "model.norm.weight");
    spec.part_of = "some";
    EXPECT_EQ(spec.stored_name("lm_head.weight"), "language_model.lm_head.weight");
    spec.part_names = PartNames::within;
    EXPECT_EQ(spec.stored_name("model.norm.weight"), "model.language_model.norm.weight");
    EXPECT_EQ(spec.stored_name("lm_head.weight"), "lm_head.weight");
    spec.part_names = PartNames::none;
    EXPECT_EQ(spec.stored_name("model.norm.weight"), "model.norm.weight");
}

}  // namespace
}  // namespace unsloth::spec
