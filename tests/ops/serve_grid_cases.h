// Bases, adapters and grids, which the CPU's and the GPU's tests fold alike.
#pragma once

#include "ops/tensor_testing.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/quant.h"
#include "unsloth/ops/serve_grid.h"

namespace unsloth::testing {

inline constexpr spec::ServeGrid all_grids[] = {spec::ServeGrid::nf4, spec::ServeGrid::q8_0, spec::ServeGrid::q4_0,
                                                spec::ServeGrid::mxfp4, spec::ServeGrid::fp8};

struct FoldCase {
    int64_t rows, cols, rank;
    double spread = 0.02;  ///< of W
};
/// Columns are multiples of 32; one has blocks of nf4 that go over the ends of rows, and some have ragged ends.
inline const std::vector<FoldCase> fold_cases = {
    {64, 64, 8},    {1, 32, 1},       {7, 96, 3},         {130, 352, 16},    {33, 1056, 5},
    {300, 2048, 0}, {40, 64, 4, 0.0}, {9, 160, 2, 1e-38}, {9, 160, 2, 1e30}, {50, 192, 40}};

/// On the CPU.
struct FoldData {
    at::Tensor w_NK, b_Nr, a_rK;
    float scale = 0.7F;

    explicit FoldData(const FoldCase& c) : w_NK(at::randn({c.rows, c.cols}) * c.spread) {
        if (c.rank == 0) return;
        b_Nr = at::randn({c.rows, c.rank}) * c.spread;
        a_rK = at::randn({c.rank, c.cols}) * 0.1;
    }
};

enum class BaseForm { fp32, bf16, nf4 };
inline constexpr BaseForm all_base_forms[] = {BaseForm::fp32, BaseForm::bf16, BaseForm::nf4};

/// W_eff on the CPU; w_NK stays as it is, and is rounded to the form that the base is stored in.
inline at::Tensor folded(const FoldData& data, spec::ServeGrid grid, at::ScalarType type, at::Device device,
                         Layout layout = Layout::packed, BaseForm base = BaseForm::fp32) {
    ops::Context ctx(device), host(at::kCPU);
    const at::Tensor slice = poisoned_slice(data.w_NK.sizes(), type, layout);
    const at::Tensor storage = storage_of(slice).to(device),
                     out = storage.as_strided(slice.sizes(), slice.strides(), slice.storage_offset());
    const auto there = [&](const at::Tensor& t) { return t.defined() ? t.to(device) : t; };
    ops::GridFold fold{
        .grid = grid,
        .w_NK = data.w_NK.to(at::device(device).dtype(base == BaseForm::bf16 ? at::kBFloat16 : at::kFloat)),
        .values_NK = at::empty(data.w_NK.sizes(), at::device(device).dtype(at::kFloat)),
        .b_Nr = there(data.b_Nr),
        .a_rK = there(data.a_rK),
        .scale = data.scale,
        .out_NK = out};
    ops::Quant4Tensor codes;
    spec::Quant4View view;
    if (base == BaseForm::nf4) {
        codes = ops::quantize_nf4(host, data.w_NK);
        for (at::Tensor* part : {&codes.packed, &codes.absmax, &codes.nested_absmax, &codes.tables})
            *part = part->to(device);
        view = codes.view();
        fold.codes = &view;
        fold.w_NK = at::Tensor();
    }
    const int64_t rank = data.b_Nr.defined() ? data.b_Nr.size(1) : 0;
    if (const int64_t bytes = ops::grid_workspace(grid, data.w_NK.size(0), data.w_NK.size(1), rank); bytes > 0) {
        fold.workspace = at::empty({bytes}, at::device(device).dtype(at::kByte));
        ops::prepare_grid_workspace(ctx, grid, fold.workspace);
    }
    ops::fold_to_grid(ctx, fold);
    return out.cpu().contiguous();
}

}  // namespace unsloth::testing
