#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "data/loader_support.h"

namespace unsloth::data {
namespace {

using Rows = std::vector<int64_t>;

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
    LoaderOptions packing = loader_options(2, 2, true);
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

}  // namespace
}  // namespace unsloth::data
