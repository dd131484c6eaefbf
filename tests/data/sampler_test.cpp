#include "unsloth/data/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "unsloth/core/philox.h"

namespace unsloth::data {
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
    for (const int64_t place : epoch_order(odd, 1, 2, true)) got.push_back(odd[static_cast<std::size_t>(place)]);
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
    const uint64_t lot = row_lot(5 | uint64_t{9} << 32, 7 | int64_t{1} << 32, 3, RngStream::epoch_order);
    EXPECT_EQ(lot, static_cast<uint64_t>(words.w[0]) << 32 | words.w[1]);
    EXPECT_NE(lot, row_lot(5 | uint64_t{9} << 32, 7 | int64_t{1} << 32, 3, RngStream::validation_split));
}

}  // namespace
}  // namespace unsloth::data

namespace unsloth::data {
namespace {

TEST(Mixture, CountsFollowTheWeights) {
    using Counts = std::vector<int64_t>;
    const auto counts = [](Counts rows, std::vector<double> weights) { return mixture_counts(rows, weights); };
    EXPECT_EQ(counts({100, 100}, {3, 1}), (Counts{150, 50}));
    EXPECT_EQ(counts({10, 1000}, {1, 1}), (Counts{505, 505}));
    EXPECT_EQ(counts({1000, 1000}, {1, 1e-9}), (Counts{2000, 1}));
    EXPECT_EQ(counts({10, 0, 30}, {1, 8, 1}), (Counts{20, 0, 20}));
}

TEST(Mixture, EveryRowComesAsOftenAsItsNeighboursOverTheEpochs) {
    std::vector<int64_t> rows(40);
    std::iota(rows.begin(), rows.end(), 100);
    MixtureSource small{{0, 1, 2, 3, 4, 5, 6}, 17}, large{{}, 23};
    for (int64_t place = 7; place < 40; ++place) large.places.push_back(place);
    const std::vector<MixtureSource> sources{small, large};
    std::vector<int64_t> seen(40);
    std::vector<std::vector<int64_t>> orders;
    for (uint32_t epoch = 0; epoch < 5; ++epoch) {
        orders.push_back(mixture_order(sources, rows, 7, epoch, true));
        ASSERT_EQ(orders.back().size(), 40u);
        int64_t of_small = 0;
        for (const int64_t place : orders.back()) ++seen[static_cast<std::size_t>(place)], of_small += place < 7;
        EXPECT_EQ(of_small, 17);
        for (std::size_t begin : {std::size_t{0}, std::size_t{7}}) {
            const auto [least, most] = std::minmax_element(seen.begin() + static_cast<std::ptrdiff_t>(begin),
                                                           begin == 0 ? seen.begin() + 7 : seen.end());
            EXPECT_LE(*most - *least, 1) << "epoch " << epoch;
        }
    }
    EXPECT_NE(orders[0], orders[1]);
    EXPECT_EQ(mixture_order(sources, rows, 7, 3, true), orders[3]);  // no history
    EXPECT_NE(mixture_order(sources, rows, 8, 3, true), orders[3]);
    EXPECT_FALSE(std::is_sorted(orders[0].begin(), orders[0].end(), [](int64_t a, int64_t b) {
        return (a < 7) > (b < 7);
    })) << "not mixed";
    const auto plain = mixture_order(sources, rows, 7, 0, false);
    EXPECT_EQ((std::vector<int64_t>(plain.begin(), plain.begin() + 9)),
              (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 0, 1}));
}

}  // namespace
}  // namespace unsloth::data
