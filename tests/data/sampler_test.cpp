#include "unsloth/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "unsloth/core/philox.h"

namespace unsloth {
namespace {

std::vector<int64_t> counted(int64_t n) {
    std::vector<int64_t> rows(static_cast<std::size_t>(n));
    std::iota(rows.begin(), rows.end(), 0);
    return rows;
}

TEST(EpochOrder, IsAPermutationThatSeedAndEpochChoose) {
    const auto rows = counted(1000);
    const auto order = epoch_order(rows, 3407, 0, true);
    auto sorted = order;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, rows);
    EXPECT_NE(order, rows);
    EXPECT_EQ(order, epoch_order(rows, 3407, 0, true));
    EXPECT_NE(order, epoch_order(rows, 3407, 1, true));
    EXPECT_NE(order, epoch_order(rows, 3408, 0, true));
    EXPECT_NE(order, epoch_order(rows, 3407 + (uint64_t{1} << 32), 0, true));
    EXPECT_EQ(epoch_order(rows, 3407, 5, false), rows);
}

TEST(EpochOrder, LeavingRowsOutKeepsTheOthersOrder) {
    const auto rows = counted(300);
    std::vector<int64_t> odd;
    for (const int64_t row : rows)
        if (row % 2 == 1) odd.push_back(row);
    std::vector<int64_t> expected;
    for (const int64_t place : epoch_order(rows, 1, 2, true))
        if (place % 2 == 1) expected.push_back(place);
    std::vector<int64_t> got;
    for (const int64_t place : epoch_order(odd, 1, 2, true))
        got.push_back(odd[static_cast<std::size_t>(place)]);
    EXPECT_EQ(got, expected);
}

TEST(EpochOrder, EveryRowGoesEverywhere) {
    // Mean place of one row over 400 epochs: 499.5 +- 288.7 / 20 for a fair shuffle; five standard errors
    // allowed.
    const auto rows = counted(1000);
    double sum = 0;
    for (uint32_t epoch = 0; epoch < 400; ++epoch) {
        const auto order = epoch_order(rows, 11, epoch, true);
        sum += static_cast<double>(std::find(order.begin(), order.end(), 0) - order.begin());
    }
    EXPECT_NEAR(sum / 400, 499.5, 5 * 288.7 / 20);
}

TEST(RowLot, IsThePublishedGeneratorAndUsesAreApart) {
    const PhiloxWords words = philox4x32(5, 9, 7, 1, 3, 0xDA7A0001u);
    const uint64_t lot = row_lot(5 | uint64_t{9} << 32, 7 | int64_t{1} << 32, 3, LotUse::epoch_order);
    EXPECT_EQ(lot, static_cast<uint64_t>(words.w[0]) << 32 | words.w[1]);
    EXPECT_NE(lot, row_lot(5 | uint64_t{9} << 32, 7 | int64_t{1} << 32, 3, LotUse::validation_split));
}

}  // namespace
}  // namespace unsloth
