#include "unsloth/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "data/toy.h"
#include "unsloth/data/describe.h"
#include "unsloth/data/prefetch.h"

namespace unsloth::data {
namespace {

using Rows = std::vector<int64_t>;

LoaderOptions options(int64_t batch, int64_t accumulation, bool shuffle = false) {
    LoaderOptions options;
    options.per_device_train_batch_size = batch;
    options.gradient_accumulation_steps = accumulation;
    options.shuffle = shuffle;
    options.seed = 3407;
    return options;
}

/// Source rows of each micro-batch.
std::vector<Rows> rows_of(const StepBatch& step) {
    std::vector<Rows> rows;
    for (const Batch& batch : step.micro) rows.push_back(batch.rows);
    return rows;
}

Rows flat(const std::vector<Rows>& parts) {
    Rows all;
    for (const Rows& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
}

TEST(StepLoader, GroupsRowsAndEndsTheEpochWithASmallerStep) {
    StepLoader loader(Dataset::from_samples(toy::samples(11, 4)), options(2, 2));
    ASSERT_EQ(loader.steps_per_epoch(), 3);
    EXPECT_EQ(rows_of(loader.step(0)), (std::vector<Rows>{{0, 1}, {2, 3}}));
    EXPECT_EQ(rows_of(loader.step(1)), (std::vector<Rows>{{4, 5}, {6, 7}}));
    EXPECT_EQ(rows_of(loader.step(2)), (std::vector<Rows>{{8, 9}, {10}}));
    EXPECT_EQ(rows_of(loader.step(3)), (std::vector<Rows>{{0, 1}, {2, 3}}));  // the next epoch starts afresh

    StepLoader fewer(Dataset::from_samples(toy::samples(10, 4)), options(2, 4));
    ASSERT_EQ(fewer.steps_per_epoch(), 2);
    EXPECT_EQ(rows_of(fewer.step(1)), (std::vector<Rows>{{8, 9}}));  // one micro-batch instead of four
}

TEST(StepLoader, RegroupedStepsHaveTheSameRowsInOtherMicroBatches) {
    StepLoader loader(Dataset::from_samples(toy::samples(11, 4)), options(2, 2));
    StepLoader given(Dataset::from_samples(toy::samples(11, 4)), options(2, 2));
    EXPECT_EQ(loader.passes_of_step(), 2);
    const int64_t two_rows = loader.limits().tokens;
    loader.set_pass_rows(4);
    EXPECT_EQ(loader.passes_of_step(), 1);
    EXPECT_EQ(rows_of(loader.step(0)), (std::vector<Rows>{{0, 1, 2, 3}}));
    EXPECT_EQ(rows_of(loader.step(2)), (std::vector<Rows>{{8, 9, 10}}));
    EXPECT_GT(loader.limits().tokens, two_rows);
    loader.set_pass_rows(3);
    EXPECT_EQ(rows_of(loader.step(1)), (std::vector<Rows>{{4, 5, 6}, {7}}));
    loader.set_pass_rows(1);
    EXPECT_LT(loader.limits().tokens, two_rows);
    for (int64_t number = 0; number < 4; ++number) {
        const StepBatch regrouped = loader.step(number), step = given.step(number);
        EXPECT_EQ(flat(rows_of(regrouped)), flat(rows_of(step)));
        EXPECT_EQ(regrouped.micro.size(), step.rows);
        EXPECT_EQ(regrouped.labels, step.labels);
        EXPECT_EQ(regrouped.tokens, step.tokens);
        EXPECT_EQ(regrouped.epoch, step.epoch);
    }
}

TEST(StepLoader, RegroupedRanksTakeTheSameRowsAndAsManyMicroBatches) {
    for (const int64_t rows : {1, 3, 8}) {
        std::size_t passes = 0;
        for (int rank = 0; rank < 2; ++rank) {
            LoaderOptions mine = options(2, 2);
            mine.rank = rank;
            mine.world_size = 2;
            StepLoader given(Dataset::from_samples(toy::samples(11, 4)), mine),
                loader(Dataset::from_samples(toy::samples(11, 4)), mine);
            loader.set_pass_rows(rows);
            const StepBatch last = loader.step(1);  // of 3 rows, which two ranks share
            if (rank == 0) passes = last.micro.size();
            EXPECT_EQ(last.micro.size(), passes) << rows;
            EXPECT_EQ(flat(rows_of(last)), flat(rows_of(given.step(1)))) << rows;
        }
    }
}

TEST(StepLoader, EpochCountsMicroBatchesAsTheTrainerDoes) {
    StepLoader loader(Dataset::from_samples(toy::samples(11, 4)), options(2, 2));  // 6 micro-batches an epoch
    const std::vector<double> expected{2.0 / 6, 4.0 / 6, 1.0, 1 + 2.0 / 6, 1 + 4.0 / 6, 2.0};
    for (std::size_t step = 0; step < expected.size(); ++step) {
        const StepBatch batch = loader.step(static_cast<int64_t>(step));
        EXPECT_DOUBLE_EQ(batch.epoch, expected[step]);
        EXPECT_EQ(batch.epoch_index, step / 3);
    }
}

TEST(StepLoader, TotalSteps) {
    const StepLoader loader(Dataset::from_samples(toy::samples(11, 4)), options(2, 2));
    EXPECT_EQ(loader.total_steps(1, -1), 3);
    EXPECT_EQ(loader.total_steps(2.5, -1), 8);
    EXPECT_EQ(loader.total_steps(0.1, -1), 1);
    EXPECT_EQ(loader.total_steps(1, 50), 50);
    EXPECT_EQ(loader.total_steps(1, 0), 0);
    toy::expect_contains(toy::message_of("option.out-of-range", [&] { loader.total_steps(0, -1); }),
                         {"num_train_epochs"});
}

TEST(StepLoader, CountsAreThoseOfAllMicroBatches) {
    std::vector<Sample> samples = toy::samples(11, 6);
    for (Sample& sample : samples) sample.labels[1] = sample.row % 2 ? ignore_label : sample.labels[1];
    StepLoader loader(Dataset::from_samples(samples), options(2, 2, true));
    for (int64_t number = 0; number < 6; ++number) {
        const StepBatch step = loader.step(number);
        int64_t labels = 0, tokens = 0;
        for (const Batch& batch : step.micro) {
            labels += std::count_if(batch.targets_T.begin(), batch.targets_T.end(),
                                    [](int32_t t) { return t != ignore_label; });
            tokens += batch.tokens();
        }
        EXPECT_EQ(step.labels, labels);
        EXPECT_EQ(step.tokens, tokens);
    }
}

TEST(StepLoader, ShufflesEveryEpochAnewAndNeedsNoHistory) {
    const Dataset data = Dataset::from_samples(toy::samples(50, 4));
    StepLoader loader(data, options(4, 3, true));
    const int64_t per_epoch = loader.steps_per_epoch();
    std::vector<Rows> epochs;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
        Rows rows;
        for (int64_t step = 0; step < per_epoch; ++step) {
            const Rows part = flat(rows_of(loader.step(epoch * per_epoch + step)));
            rows.insert(rows.end(), part.begin(), part.end());
        }
        epochs.push_back(rows);
        std::sort(rows.begin(), rows.end());
        Rows all(50);
        std::iota(all.begin(), all.end(), 0);
        EXPECT_EQ(rows, all) << "epoch " << epoch;
    }
    EXPECT_NE(epochs[0], epochs[1]);
    EXPECT_NE(epochs[1], epochs[2]);

    StepLoader resumed(data, options(4, 3, true));
    for (const int64_t step : {2 * per_epoch + 1, int64_t{1}, per_epoch})
        EXPECT_EQ(rows_of(resumed.step(step)), rows_of(loader.step(step)));
    LoaderOptions other = options(4, 3, true);
    other.seed = 1;
    EXPECT_NE(rows_of(StepLoader(data, other).step(0)), rows_of(loader.step(0)));
}

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
        const int64_t steps = StepLoader(data, options(2, 8, true)).steps_per_epoch();
        for (int64_t step = 0; step < 2 * steps; ++step) {
            const auto alone = gather(data, options(2, 8, true), 1, step);
            for (const auto& [world, accumulation] : {std::pair{2, 4}, std::pair{4, 2}}) {
                const auto shared = gather(data, options(2, accumulation, true), world, step);
                EXPECT_EQ(sorted(flat(shared)), sorted(flat(alone)))
                    << count << " rows, world " << world << ", step " << step;
            }
        }
    }
}

TEST(StepLoader, ASmallRoundIsSharedEvenly) {
    const Dataset data = Dataset::from_samples(toy::samples(5, 0));
    LoaderOptions four = options(2, 1);
    four.world_size = 4;
    std::vector<Rows> ranks;
    for (four.rank = 0; four.rank < 4; ++four.rank) ranks.push_back(StepLoader(data, four).step(0).micro.at(0).rows);
    Rows all;
    for (const Rows& rows : ranks) all.insert(all.end(), rows.begin(), rows.end());
    EXPECT_EQ(sorted(all), (Rows{0, 1, 2, 3, 4}));
    EXPECT_EQ(ranks[0].size(), 2U);
    for (std::size_t r = 1; r < 4; ++r) EXPECT_EQ(ranks[r].size(), 1U);

    LoaderOptions last = options(2, 1);
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
    LoaderOptions one = options(4 * world, 1);
    for (int64_t number = 0; number < 4; ++number) {
        int64_t most = 0;
        LoaderOptions shared = options(4, 1);
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

TEST(StepLoader, TokenOrderOnlyWhenAsked) {
    const Dataset data = Dataset::from_samples(toy::samples(8, 5));
    LoaderOptions asked = options(4, 1);
    EXPECT_TRUE(StepLoader(data, asked).step(0).micro[0].token_order.empty());
    asked.order_tokens = true;
    const Batch batch = StepLoader(data, asked).step(0).micro[0];
    const TokenOrder expected = sort_tokens(batch.ids_T);
    ASSERT_FALSE(expected.empty());
    EXPECT_EQ(batch.token_order.order, expected.order);
    EXPECT_EQ(batch.token_order.unique, expected.unique);
    EXPECT_EQ(batch.token_order.starts, expected.starts);
}

TEST(StepLoader, PiecesOfARowAreDrawnOneByOne) {
    const toy::Folder folder;
    DatasetOptions rows;
    rows.max_seq_length = 5;
    const toy::Encoder encoder;
    const Dataset data =
        Dataset::load(folder.write("a.jsonl", "{\"text\": \"" + std::string(200, 'x') + "\"}\n"), rows, &encoder);
    ASSERT_GT(data.size(), 40);
    StepLoader loader(data, options(1, data.size(), true));
    const StepBatch step = loader.step(0);
    std::set<int32_t> dropout;  // what the masks are drawn for
    for (const Batch& batch : step.micro) dropout.insert(batch.row_T.front());
    EXPECT_EQ(dropout.size(), static_cast<std::size_t>(data.size()));
    EXPECT_EQ(step.tokens, data.stats().tokens);
    // The last piece, which alone ends with EOS, comes somewhere in between.
    EXPECT_NE(step.micro.back().ids_T.back(), toy::eos);
    EXPECT_EQ(loader.step(0).micro.front().ids_T,
              StepLoader(data, options(1, data.size(), true)).step(0).micro[0].ids_T);
}

TEST(StepLoader, UnusableOptionsAndDataAreRefused) {
    const Dataset data = Dataset::from_samples(toy::samples(8, 5));
    const auto refused = [&](const Dataset& rows, const LoaderOptions& wrong) {
        return toy::message_of(ErrorKind::usage, [&] { StepLoader(rows, wrong); });
    };
    toy::expect_contains(refused(Dataset(), options(1, 1)), {"no rows"});
    toy::expect_contains(refused(data, options(0, 1)), {"per_device_train_batch_size is 0"});
    toy::expect_contains(refused(data, options(1, 0)), {"gradient_accumulation_steps is 0"});
    LoaderOptions packing = options(1, 1);
    packing.packing = true;
    toy::expect_contains(refused(data, packing), {"max_seq_length", "packing"});
}

TEST(PackRows, BestFitDecreasing) {
    // 10 | 7 3 | 6 4 | 3 2: first fit in order would leave 6 and 7 apart from what completes them.
    EXPECT_EQ(pack_rows({4, 3, 6, 7, 3, 10, 2}, 10), (std::vector<Rows>{{0, 2}, {1, 3}, {4, 6}, {5}}));
    EXPECT_EQ(pack_rows({5, 5, 5, 5}, 10), (std::vector<Rows>{{0, 1}, {2, 3}}));
    EXPECT_EQ(pack_rows({12, 1}, 10), (std::vector<Rows>{{0}, {1}}));
    EXPECT_TRUE(pack_rows({}, 10).empty());
}

TEST(PackRows, NeverOverflowsAndTakesEachSampleOnce) {
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < 5000; ++i) lengths.push_back(1 + (i * int64_t{2654435761} >> 8) % 100);
    const auto rows = pack_rows(lengths, 100);
    int64_t total = 0;
    Rows all;
    for (const Rows& row : rows) {
        int64_t used = 0;
        for (const int64_t i : row) used += lengths[static_cast<std::size_t>(i)];
        EXPECT_LE(used, 100);
        EXPECT_TRUE(std::is_sorted(row.begin(), row.end()));
        total += used;
        all.insert(all.end(), row.begin(), row.end());
    }
    std::sort(all.begin(), all.end());
    Rows expected(5000);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(all, expected);
    EXPECT_GT(static_cast<double>(total), 0.99 * 100 * static_cast<double>(rows.size()));
    std::reverse(lengths.begin(), lengths.end());
    EXPECT_EQ(pack_rows(lengths, 100).size(), rows.size());
}

TEST(StepLoader, PackedRowsKeepTheirSamplesApart) {
    const Dataset data = Dataset::from_samples(toy::samples(200, 20));
    LoaderOptions packing = options(2, 2, true);
    packing.packing = true;
    packing.max_seq_length = 64;
    StepLoader loader(data, packing);
    EXPECT_LT(loader.rows_per_epoch(), 60);
    Rows seen;
    for (int64_t number = 0; number < loader.steps_per_epoch(); ++number) {
        const StepBatch step = loader.step(number);
        for (const Batch& batch : step.micro) {
            EXPECT_LE(batch.tokens(), 2 * 64);
            ASSERT_EQ(batch.segments.size(), batch.rows.size() + 1);
            for (std::size_t s = 0; s < batch.rows.size(); ++s) {
                // Each segment is one whole sample with its own positions; its targets stay inside.
                const int64_t row = batch.rows[s];
                const auto begin = static_cast<std::size_t>(batch.segments[s]),
                           end = static_cast<std::size_t>(batch.segments[s + 1]);
                const Sample sample = data.sample(row);
                ASSERT_EQ(end - begin, sample.ids.size());
                for (std::size_t t = begin; t < end; ++t) {
                    EXPECT_EQ(batch.ids_T[t], sample.ids[t - begin]);
                    EXPECT_EQ(batch.positions_T[t], static_cast<int32_t>(t - begin));
                    EXPECT_EQ(batch.row_T[t], row);
                    EXPECT_EQ(batch.targets_T[t], t + 1 == end ? ignore_label : sample.ids[t + 1 - begin]);
                }
            }
            seen.insert(seen.end(), batch.rows.begin(), batch.rows.end());
        }
    }
    EXPECT_EQ(seen.size(), 200u);
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
    toy::expect_contains(describe(loader), {"200 rows", "packed into", "64 tokens"});
}

/// Two files of rows {input_ids} as two sources: 3 rows and 12.
Dataset two_sources(const toy::Folder& folder) {
    std::string small, large;
    for (int row = 0; row < 3; ++row) small += cat("{\"input_ids\": [1, 2, ", row, "]}\n");
    for (int row = 3; row < 15; ++row) large += cat("{\"input_ids\": [1, 2, ", row, ", 4]}\n");
    const std::vector<config::DataSource> sources{{.path = folder.write("small.jsonl", small).string()},
                                                  {.path = folder.write("large.jsonl", large).string()}};
    return Dataset::load(sources, {}, [](const std::string&) { return nullptr; });
}

TEST(StepLoader, ARowThatRepeatsInAnEpochDrawsItsOwnDropout) {
    const toy::Folder folder;
    const Dataset data = two_sources(folder);
    LoaderOptions weighted = options(2, 2, true);
    weighted.source_weights = {1, 1};  // 8 of 15 rows come of 3
    for (const int world_size : {1, 2}) {
        std::map<int64_t, std::set<int32_t>> names;  // of each row, in one epoch
        std::set<int32_t> all;
        int64_t places = 0;
        for (int rank = 0; rank < world_size; ++rank) {
            weighted.rank = rank;
            weighted.world_size = world_size;
            weighted.gradient_accumulation_steps = 2 / world_size;
            StepLoader loader(data, weighted);
            for (int64_t number = loader.steps_per_epoch(); number < 2 * loader.steps_per_epoch(); ++number)
                for (const Batch& batch : loader.step(number).micro)
                    for (std::size_t s = 0; s < batch.rows.size(); ++s, ++places) {
                        const int32_t name = batch.row_T[static_cast<std::size_t>(batch.segments[s])];
                        EXPECT_GE(name, 0);
                        EXPECT_EQ(name % 15, batch.rows[s]);  // row + k x 15
                        EXPECT_TRUE(all.insert(name).second) << "two rows of an epoch share dropout masks: " << name;
                        names[batch.rows[s]].insert(name);
                    }
        }
        EXPECT_EQ(places, 16);
        for (int64_t row = 0; row < 3; ++row) EXPECT_GE(names[row].size(), 2u);
        for (const auto& [row, own] : names)
            EXPECT_TRUE(own.contains(static_cast<int32_t>(row))) << "the first coming goes by the row's id";
    }
}

TEST(StepLoader, MicroBatchesFilledByTokens) {
    const Dataset data = Dataset::from_samples(toy::samples(203, 20));
    LoaderOptions filled = options(1, 2, true);
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
            const Rows rows = flat(rows_of(step));
            seen.insert(seen.end(), rows.begin(), rows.end());
        }
        std::sort(seen.begin(), seen.end());
        Rows all(203);
        std::iota(all.begin(), all.end(), 0);
        EXPECT_EQ(seen, all) << "epoch " << epoch;
    }
    StepLoader again(data, filled);
    EXPECT_EQ(rows_of(again.step(loader.steps_per_epoch() + 1)), rows_of(loader.step(loader.steps_per_epoch() + 1)));
    EXPECT_NE(rows_of(loader.step(0)), rows_of(loader.step(loader.steps_per_epoch())));
    toy::expect_contains(describe(loader), {"at most 64 tokens a micro-batch", "% full"});
    filled.max_tokens_per_batch = 21;
    toy::expect_contains(toy::message_of("data.row-exceeds-batch", [&] { StepLoader(data, filled); }),
                         {"max_tokens_per_batch is 21", "22 tokens"});
}

TEST(StepLoader, FilledMicroBatchesAreTheSameForAnyWorldSize) {
    const Dataset data = Dataset::from_samples(toy::samples(101, 20));
    LoaderOptions alone = options(1, 4, true);
    alone.max_tokens_per_batch = 50;
    StepLoader one(data, alone);
    for (int64_t number = 0; number < 2 * one.steps_per_epoch(); ++number) {
        const std::vector<Rows> expected = rows_of(one.step(number));
        std::vector<Rows> shared(4);
        for (int rank = 0; rank < 2; ++rank) {
            LoaderOptions two = alone;
            two.gradient_accumulation_steps = 2;
            two.world_size = 2;
            two.rank = rank;
            const std::vector<Rows> own = rows_of(StepLoader(data, two).step(number));
            for (std::size_t k = 0; k < own.size(); ++k) shared[2 * k + static_cast<std::size_t>(rank)] = own[k];
        }
        EXPECT_EQ(flat(shared), flat(expected)) << "step " << number;
    }
}

TEST(EvalLoader, FixedOrderAndBoundedTokens) {
    std::vector<Sample> samples = toy::samples(40, 10);
    samples[7] = toy::samples(300, 120)[299];
    samples[7].row = 7;
    const Dataset data = Dataset::from_samples(samples);
    const EvalLoader loader(data, 32);
    Rows rows;
    int64_t labels = 0;
    for (int64_t i = 0; i < loader.batches(); ++i) {
        const Batch batch = loader.batch(i);
        EXPECT_TRUE(batch.tokens() <= 32 || batch.rows == Rows{7});
        rows.insert(rows.end(), batch.rows.begin(), batch.rows.end());
        labels += batch.labels;
    }
    Rows expected(40);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT_EQ(rows, expected);
    EXPECT_EQ(loader.extents(), (std::vector<Extent>{{40, labels}}));
    EXPECT_GT(data.tokens(7), 32);

    int64_t batches = 0;
    Rows shared;
    for (int rank = 0; rank < 3; ++rank) {
        const EvalLoader part(data, 32, rank, 3);
        batches += part.batches();
        for (int64_t i = 0; i < part.batches(); ++i) {
            const Rows own = part.batch(i).rows;
            shared.insert(shared.end(), own.begin(), own.end());
        }
        EXPECT_EQ(part.extents(), loader.extents());
    }
    EXPECT_EQ(batches, loader.batches());
    std::sort(shared.begin(), shared.end());
    EXPECT_EQ(shared, expected);
    EXPECT_EQ(EvalLoader(Dataset(), 32).batches(), 0);
}

TEST(Describe, SaysWhatTheRunWillSee) {
    const Dataset data = Dataset::from_samples(toy::samples(1500, 0));  // 2 tokens each, one of them trained
    const StepLoader loader(data, options(4, 2));
    const std::string text = describe(loader);
    toy::expect_contains(
        text, {"1,500 rows (tokenized)", "3,000 tokens", "50.0 %", "longest row 2", "188 steps an epoch", "4 rows"});
    EXPECT_EQ(text.find("cut"), std::string::npos);
}

TEST(StepLoader, GivesAPrefetcherTheSameSteps) {
    const Dataset data = Dataset::from_samples(toy::samples(90, 8));
    LoaderOptions options;
    options.per_device_train_batch_size = 3;
    options.gradient_accumulation_steps = 2;
    options.order_tokens = true;
    StepLoader direct(data, options), ahead(data, options);
    Prefetcher prefetcher([&](int64_t step) { return ahead.step(step); }, 4, 40, 3);
    for (int64_t step = 4; step < 40; ++step) {
        const auto got = prefetcher.next();
        ASSERT_TRUE(got.has_value());
        const StepBatch expected = direct.step(step);
        EXPECT_EQ(got->labels, expected.labels);
        EXPECT_EQ(got->epoch, expected.epoch);
        ASSERT_EQ(got->micro.size(), expected.micro.size());
        for (std::size_t k = 0; k < expected.micro.size(); ++k) {
            EXPECT_EQ(got->micro[k].ids_T, expected.micro[k].ids_T);
            EXPECT_EQ(got->micro[k].targets_T, expected.micro[k].targets_T);
            EXPECT_EQ(got->micro[k].segments, expected.micro[k].segments);
            EXPECT_EQ(got->micro[k].token_order.order, expected.micro[k].token_order.order);
        }
    }
    EXPECT_FALSE(prefetcher.next().has_value());
    EXPECT_FALSE(prefetcher.next().has_value());
}

}  // namespace
}  // namespace unsloth::data
