// Ranks take the rows of one process.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "data/loader_support.h"

namespace unsloth::data {
namespace {

using Rows = std::vector<int64_t>;

/// The rows of a step over all ranks, micro-batch by micro-batch; checks what must agree between the ranks.
std::vector<Rows> gather(const Dataset& data, LoaderOptions options, int world, int64_t number) {
    std::vector<Rows> rounds;
    StepBatch first;
    int64_t labels = 0, tokens = 0;
    for (int rank = 0; rank < world; ++rank) {
        options.rank = rank;
        options.world_size = world;
        const StepBatch step = StepLoader(data, options).step(number);
        if (rank == 0) first = step;
        rounds.resize(step.micro.size());
        EXPECT_EQ(step.micro.size(), first.micro.size());
        EXPECT_EQ(step.labels, first.labels);
        EXPECT_EQ(step.tokens, first.tokens);
        EXPECT_EQ(step.epoch, first.epoch);
        for (std::size_t k = 0; k < step.micro.size(); ++k) {
            const Rows& rows = step.micro[k].rows;
            EXPECT_LE(static_cast<int64_t>(rows.size()), options.per_device_train_batch_size);
            rounds[k].insert(rounds[k].end(), rows.begin(), rows.end());
            labels += step.micro[k].labels;
            tokens += step.micro[k].tokens();
        }
    }
    EXPECT_EQ(labels, first.labels);
    EXPECT_EQ(tokens, first.tokens);
    return rounds;
}

/// Numbers in ascending order: how a round's rows lie on the ranks is theirs.
Rows sorted(Rows rows) {
    std::sort(rows.begin(), rows.end());
    return rows;
}

TEST(StepLoader, AnyWorldSizeTakesTheSameRowsInAStep) {
    for (const int64_t count : {64, 61, 37, 3}) {
        const Dataset data = Dataset::from_samples(toy::samples(count, 5));
        const int64_t steps = StepLoader(data, loader_options(2, 8, true)).steps_per_epoch();
        for (int64_t step = 0; step < 2 * steps; ++step) {
            const auto alone = gather(data, loader_options(2, 8, true), 1, step);
            for (const auto& [world, accumulation] : {std::pair{2, 4}, std::pair{4, 2}}) {
                const auto shared = gather(data, loader_options(2, accumulation, true), world, step);
                EXPECT_EQ(sorted(flat_rows(shared)), sorted(flat_rows(alone)))
                    << count << " rows, world " << world << ", step " << step;
            }
        }
    }
}

TEST(StepLoader, ASmallRoundIsSharedEvenly) {
    const Dataset data = Dataset::from_samples(toy::samples(5, 0));
    LoaderOptions four = loader_options(2, 1);
    four.world_size = 4;
    std::vector<Rows> ranks;
    for (four.rank = 0; four.rank < 4; ++four.rank) ranks.push_back(StepLoader(data, four).step(0).micro.at(0).rows);
    Rows all;
    for (const Rows& rows : ranks) all.insert(all.end(), rows.begin(), rows.end());
    EXPECT_EQ(sorted(all), (Rows{0, 1, 2, 3, 4}));
    EXPECT_EQ(ranks[0].size(), 2U);
    for (std::size_t r = 1; r < 4; ++r) EXPECT_EQ(ranks[r].size(), 1U);

    LoaderOptions last = loader_options(2, 1);
    last.world_size = 8;
    last.rank = 7;
    const StepBatch step = StepLoader(data, last).step(0);
    ASSERT_EQ(step.micro.size(), 1u);  // takes part with nothing
    EXPECT_EQ(step.micro[0].tokens(), 0);
    EXPECT_EQ(step.labels, 5);
}

TEST(StepLoader, RanksTakeAboutAsManyTokens) {
    constexpr int world = 4;
    std::vector<Sample> samples;
    for (int64_t row = 0; row < 64; ++row) {
        Sample& sample = samples.emplace_back();
        sample.row = row;
        const int64_t length = 1 + row * row % 97;
        for (int64_t t = 0; t < length; ++t) {
            sample.ids.push_back(3);
            sample.labels.push_back(3);
            sample.positions.push_back(static_cast<int32_t>(t));
        }
    }
    const Dataset data = Dataset::from_samples(samples);
    int64_t slowest = 0, total = 0, in_order = 0;
    LoaderOptions one = loader_options(4 * world, 1);
    for (int64_t number = 0; number < 4; ++number) {
        int64_t most = 0;
        LoaderOptions shared = loader_options(4, 1);
        shared.world_size = world;
        for (shared.rank = 0; shared.rank < world; ++shared.rank)
            most = std::max(most, StepLoader(data, shared).step(number).micro.at(0).tokens());
        slowest += most;
        const Rows rows = StepLoader(data, one).step(number).micro.at(0).rows;
        int64_t most_in_order = 0;
        for (int rank = 0; rank < world; ++rank) {
            int64_t tokens = 0;
            for (int i = 0; i < 4; ++i) tokens += data.tokens(rows.at(static_cast<std::size_t>(4 * rank + i)));
            most_in_order = std::max(most_in_order, tokens);
            total += tokens;
        }
        in_order += most_in_order;
    }
    EXPECT_LT(world * slowest, 1.06 * static_cast<double>(total));
    EXPECT_GT(world * in_order, 1.2 * static_cast<double>(total))
        << "rows that differ enough for the test to mean something";
}

TEST(StepLoader, MicroBatchesFilledByTokens) {
    const Dataset data = Dataset::from_samples(toy::samples(203, 20));
    LoaderOptions filled = loader_options(1, 2, true);
    filled.max_tokens_per_batch = 64;
    StepLoader loader(data, filled);
    const BatchLimits limits = loader.limits();
    EXPECT_LE(limits.tokens, 64);
    EXPECT_GT(static_cast<double>(data.stats().tokens), 0.97 * 64 * static_cast<double>(loader.batches_per_epoch()));
    std::vector<Rows> first_epoch;
    for (int epoch = 0; epoch < 3; ++epoch) {
        Rows seen;
        for (int64_t k = 0; k < loader.steps_per_epoch(); ++k) {
            const StepBatch step = loader.step(epoch * loader.steps_per_epoch() + k);
            EXPECT_EQ(step.epoch_index, static_cast<uint32_t>(epoch));
            int64_t tokens = 0;
            for (const Batch& batch : step.micro) {
                EXPECT_LE(batch.tokens(), limits.tokens);
                EXPECT_LE(static_cast<int64_t>(batch.segments.size()) - 1, limits.segments);
                EXPECT_LE(batch.labels, limits.labels);
                tokens += batch.tokens();
                if (epoch == 0)
                    first_epoch.push_back(batch.rows);
                else
                    EXPECT_EQ(std::count(first_epoch.begin(), first_epoch.end(), batch.rows) > 3, false);
            }
            EXPECT_EQ(step.tokens, tokens);
            const Rows rows = flat_rows(rows_by_micro_batch(step));
            seen.insert(seen.end(), rows.begin(), rows.end());
        }
        std::sort(seen.begin(), seen.end());
        Rows all(203);
        std::iota(all.begin(), all.end(), 0);
        EXPECT_EQ(seen, all) << "epoch " << epoch;
    }
    StepLoader again(data, filled);
    EXPECT_EQ(rows_by_micro_batch(again.step(loader.steps_per_epoch() + 1)),
              rows_by_micro_batch(loader.step(loader.steps_per_epoch() + 1)));
    EXPECT_NE(rows_by_micro_batch(loader.step(0)), rows_by_micro_batch(loader.step(loader.steps_per_epoch())));
    toy::expect_contains(describe(loader), {"at most 64 tokens a micro-batch", "% full"});
    filled.max_tokens_per_batch = 21;
    toy::expect_contains(toy::message_of("data.row-exceeds-batch", [&] { StepLoader(data, filled); }),
                         {"max_tokens_per_batch is 21", "22 tokens"});
}

TEST(StepLoader, FilledMicroBatchesAreTheSameForAnyWorldSize) {
    const Dataset data = Dataset::from_samples(toy::samples(101, 20));
    LoaderOptions alone = loader_options(1, 4, true);
    alone.max_tokens_per_batch = 50;
    StepLoader one(data, alone);
    for (int64_t number = 0; number < 2 * one.steps_per_epoch(); ++number) {
        const std::vector<Rows> expected = rows_by_micro_batch(one.step(number));
        std::vector<Rows> shared(4);
        for (int rank = 0; rank < 2; ++rank) {
            LoaderOptions two = alone;
            two.gradient_accumulation_steps = 2;
            two.world_size = 2;
            two.rank = rank;
            const std::vector<Rows> own = rows_by_micro_batch(StepLoader(data, two).step(number));
            for (std::size_t k = 0; k < own.size(); ++k) shared[2 * k + static_cast<std::size_t>(rank)] = own[k];
        }
        EXPECT_EQ(flat_rows(shared), flat_rows(expected)) << "step " << number;
    }
}

}  // namespace
}  // namespace unsloth::data
