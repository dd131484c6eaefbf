// The choice of a product's algorithm from measured tables. Host code: no GPU is needed.
#if UNSLOTH_CUDA
#include "kernels/gemm_table.h"

#include <gtest/gtest.h>

#include <array>

namespace unsloth::kernels {
namespace {

GemmAlgorithm algorithm(uint32_t tile) {
    return {66, tile, 35, 1, 0, 0, 1, 0, 3};
}

constexpr std::array<GemmProduct, 2> products = {
    {{1, 128, 6144, 4096, GemmForm::nt, {66, 15, 35, 1, 0, 0, 1, 0, 5}},
     {129, 256, 6144, 4096, GemmForm::nt, {66, 17, 35, 2, 2, 0, 1, 0, 5}}}};
const std::array<GemmTile, 3> tiles = {{{GemmForm::nt, 2.0, 500, algorithm(1)},
                                        {GemmForm::nt, 3.0, 500, algorithm(2)},
                                        {GemmForm::nn, 2.0, 500, algorithm(3)}}};
const GemmTable table = {products, tiles};

/// x [m, k] wᵀ with rows `padding` elements longer than they need be.
GemmCase forward(int64_t m, int64_t n, int64_t k, int64_t padding = 0) {
    alignas(16) static std::array<char, 16> memory;
    GemmCase p;
    p.m = m, p.n = n, p.k = k;
    p.a = {memory.data(), k + padding, false};
    p.b = {memory.data(), k + padding, true};
    p.c = p.out = {memory.data(), n + padding, false};
    return p;
}

TEST(GemmTable, AProductServesItsRowsAndEveryRank) {
    for (const int64_t rank : {0, 8, 48, 192, 768}) {
        const GemmAlgorithm* found = measured_product(table, forward(100, 6144, 4096 + rank, 16));
        ASSERT_NE(found, nullptr) << rank;
        EXPECT_EQ(found->tile, 15U);
    }
    EXPECT_EQ(measured_product(table, forward(128, 6144, 4096))->tile, 15U);
    EXPECT_EQ(measured_product(table, forward(129, 6144, 4096))->tile, 17U);
    EXPECT_EQ(measured_product(table, forward(257, 6144, 4096)), nullptr);
    EXPECT_EQ(measured_product(table, forward(100, 6152, 4096)), nullptr);
    EXPECT_EQ(measured_product(table, forward(100, 6144, 4088)), nullptr);
    EXPECT_EQ(measured_product(table, forward(100, 6144, 4096 + widest_tail + 1)), nullptr);
    GemmCase dx = forward(100, 6144, 4096);
    dx.b = {dx.b.data, 6144, false};
    EXPECT_EQ(measured_product(table, dx), nullptr);
}

TEST(GemmTable, TilesServeManyRowsOfTheirForm) {
    const std::vector<GemmTile> found = measured_tiles(table, forward(4096, 6144, 4096 + 48));
    ASSERT_EQ(found.size(), 2U);
    EXPECT_EQ(found[0].algorithm.tile, 1U);
    EXPECT_TRUE(measured_tiles(table, forward(fewest_rows_of_waves - 1, 6144, 4096)).empty());
    EXPECT_TRUE(measured_tiles(table, forward(4096, 48, 4096)).empty());
    EXPECT_TRUE(measured_tiles(table, forward(4096, 6144, 16)).empty());
    GemmCase dx = forward(4096, 4096, 6144);
    dx.b.transpose = false;
    ASSERT_EQ(measured_tiles(table, dx).size(), 1U);
    dx.a.transpose = true;
    EXPECT_TRUE(measured_tiles(table, dx).empty());
}

TEST(GemmTable, WhatWasNotMeasuredIsLeftToTheLibrary) {
    const auto left = [](const GemmCase& p) {
        return measured_tiles(table, p).empty() && measured_product(table, p) == nullptr;
    };
    for (const int64_t m : {100, 4096}) {
        const GemmCase measured = forward(m, 6144, 4096);
        EXPECT_FALSE(left(measured)) << m;
        GemmCase p = measured;
        p.input_type = p.output_type = spec::DType::f16;
        EXPECT_TRUE(left(p));
        p = measured;
        p.output_type = spec::DType::f32;
        EXPECT_TRUE(left(p));
        p = measured;
        p.bias = p.a.data;
        EXPECT_TRUE(left(p));
        p = measured;
        p.a.row_stride += 4;  // 8 bytes
        EXPECT_TRUE(left(p));
        p = measured;
        p.b.data = static_cast<char*>(p.b.data) + 8;
        EXPECT_TRUE(left(p));
        p = measured;
        p.c.row_stride += 1;  // not read
        EXPECT_FALSE(left(p));
        p.beta = 1;
        EXPECT_TRUE(left(p));
        EXPECT_TRUE(measured_tiles({}, measured).empty());
    }
}

TEST(GemmTable, TheLastWaveCountsInFull) {
    const GemmTile& tile = tiles[0];
    EXPECT_EQ(predicted_ns(tile, 1.0, 4096), 2.0 * 4096 + 500);
    EXPECT_EQ(predicted_ns(tile, 0.2, 4096), predicted_ns(tile, 1.0, 4096));
    EXPECT_EQ(predicted_ns(tile, 3.01, 4096), 4 * predicted_ns(tile, 1.0, 4096));
    EXPECT_EQ(predicted_ns(tile, static_cast<double>(3.0F + 1e-6F), 4096), predicted_ns(tile, 3.0, 4096));
}

TEST(GemmTable, AnH100TakesTheTilesOfTheH200AndNothingThatItsMemoryDecides) {
    const GemmTable h100 = measured_table({"NVIDIA H100 80GB HBM3", 90, 132});
    EXPECT_EQ(h100.tiles.size(), measured_table({"NVIDIA H200", 90, 132}).tiles.size());
    EXPECT_TRUE(h100.products.empty());
}

TEST(GemmTable, OtherCardsThanTheMeasuredHaveNoEntries) {
    EXPECT_FALSE(measured_table({"NVIDIA H200", 90, 132}).tiles.empty());
    for (const GemmCard& other :
         {GemmCard{"NVIDIA H100 PCIe", 90, 114}, GemmCard{"NVIDIA H100 80GB HBM3", 90, 60},
          GemmCard{"NVIDIA H200 MIG 3g.71gb", 90, 60}, GemmCard{"NVIDIA H200", 90, 60}, GemmCard{}}) {
        EXPECT_TRUE(measured_table(other).tiles.empty()) << other.name;
        EXPECT_TRUE(measured_table(other).products.empty()) << other.name;
    }
}

TEST(GemmTable, SplitsAreAddedInFp32InAFixedOrderAndEntriesDoNotOverlap) {
    const GemmTable h200 = measured_table({"NVIDIA H200", 90, 132});
    const auto expect_ordered = [](const GemmAlgorithm& a) {
        constexpr uint32_t compute_type = 2;  // CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
        EXPECT_EQ(a.reduction, a.split_k > 1 ? compute_type : 0U) << table_text(a);
    };
    for (const GemmProduct& p : h200.products) {
        expect_ordered(p.algorithm);
        EXPECT_LE(p.m_first, p.m_last) << table_text(p);
        for (const GemmProduct& q : h200.products) {
            if (&p == &q || p.n != q.n || p.form != q.form || p.k + widest_tail < q.k || q.k + widest_tail < p.k)
                continue;
            EXPECT_TRUE(p.m_last < q.m_first || q.m_last < p.m_first) << table_text(p) << " and " << table_text(q);
        }
    }
    for (const GemmTile& t : h200.tiles) {
        expect_ordered(t.algorithm);
        EXPECT_EQ(t.algorithm.split_k, 1);
        EXPECT_GT(t.ns_per_k, 0) << table_text(t.algorithm);
        EXPECT_GE(t.ns, 0) << table_text(t.algorithm);
    }
}

TEST(GemmTable, LinesAreWhatTheTablesHold) {
    EXPECT_EQ(table_text(products[1]), "{129, 256, 6144, 4096, GemmForm::nt, {66, 17, 35, 2, 2, 0, 1, 0, 5}},");
    EXPECT_EQ(tile_text(GemmForm::nn, 2.5, 500, table_text(algorithm(3))),
              "{GemmForm::nn, 2.5, 500, {66, 3, 35, 1, 0, 0, 1, 0, 3}},");
}

}  // namespace
}  // namespace unsloth::kernels
#endif
