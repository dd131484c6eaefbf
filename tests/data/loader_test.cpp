#include "unsloth/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "data/loader_support.h"

namespace unsloth::data {
namespace {

using Rows = std::vector<int64_t>;

TEST(StepLoader, GroupsRowsAndEndsTheEpochWithASmallerStep) {
    StepLoader loader(Dataset::from_samples(toy::samples(11, 4)), loader_options(2, 2));
    ASSERT_EQ(loader.steps_per_epoch(), 3);
    EXPECT_EQ(rows_by_micro_batch(loader.step(0)), (std::vector<Rows>{{0, 1}, {2, 3}}));
    EXPECT_EQ(rows_by_micro_batch(loader.step(1)), (std::vector<Rows>{{4, 5}, {6, 7}}));
    EXPECT_EQ(rows_by_micro_batch(loader.step(2)), (std::vector<Rows>{{8, 9}, {10}}));
    EXPECT_EQ(rows_by_micro_batch(loader.step(3)),
              (std::vector<Rows>{{0, 1}, {2, 3}}));  // the next epoch starts afresh

    StepLoader fewer(Dataset::from_samples(toy::samples(10, 4)), loader_options(2, 4));
    ASSERT_EQ(fewer.steps_per_epoch(), 2);
    EXPECT_EQ(rows_by_micro_batch(fewer.step(1)), (std::vector<Rows>{{8, 9}}));  // one micro-batch instead of four
}

TEST(StepLoader, RegroupedStepsHaveTheSameRowsInOtherMicroBatches) {
    StepLoader loader(Dataset::from_samples(toy::samples(11, 4)), loader_options(2, 2));
    StepLoader given(Dataset::from_samples(toy::samples(11, 4)), loader_options(2, 2));
    EXPECT_EQ(loader.passes_of_step(), 2);
    const int64_t two_rows = loader.limits().tokens;
    loader.set_pass_rows(4);
    EXPECT_EQ(loader.passes_of_step(), 1);
    EXPECT_EQ(rows_by_micro_batch(loader.step(0)), (std::vector<Rows>{{0, 1, 2, 3}}));
    EXPECT_EQ(rows_by_micro_batch(loader.step(2)), (std::vector<Rows>{{8, 9, 10}}));
    EXPECT_GT(loader.limits().tokens, two_rows);
    loader.set_pass_rows(3);
    EXPECT_EQ(rows_by_micro_batch(loader.step(1)), (std::vector<Rows>{{4, 5, 6}, {7}}));
    loader.set_pass_rows(1);
    EXPECT_LT(loader.limits().tokens, two_rows);
    for (int64_t number = 0; number < 4; ++number) {
        const StepBatch regrouped = loader.step(number), step = given.step(number);
        EXPECT_EQ(flat_rows(rows_by_micro_batch(regrouped)), flat_rows(rows_by_micro_batch(step)));
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
            LoaderOptions mine = loader_options(2, 2);
            mine.rank = rank;
            mine.world_size = 2;
            StepLoader given(Dataset::from_samples(toy::samples(11, 4)), mine),
                loader(Dataset::from_samples(toy::samples(11, 4)), mine);
            loader.set_pass_rows(rows);
            const StepBatch last = loader.step(1);  // of 3 rows, which two ranks share
            if (rank == 0) passes = last.micro.size();
            EXPECT_EQ(last.micro.size(), passes) << rows;
            EXPECT_EQ(flat_rows(rows_by_micro_batch(last)), flat_rows(rows_by_micro_batch(given.step(1)))) << rows;
        }
    }
}

TEST(StepLoader, EpochCountsMicroBatchesAsTheTrainerDoes) {
    StepLoader loader(Dataset::from_samples(toy::samples(11, 4)), loader_options(2, 2));  // 6 micro-batches an epoch
    const std::vector<double> expected{2.0 / 6, 4.0 / 6, 1.0, 1 + 2.0 / 6, 1 + 4.0 / 6, 2.0};
    for (std::size_t step = 0; step < expected.size(); ++step) {
        const StepBatch batch = loader.step(static_cast<int64_t>(step));
        EXPECT_DOUBLE_EQ(batch.epoch, expected[step]);
        EXPECT_EQ(batch.epoch_index, step / 3);
    }
}

TEST(StepLoader, TotalSteps) {
    const StepLoader loader(Dataset::from_samples(toy::samples(11, 4)), loader_options(2, 2));
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
    StepLoader loader(Dataset::from_samples(samples), loader_options(2, 2, true));
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
    StepLoader loader(data, loader_options(4, 3, true));
    const int64_t per_epoch = loader.steps_per_epoch();
    std::vector<Rows> epochs;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
        Rows rows;
        for (int64_t step = 0; step < per_epoch; ++step) {
            const Rows part = flat_rows(rows_by_micro_batch(loader.step(epoch * per_epoch + step)));
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

    StepLoader resumed(data, loader_options(4, 3, true));
    for (const int64_t step : {2 * per_epoch + 1, int64_t{1}, per_epoch})
        EXPECT_EQ(rows_by_micro_batch(resumed.step(step)), rows_by_micro_batch(loader.step(step)));
    LoaderOptions other = loader_options(4, 3, true);
    other.seed = 1;
    EXPECT_NE(rows_by_micro_batch(StepLoader(data, other).step(0)), rows_by_micro_batch(loader.step(0)));
}

TEST(StepLoader, TokenOrderOnlyWhenAsked) {
    const Dataset data = Dataset::from_samples(toy::samples(8, 5));
    LoaderOptions asked = loader_options(4, 1);
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
    StepLoader loader(data, loader_options(1, data.size(), true));
    const StepBatch step = loader.step(0);
    std::set<int32_t> dropout;  // what the masks are drawn for
    for (const Batch& batch : step.micro) dropout.insert(batch.row_T.front());
    EXPECT_EQ(dropout.size(), static_cast<std::size_t>(data.size()));
    EXPECT_EQ(step.tokens, data.stats().tokens);
    // The last piece, which alone ends with EOS, comes somewhere in between.
    EXPECT_NE(step.micro.back().ids_T.back(), toy::eos);
    EXPECT_EQ(loader.step(0).micro.front().ids_T,
              StepLoader(data, loader_options(1, data.size(), true)).step(0).micro[0].ids_T);
}

TEST(StepLoader, UnusableOptionsAndDataAreRefused) {
    const Dataset data = Dataset::from_samples(toy::samples(8, 5));
    const auto refused = [&](const Dataset& rows, const LoaderOptions& wrong) {
        return toy::message_of(ErrorKind::usage, [&] { StepLoader(rows, wrong); });
    };
    toy::expect_contains(refused(Dataset(), loader_options(1, 1)), {"no rows"});
    toy::expect_contains(refused(data, loader_options(0, 1)), {"per_device_train_batch_size is 0"});
    toy::expect_contains(refused(data, loader_options(1, 0)), {"gradient_accumulation_steps is 0"});
    LoaderOptions packing = loader_options(1, 1);
    packing.packing = true;
    toy::expect_contains(refused(data, packing), {"max_seq_length", "packing"});
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
    LoaderOptions weighted = loader_options(2, 2, true);
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
    const StepLoader loader(data, loader_options(4, 2));
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
