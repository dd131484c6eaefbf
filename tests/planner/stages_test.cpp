// Where a pipeline's stages are cut.
#include "unsloth/planner/stages.h"

#include <gtest/gtest.h>

namespace unsloth::planner {
namespace {

using Ranges = std::vector<spec::LayerRange>;

TEST(Stages, TheLongestTakesLeast) {
    const std::vector<double> ten(10, 1.0);
    EXPECT_EQ(cut_layers({.layers = ten}, 2), (Ranges{{0, 5}, {5, 10}}));
    EXPECT_EQ(cut_layers({.layers = ten}, 1), (Ranges{{0, 10}}));
    // The head is as long as three layers, the embeddings as one.
    EXPECT_EQ(cut_layers({.embedding = 1, .head = 3, .layers = ten}, 2), (Ranges{{0, 6}, {6, 10}}));
    // Three, three and four layers: no other cut is shorter, and none with the same longest is more even.
    Ranges four = cut_layers({.layers = ten}, 4);
    ASSERT_EQ(four.size(), 4U);
    for (const spec::LayerRange& range : four) EXPECT_GE(range.size(), 2);
    EXPECT_EQ(cut_layers({.layers = {5, 1, 1, 1, 1, 1}}, 2), (Ranges{{0, 1}, {1, 6}}));
}

TEST(Stages, KeepToWhatFits) {
    const PartTimes times{.layers = std::vector<double>(8, 1.0)};
    const auto fits = [](int number, const spec::LayerRange& range) { return number > 0 || range.size() <= 2; };
    EXPECT_EQ(cut_layers(times, 2, fits), (Ranges{{0, 2}, {2, 8}}));
    EXPECT_TRUE(cut_layers(times, 2, [](int, const spec::LayerRange& range) { return range.size() <= 3; }).empty());
    EXPECT_TRUE(cut_layers({.layers = {1}}, 2).empty());
}

TEST(Stages, AStageHasItsChunksAndTheirBorders) {
    const spec::Stage stage{1, 2, {{0, 2}, {2, 4}, {4, 6}, {6, 8}}};
    EXPECT_EQ(stage.layers(8), (std::vector<int>{2, 3, 6, 7}));
    EXPECT_TRUE(stage.is_border(2) && stage.is_border(4) && stage.is_border(6));
    EXPECT_FALSE(stage.is_border(0) || stage.is_border(3));
    EXPECT_FALSE(stage.holds(spec::TensorRole::embed_tokens, -1, false));
    EXPECT_TRUE(stage.holds(spec::TensorRole::embed_tokens, -1, /*tied=*/true));
    EXPECT_TRUE(stage.holds(spec::TensorRole::lm_head, -1, false));
    EXPECT_TRUE(spec::Stage().has(5) && spec::Stage().first() && spec::Stage().last());
}

}  // namespace
}  // namespace unsloth::planner
