// The choice of a product's algorithm from measured tables. Host code: no GPU is needed.
#if UNSLOTH_CUDA
#include "kernels/gemm_table.h"

#include <gtest/gtest.h>

#include <array>

#include "unsloth/core/error.h"

namespace unsloth::kernels {
namespace {

spec::KernelChoice product(spec::Interval tokens, int64_t tile) {
    return {.form = spec::ProductForm::nt,
            .tokens = tokens,
            .n = {6144, 6144},
            .k = {4096, 4096 + widest_tail},
            .parameters = {66, tile, 35, 1, 0, 0, 1, 0, 5}};
}
spec::KernelChoice tile(spec::ProductForm form, int64_t id, double ns_per_k) {
    const spec::Interval many{1024, spec::Interval::no_end};
    return {.form = form,
            .tokens = many,
            .n = many,
            .k = many,
            .parameters = {66, id, 35, 1, 0, 0, 1, 0, 3},
            .wave = {ns_per_k, 500}};
}
const spec::KernelTable table = {.choices = {product({1, 128}, 15), product({129, 256}, 17),
                                             tile(spec::ProductForm::nt, 1, 2.0), tile(spec::ProductForm::nt, 2, 3.0),
                                             tile(spec::ProductForm::nn, 3, 2.0)}};

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
        const spec::KernelChoice* found = measured_product(table, forward(100, 6144, 4096 + rank, 16));
        ASSERT_NE(found, nullptr) << rank;
        EXPECT_EQ(algorithm_of(*found).tile, 15U);
    }
    EXPECT_EQ(algorithm_of(*measured_product(table, forward(128, 6144, 4096))).tile, 15U);
    EXPECT_EQ(algorithm_of(*measured_product(table, forward(129, 6144, 4096))).tile, 17U);
    EXPECT_EQ(measured_product(table, forward(257, 6144, 4096)), nullptr);
    EXPECT_EQ(measured_product(table, forward(100, 6152, 4096)), nullptr);
    EXPECT_EQ(measured_product(table, forward(100, 6144, 4088)), nullptr);
    EXPECT_EQ(measured_product(table, forward(100, 6144, 4096 + widest_tail + 1)), nullptr);
    GemmCase dx = forward(100, 6144, 4096);
    dx.b = {dx.b.data, 6144, false};
    EXPECT_EQ(measured_product(table, dx), nullptr);
}

TEST(GemmTable, TilesServeManyRowsOfTheirForm) {
    const std::vector<const spec::KernelChoice*> found = measured_tiles(table, forward(4096, 6144, 4096 + 48));
    ASSERT_EQ(found.size(), 2U);
    EXPECT_EQ(algorithm_of(*found[0]).tile, 1U);
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
    const spec::KernelChoice tile = kernels::tile(spec::ProductForm::nt, 1, 2.0);
    EXPECT_EQ(predicted_ns(tile, 1.0, 4096), 2.0 * 4096 + 500);
    EXPECT_EQ(predicted_ns(tile, 0.2, 4096), predicted_ns(tile, 1.0, 4096));
    EXPECT_EQ(predicted_ns(tile, 3.01, 4096), 4 * predicted_ns(tile, 1.0, 4096));
    EXPECT_EQ(predicted_ns(tile, static_cast<double>(3.0F + 1e-6F), 4096), predicted_ns(tile, 3.0, 4096));
}

TEST(GemmTable, AnAlgorithmIsItsParameters) {
    const GemmAlgorithm algorithm{66, 17, 35, 2, 2, 0, 1, 0, 5};
    EXPECT_EQ(algorithm_of({.parameters = parameters_of(algorithm)}), algorithm);
    EXPECT_EQ(text_of(algorithm), "{66, 17, 35, 2, 2, 0, 1, 0, 5}");
    EXPECT_THROW(algorithm_of({.parameters = {66}}), CheckError);
}

/// What the tables said when they were C++, of which those in cards/ are copies.
TEST(GemmTable, TheH200sChoices) {
    const auto h200 = spec::built_in_kernels({"NVIDIA H200", 90, 132});
    const auto fixed = [&](int64_t m, int64_t n, int64_t k) {
        const spec::KernelChoice* found = measured_product(*h200, forward(m, n, k));
        return found ? text_of(algorithm_of(*found)) : "";
    };
    EXPECT_EQ(fixed(128, 28672, 4096 + 32), "{66, 165, 35, 1, 0, 0, 2, 0, 3}");
    EXPECT_EQ(fixed(16384, 28672, 4096 + 32), "{66, 201, 35, 1, 0, 0, 2, 0, 5}");
    EXPECT_EQ(fixed(1024, 128256, 4096), "{66, 184, 35, 1, 0, 0, 2, 0, 5}");
    EXPECT_EQ(fixed(16385, 28672, 4096), "");
    const auto best = [&](int64_t m, int64_t n, int64_t k, double waves) {
        const spec::KernelChoice* least = nullptr;
        for (const spec::KernelChoice* tile : measured_tiles(*h200, forward(m, n, k)))
            if (!least || predicted_ns(*tile, waves, k) < predicted_ns(*least, waves, k)) least = tile;
        return least ? text_of(algorithm_of(*least)) : "";
    };
    EXPECT_EQ(best(16384, 6144, 4096 + 48, 1), "{66, 403, 35, 1, 0, 0, 3, 0, 5}");
    EXPECT_EQ(best(1023, 6144, 4096, 1), "");
    EXPECT_EQ(measured_tiles(*h200, forward(16384, 6144, 4096)).size(), 11U);
}

}  // namespace
}  // namespace unsloth::kernels
#endif
