// Parts of stored weights have the values of the whole.
#include <gtest/gtest.h>

#include "unsloth/core/error.h"
#include "unsloth/weights/part.h"
#include "unsloth/weights/stored_weight.h"

namespace unsloth::weights {
namespace {

at::Tensor values_of(ops::Context& ctx, const StoredWeight& weight, int64_t rows, int64_t cols) {
    const at::Tensor out = at::empty({rows, cols});
    expand(ctx, weight, out);
    return out;
}

std::vector<std::pair<const char*, StoredWeight>> weights_of(ops::Context& ctx, int64_t rows, int64_t cols) {
    at::manual_seed(7);
    const at::Tensor matrix = at::randn({rows, cols});
    const ops::Quant4Tensor nested = ops::quantize_nf4(ctx, matrix);
    ops::Quant4Tensor plain = nested;
    plain.absmax = at::rand({rows * cols / spec::quant4_block}) + 0.5;
    plain.nested_absmax = at::Tensor();
    const ops::Int8Tensor int8{at::randint(-127, 128, {rows, cols}, at::kChar), at::rand({rows})};
    const ops::Quant4Tensor mxfp4{.packed = nested.packed,
                                  .absmax = at::randint(100, 150, {rows * cols / spec::mxfp4_block}, at::kByte),
                                  .tables = nested.tables,
                                  .rows = rows,
                                  .cols = cols};
    return {{"matrix", matrix}, {"nf4", nested}, {"nf4, plain maxima", plain}, {"mxfp4", mxfp4}, {"int8", int8}};
}

TEST(Slice, HasTheValuesOfTheWhole) {
    ops::Context ctx(at::kCPU);
    constexpr int64_t rows = 96, cols = 640;  // ten blocks a row: nested ones end inside of rows
    const std::vector<spec::MatrixSlice> parts = {{{0, rows}, {0, cols}}, {{0, 48}, {0, cols}},
                                                  {{48, 48}, {0, cols}},  {{128 / 4, 32}, {0, cols}},
                                                  {{0, rows}, {0, 64}},   {{0, rows}, {320, 320}},
                                                  {{5, 7}, {576, 64}},    {{4, 8}, {0, cols}, {{40, 16}, {64, 3}}}};
    for (const auto& [name, whole] : weights_of(ctx, rows, cols)) {
        const at::Tensor expected = values_of(ctx, whole, rows, cols);
        for (const spec::MatrixSlice& part : parts) {
            const at::Tensor got = values_of(ctx, slice(whole, part), part.row_count(), part.columns.size);
            EXPECT_TRUE(at::equal(got, part_of(expected, part)))
                << name << ": rows from " << part.rows.begin << ", columns from " << part.columns.begin;
        }
    }
}

TEST(Slice, KeepsNestedMaximaWhereItsBlocksAreWhole) {
    ops::Context ctx(at::kCPU);
    const StoredWeight whole = weights_of(ctx, 96, 1024)[1].second;  // 16 rows a nested block
    const auto nested = [&](const spec::MatrixSlice& part) {
        return std::get<ops::Quant4Tensor>(slice(whole, part)).nested_absmax.defined();
    };
    EXPECT_TRUE(nested({{16, 40}, {0, 1024}}));
    EXPECT_FALSE(nested({{8, 16}, {0, 1024}}));
    EXPECT_FALSE(nested({{0, 96}, {0, 512}}));
}

TEST(Slice, DoesNotCutBlocks) {
    ops::Context ctx(at::kCPU);
    const StoredWeight whole = weights_of(ctx, 8, 128)[1].second;
    EXPECT_THROW(slice(whole, {{0, 8}, {0, 96}}), CheckError);
    EXPECT_THROW(slice(whole, {{0, 8}, {32, 64}}), CheckError);
    const StoredWeight mxfp4 = weights_of(ctx, 8, 128)[3].second;
    const auto part = std::get<ops::Quant4Tensor>(slice(mxfp4, {{2, 4}, {32, 64}}));
    EXPECT_TRUE(part.is_mxfp4()) << "blocks of 32";
    EXPECT_TRUE(at::equal(values_of(ctx, part, 4, 64),
                          part_of(values_of(ctx, mxfp4, 8, 128), spec::MatrixSlice{{2, 4}, {32, 64}})));
    EXPECT_THROW(slice(mxfp4, {{0, 8}, {16, 64}}), CheckError);
}

}  // namespace
}  // namespace unsloth::weights
