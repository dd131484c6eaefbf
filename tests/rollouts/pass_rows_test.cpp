// Completions that share their prompt's tokens in a pass, and what passes are planned for.
#include <gtest/gtest.h>

#include <random>

#include "unsloth/data/batch.h"
#include "unsloth/rollouts/generation.h"

namespace unsloth::rollouts {
namespace {

using Rows = std::vector<std::shared_ptr<const data::SampledRow>>;

std::shared_ptr<const data::SampledRow> row_of(std::vector<int32_t> prompt, std::vector<int32_t> ids) {
    return std::make_shared<data::SampledRow>(data::SampledRow{.prompt = std::move(prompt), .ids = std::move(ids)});
}

TEST(SharedPrompts, ARowOfEachPromptHasItsCompletionsAsSegments) {
    const Rows rows{row_of({1, 2, 3}, {4, 5}), row_of({1, 2, 3}, {6}), row_of({1, 2, 3}, {7, 8, 9}),
                    row_of({1, 2}, {4})};
    const std::vector<std::size_t> places{10, 11, 12, 13};
    const std::vector<data::Sample> samples = samples_of(rows, places, 4);
    ASSERT_EQ(samples.size(), 2U);
    EXPECT_EQ(samples[0].row, 10);
    EXPECT_EQ(samples[1].row, 13);
    const data::Batch batch = data::make_batch(samples);
    EXPECT_EQ(batch.ids_T, (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 4}));
    EXPECT_EQ(batch.positions_T, (std::vector<int32_t>{0, 1, 2, 3, 4, 3, 3, 4, 5, 0, 1, 2}));
    EXPECT_EQ(batch.segments, (std::vector<int32_t>{0, 5, 6, 9, 12}));
    // The last token of a prompt predicts the first one of each completion.
    EXPECT_EQ(batch.target_index, (std::vector<int32_t>{2, 3, 2, 2, 6, 7, 10}));
    EXPECT_EQ(batch.target_ids, (std::vector<int32_t>{4, 5, 6, 7, 8, 9, 4}));
    EXPECT_EQ(batch.target_starts, (std::vector<int32_t>{0, 2, 3, 6, 7}));
}

TEST(SharedPrompts, OnlyNeighboursShareAndNoMoreThanAGroup) {
    const Rows rows{row_of({1}, {2}), row_of({1}, {3}), row_of({1}, {4}), row_of({1}, {5})};
    const auto sizes = [&](const std::vector<std::size_t>& places, int64_t most) {
        std::vector<std::size_t> segments;
        for (const data::Sample& sample : samples_of(rows, places, most))
            segments.push_back(std::max<std::size_t>(1, sample.segments.size()));
        return segments;
    };
    EXPECT_EQ(sizes({0, 1, 2, 3}, 3), (std::vector<std::size_t>{3, 1}));
    EXPECT_EQ(sizes({0, 1, 4, 5}, 4), (std::vector<std::size_t>{2, 2}));
}

/// Random lengths in random shapes of a run: no pass has more than was planned for.
TEST(SharedPrompts, PassesStayWithinTheirLimits) {
    std::mt19937 random(3);
    const auto pick = [&](int64_t low, int64_t high) {
        return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    for (int trial = 0; trial < 300; ++trial) {
        config::Config config;
        const int ranks = static_cast<int>(pick(1, 3));
        config.grpo.num_generations = pick(2, 5);
        config.training.per_device_train_batch_size = pick(1, 6) * (pick(0, 1) != 0 ? config.grpo.num_generations : 1);
        config.grpo.steps_per_generation = config.grpo.num_generations * pick(1, 2);
        config.training.gradient_accumulation_steps = pick(1, 6);
        const RolloutOrder order(config, ranks);
        Rows rows;
        std::vector<data::Sample> wholes;
        for (int64_t group = 0; group < order.groups(); ++group) {
            const std::vector<int32_t> prompt(static_cast<std::size_t>(pick(1, 9)), static_cast<int32_t>(group));
            for (int64_t c = 0; c < order.group_size; ++c) {
                rows.push_back(row_of(prompt, std::vector<int32_t>(static_cast<std::size_t>(pick(1, 6)), 1)));
                wholes.push_back(sample_of(prompt, rows.back()->ids, static_cast<int64_t>(wholes.size())));
            }
        }
        const int64_t pass_rows = pick(1, 2 * config.training.per_device_train_batch_size);
        const data::BatchLimits limits = pass_limits(data::Dataset::from_samples(wholes), order, ranks, pass_rows);
        const int64_t each = order.rows_each / ranks;
        for (int rank = 0; rank < ranks; ++rank)
            for (int64_t slice = 0; slice < order.slices; ++slice) {
                std::vector<std::size_t> own;
                for (int64_t k = slice; k < order.slices; ++k)
                    for (int64_t j = 0; j < each; ++j)
                        own.push_back(static_cast<std::size_t>(k * order.rows_each + rank * each + j));
                for (std::size_t first = 0; first < own.size(); first += static_cast<std::size_t>(pass_rows)) {
                    const std::size_t count = std::min(own.size() - first, static_cast<std::size_t>(pass_rows));
                    Rows some;
                    for (std::size_t i = 0; i < count; ++i) some.push_back(rows[own[first + i]]);
                    const data::Batch batch =
                        data::make_batch(samples_of(some, std::span(own).subspan(first, count), order.group_size));
                    int64_t keys = 0;
                    for (std::size_t s = 0; s + 1 < batch.segments.size(); ++s) keys += batch.length(s);
                    ASSERT_LE(batch.tokens(), limits.tokens) << trial;
                    ASSERT_LE(keys, limits.keys) << trial;
                    ASSERT_LE(batch.labels, limits.labels) << trial;
                    ASSERT_LE(batch.longest, limits.longest) << trial;
                    ASSERT_LE(static_cast<int64_t>(batch.segments.size()) - 1, limits.segments) << trial;
                }
            }
    }
}

}  // namespace
}  // namespace unsloth::rollouts
