// Where a pipeline's stages are cut.
#include "unsloth/planner/stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace unsloth::planner {
namespace {

using Ranges = std::vector<spec::LayerRange>;

TEST(Stages, TheLongestTakesLeast) {
    EXPECT_EQ(cut_layers({.layers = 10}, 2), (Ranges{{0, 5}, {5, 10}}));
    EXPECT_EQ(cut_layers({.layers = 10}, 1), (Ranges{{0, 10}}));
    // The head is as long as three layers, the embeddings as one.
    EXPECT_EQ(cut_layers({.embedding = 1, .head = 3, .layers = 10}, 2), (Ranges{{0, 6}, {6, 10}}));
    // What is over goes to the ranks that hold fewer micro-batches.
    EXPECT_EQ(cut_layers({.layers = 10}, 4), (Ranges{{0, 2}, {2, 4}, {4, 7}, {7, 10}}));
}

TEST(Stages, RanksAreEvenWithAllTheirChunks) {
    // As even ranges are 2, 3, 2 and 1 with the head, where the ranks have 4 and 6; here both have 5.
    EXPECT_EQ(cut_layers({.head = 2, .layers = 8}, 2, 2), (Ranges{{0, 2}, {2, 4}, {4, 7}, {7, 8}}));
    // The head alone is a rank's share.
    EXPECT_EQ(cut_layers({.head = 12, .layers = 12}, 2, 2), (Ranges{{0, 5}, {5, 6}, {6, 11}, {11, 12}}));
}

TEST(Stages, KeepToWhatFits) {
    EXPECT_EQ(cut_layers({.layers = 8}, 2, 1, {2, 8}), (Ranges{{0, 2}, {2, 8}}));
    EXPECT_EQ(cut_layers({.layers = 8}, 2, 2, {3, 8}), (Ranges{{0, 1}, {1, 3}, {3, 5}, {5, 8}}));
    EXPECT_TRUE(cut_layers({.layers = 8}, 2, 1, {3, 3}).empty());
    EXPECT_TRUE(cut_layers({.layers = 8}, 2, 2, {1, 8}).empty());
    EXPECT_TRUE(cut_layers({.layers = 1}, 2).empty());
}

/// The slowest rank's time and the slowest range's.
std::pair<double, double> slowest(const PartTimes& times, const std::vector<int>& sizes, int ranks) {
    std::vector<double> of_rank(static_cast<std::size_t>(ranks));
    double range = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        const double time =
            sizes[i] * times.layer + (i == 0 ? times.embedding : 0) + (i + 1 == sizes.size() ? times.head : 0);
        of_rank[i % of_rank.size()] += time;
        range = std::max(range, time);
    }
    return {*std::max_element(of_rank.begin(), of_rank.end()), range};
}

/// Visits all ways to have `left` layers in ranges of at least one.
void all_cuts(std::vector<int>& sizes, std::size_t ranges, int left,
              const std::function<void(const std::vector<int>&)>& visit) {
    if (sizes.size() == ranges) {
        if (left == 0) visit(sizes);
        return;
    }
    for (int size = 1; size <= left; ++size) {
        sizes.push_back(size);
        all_cuts(sizes, ranges, left - size, visit);
        sizes.pop_back();
    }
}

TEST(Stages, NoOtherCutIsBetter) {
    int compared = 0;
    for (const auto& [ranks, chunks] : {std::pair{2, 1}, {3, 1}, {2, 2}, {3, 2}, {2, 3}})
        for (int layers = ranks * chunks - 1; layers <= 10; ++layers)
            for (const double head : {0.0, 0.7, 2.5, 4.0, 9.0})
                for (const double embedding : {0.0, 1.3, 5.0})
                    for (const int of_first : {layers, 2, 3}) {
                        const PartTimes times{.embedding = embedding, .head = head, .layers = layers};
                        std::vector<int> most(static_cast<std::size_t>(ranks), layers), sizes;
                        most.front() = of_first;
                        std::pair<double, double> best{1e9, 1e9};
                        all_cuts(sizes, static_cast<std::size_t>(ranks * chunks), layers,
                                 [&](const std::vector<int>& cut) {
                                     int first = 0;
                                     for (std::size_t i = 0; i < cut.size(); i += most.size()) first += cut[i];
                                     if (first <= of_first) best = std::min(best, slowest(times, cut, ranks));
                                 });
                        const Ranges cut = cut_layers(times, ranks, chunks, most);
                        ASSERT_EQ(cut.empty(), best.first == 1e9) << ranks << " x " << chunks << " of " << layers;
                        if (cut.empty()) continue;
                        int end = 0;
                        for (const spec::LayerRange& range : cut) {
                            EXPECT_EQ(range.begin, std::exchange(end, range.end));
                            sizes.push_back(range.size());
                        }
                        EXPECT_EQ(end, layers);
                        const auto [rank_time, range_time] = slowest(times, sizes, ranks);
                        EXPECT_NEAR(rank_time, best.first, 1e-9) << ranks << " x " << chunks << " of " << layers;
                        EXPECT_NEAR(range_time, best.second, 1e-9) << ranks << " x " << chunks << " of " << layers;
                        ++compared;
                    }
    EXPECT_GT(compared, 1000);
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
