// Folding on the CPU against what files of each grid hold: bitsandbytes' and ggml's codes, LibTorch's e4m3.
#include <bit>

#include "ops/serve_grid_cases.h"
#include "unsloth/formats/bnb4.h"
#include "unsloth/formats/ggml_types.h"
#include "unsloth/formats/merge.h"

namespace unsloth {
namespace {

using spec::ServeGrid;
using testing::FoldData;

at::Tensor merged(const FoldData& data) {
    const at::Tensor w = data.w_NK.clone();
    if (data.b_Nr.defined())
        spec::FixedLowRank(data.b_Nr.const_data_ptr<float>(), data.a_rK.const_data_ptr<float>(), data.b_Nr.size(1),
                           data.scale, w.size(0), w.size(1))
            .add(0, w.size(0), w.data_ptr<float>());
    return w;
}

at::Tensor through_file(ServeGrid grid, const at::Tensor& w) {
    at::Tensor out = at::empty_like(w);
    const int64_t rows = w.size(0), cols = w.size(1);
    if (grid == ServeGrid::nf4) {
        const formats::Quant4Owned owned = formats::quantize_nf4(w.const_data_ptr<float>(), rows, cols);
        formats::dequantize_rows(owned.view(), 0, rows, out.data_ptr<float>());
    } else if (grid == ServeGrid::fp8) {
        const at::Tensor scale = (w.abs().amax(1, true) / 448.0F).clamp_min(std::numeric_limits<float>::min());
        out = (w / scale).clamp(-448, 448).to(at::kFloat8_e4m3fn).to(at::kFloat) * scale;
    } else {
        const formats::GgmlType type = grid == ServeGrid::q8_0   ? formats::GgmlType::q8_0
                                       : grid == ServeGrid::q4_0 ? formats::GgmlType::q4_0
                                                                 : formats::GgmlType::mxfp4;
        std::vector<std::byte> bytes(formats::ggml_bytes(type, w.numel()));
        formats::quantize_ggml(type, w.const_data_ptr<float>(), w.numel(), bytes.data());
        formats::dequantize_ggml(type, bytes.data(), w.numel(), out.data_ptr<float>());
    }
    return out;
}

/// What is left out of the product in fixed point is below what 14 bits of the largest factors show.
TEST(ServeGrid, AdaptersProductIsNearTheExactOne) {
    at::manual_seed(9);
    for (const testing::FoldCase& c :
         {testing::FoldCase{70, 320, 5}, testing::FoldCase{33, 96, 16, 3e4}, testing::FoldCase{20, 64, 1000, 1e-6}}) {
        FoldData data(c);
        data.w_NK.zero_();
        const at::Tensor exact = data.b_Nr.to(at::kDouble).matmul(data.a_rK.to(at::kDouble)) * data.scale;
        const at::Tensor largest =
            std::get<0>(data.b_Nr.abs().max(1, true)) * std::get<0>(data.a_rK.abs().max(0, true));
        const at::Tensor error = (merged(data) - exact).abs() / (largest * (data.scale * static_cast<double>(c.rank)));
        EXPECT_LT(error.max().item<double>(), 0x1p-12) << c.rows << " " << c.cols << " " << c.rank;
        EXPECT_GT(exact.abs().max().item<double>(), 0);
    }
}

TEST(ServeGrid, ProductsOfFactorsThatAreNotFiniteAreNaN) {
    FoldData data({.rows = 4, .cols = 64, .rank = 2});
    data.b_Nr[2][1] = std::numeric_limits<float>::infinity();
    data.a_rK[0][5] = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor finite = merged(data).isfinite();
    EXPECT_FALSE(finite[2].any().item<bool>());
    EXPECT_FALSE(finite.select(1, 5).any().item<bool>());
    EXPECT_EQ(finite.sum().item<int64_t>(), 3 * 63);
}

TEST(ServeGrid, GivesTheValuesThatAFileHolds) {
    at::manual_seed(5);
    for (const testing::FoldCase& c : testing::fold_cases)
        for (const ServeGrid grid : testing::all_grids) {
            if (c.spread > 1e20 && spec::has_row_blocks(grid) && grid != ServeGrid::mxfp4) continue;  // no such half
            SCOPED_TRACE(cat(name_of(grid), " ", c.rows, " ", c.cols, " ", c.rank, " ", c.spread));
            const FoldData data(c);
            const at::Tensor expected = through_file(grid, merged(data));
            for (const at::ScalarType type : testing::compute_dtypes)
                for (const testing::Layout layout : testing::all_layouts)
                    EXPECT_TRUE(at::equal(testing::folded(data, grid, type, at::kCPU, layout), expected.to(type)));
        }
}

/// A base is folded as it is stored: its values are those that it would be expanded to.
TEST(ServeGrid, ReadsEachFormOfABase) {
    at::manual_seed(8);
    for (const testing::FoldCase& c : {testing::FoldCase{70, 320, 5}, testing::FoldCase{9, 96, 2}})
        for (const ServeGrid grid : testing::all_grids)
            for (const testing::BaseForm base : testing::all_base_forms) {
                SCOPED_TRACE(cat(name_of(grid), " ", c.cols, " base ", static_cast<int>(base)));
                const FoldData data(c);
                FoldData rounded = data;
                if (base == testing::BaseForm::bf16) rounded.w_NK = data.w_NK.to(at::kBFloat16).to(at::kFloat);
                if (base == testing::BaseForm::nf4) rounded.w_NK = through_file(ServeGrid::nf4, data.w_NK);
                const at::Tensor found =
                    testing::folded(data, grid, at::kFloat, at::kCPU, testing::Layout::packed, base);
                EXPECT_TRUE(at::equal(found, through_file(grid, merged(rounded))));
            }
}

/// Of MXFP4 no code of the block's exponent is nearer, and ties take the even one.
TEST(ServeGrid, Mxfp4TakesTheNearestCode) {
    at::manual_seed(6);
    FoldData data({.rows = 50, .cols = 64, .rank = 0});
    data.w_NK[0].copy_(at::arange(64) % 32 * 0.25);  // ties, and a magnitude beyond the largest code
    const at::Tensor found = testing::folded(data, ServeGrid::mxfp4, at::kFloat, at::kCPU);
    const float codes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    for (int64_t block = 0; block < data.w_NK.numel() / 32; ++block) {
        const at::Tensor w = data.w_NK.view({-1, 32})[block], q = found.view({-1, 32})[block];
        const double scale = std::exp2(std::floor(std::log2(w.abs().max().item<double>())) - 2);
        for (int64_t i = 0; i < 32; ++i) {
            const double x = std::abs(w[i].item<double>()) / scale, got = std::abs(q[i].item<double>()) / scale;
            double nearest = 6;
            int chosen = 7;
            for (int code = 0; code < 8; ++code) {
                const double distance = std::abs(codes[code] - x), best = std::abs(nearest - x);
                if (distance < best || (distance == best && code % 2 == 0 && chosen % 2 == 1))
                    nearest = codes[code], chosen = code;
            }
            EXPECT_EQ(got, nearest) << x;
            EXPECT_TRUE(q[i].item<double>() == 0 || (q[i].item<double>() < 0) == (w[i].item<double>() < 0));
        }
    }
}

TEST(ServeGrid, RoundingTwiceIsRoundingOnce) {
    at::manual_seed(7);
    for (const ServeGrid grid : {ServeGrid::q8_0, ServeGrid::q4_0, ServeGrid::mxfp4}) {
        FoldData data({.rows = 200, .cols = 256, .rank = 0});
        const at::Tensor once = testing::folded(data, grid, at::kFloat, at::kCPU);
        data.w_NK = once;
        EXPECT_TRUE(at::equal(testing::folded(data, grid, at::kFloat, at::kCPU), once)) << name_of(grid);
    }
}

TEST(ServeGrid, ABlockThatIsNotFiniteIsSeen) {
    for (const ServeGrid grid : testing::all_grids)
        for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
            FoldData data({.rows = 4, .cols = 64, .rank = 0});
            data.w_NK[1][3] = bad;
            EXPECT_FALSE(testing::folded(data, grid, at::kFloat, at::kCPU)[1].isfinite().all().item<bool>());
        }
}

TEST(ServeGrid, RefusesWrongTensors) {
    ops::Context ctx(at::kCPU);
    const at::Tensor w = at::zeros({4, 40}), out = at::empty({4, 40});
    EXPECT_THROW(ops::fold_to_grid(ctx, {.grid = ServeGrid::q8_0, .w_NK = w, .values_NK = w, .out_NK = out}),
                 CheckError);
    EXPECT_THROW(ops::fold_to_grid(ctx, {.grid = ServeGrid::nf4, .w_NK = w, .values_NK = w, .out_NK = out}),
                 CheckError);
    EXPECT_THROW(ops::fold_to_grid(ctx, {.grid = ServeGrid::none, .w_NK = w, .values_NK = w, .out_NK = out}),
                 CheckError);
    EXPECT_THROW(
        ops::fold_to_grid(ctx, {.grid = ServeGrid::fp8, .w_NK = w, .values_NK = w, .out_NK = at::empty({4, 41})}),
        CheckError);
    EXPECT_NO_THROW(ops::fold_to_grid(ctx, {.grid = ServeGrid::fp8, .w_NK = w, .values_NK = w, .out_NK = out}));
}

}  // namespace
}  // namespace unsloth
