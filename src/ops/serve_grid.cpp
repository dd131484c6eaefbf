#include "unsloth/ops/serve_grid.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <iterator>

#include "ops/checks.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/ops/quant.h"
#include "unsloth/ops/rows.h"
#include "unsloth/spec/dynamic_map.h"
#include "unsloth/spec/quant4_host.h"
#include "unsloth/spec/serve_grid_host.h"
#ifdef UNSLOTH_CUDA
#include "kernels/nf4.h"
#include "kernels/serve_grid.h"
#include "ops/kernel_arguments.h"
#endif

namespace unsloth::ops {
namespace {

constexpr int64_t fold_task_elements = 1 << 14;
constexpr int64_t table_floats = 16 + 256;  // nf4's code, the map of its block maxima

int64_t aligned_part(int64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/// nf4's workspace, for a matrix of so many elements.
struct Nf4Buffers {
    at::Tensor tables, maxima, values, nested, offset;  ///< fp32: block maxima before and after they are coded
    at::Tensor codes, packed;                           ///< uint8
    int64_t bytes = 0;

    explicit Nf4Buffers(int64_t elements, const at::Tensor& workspace = {}) {
        const int64_t blocks = (elements + spec::quant4_block - 1) / spec::quant4_block;
        const auto take = [&](at::Tensor& part, at::ScalarType type, int64_t count) {
            const int64_t size = count * static_cast<int64_t>(c10::elementSize(type));
            if (workspace.defined()) part = workspace.narrow(0, bytes, size).view(type);
            bytes += aligned_part(size);
        };
        take(tables, at::kFloat, table_floats);  // first: they lie at one place for matrices of all sizes
        take(maxima, at::kFloat, blocks);
        take(values, at::kFloat, blocks);
        take(nested, at::kFloat, (blocks + spec::quant4_nested_block - 1) / spec::quant4_nested_block);
        take(offset, at::kFloat, 1);
        take(codes, at::kByte, blocks);
        take(packed, at::kByte, (elements + 1) / 2);
    }
    /// With the block maxima that reading a file gives.
    spec::Quant4View view(const at::Tensor& w_NK) const {
        spec::Quant4View view;
        view.packed = packed.data_ptr<uint8_t>();
        view.code = tables.data_ptr<float>();
        view.absmax_f32 = values.data_ptr<float>();
        view.rows = w_NK.size(0);
        view.cols = w_NK.size(1);
        return view;
    }
};

void quantise_nf4_on_cpu(const at::Tensor& w_NK, const Nf4Buffers& to) {
    const float* const w = w_NK.data_ptr<float>();
    const int64_t elements = w_NK.numel(), blocks = to.maxima.numel();
    at::parallel_for(0, blocks, fold_task_elements / spec::quant4_block, [&](int64_t begin, int64_t end) {
        spec::quantize_4bit_blocks(spec::Quant4Type::nf4, w + begin * spec::quant4_block, elements, begin, end,
                                   to.packed.data_ptr<uint8_t>(), to.maxima.data_ptr<float>());
    });
    spec::Quant4View coded;
    coded.absmax_u8 = to.codes.data_ptr<uint8_t>();
    coded.nested_map = to.tables.data_ptr<float>() + 16;
    coded.nested_absmax = to.nested.data_ptr<float>();
    coded.nested_offset = spec::quantize_absmax(to.maxima.data_ptr<float>(), blocks, to.codes.data_ptr<uint8_t>(),
                                                to.nested.data_ptr<float>());
    for (int64_t block = 0; block < blocks; ++block)
        to.values.data_ptr<float>()[block] = spec::block_absmax(coded, block);
}

void fold_on_cpu(Context& ctx, const GridFold& fold) {
    const int64_t rows = fold.w_NK.size(0), cols = fold.w_NK.size(1),
                  rank = fold.b_Nr.defined() ? fold.b_Nr.size(1) : 0;
    float* const w = fold.w_NK.data_ptr<float>();
    const bool by_rows = fold.grid != spec::ServeGrid::nf4;
    at::parallel_for(0, rows, std::max<int64_t>(1, fold_task_elements / cols), [&](int64_t begin, int64_t end) {
        if (rank > 0)
            spec::add_low_rank(fold.b_Nr.const_data_ptr<float>() + begin * rank, fold.a_rK.const_data_ptr<float>(),
                               rank, fold.scale, end - begin, cols, w + begin * cols);
        if (by_rows) spec::round_rows_to_grid(fold.grid, end - begin, cols, w + begin * cols);
    });
    if (by_rows) return copy_2d(ctx, fold.w_NK, fold.out_NK);
    const Nf4Buffers buffers(fold.w_NK.numel(), fold.workspace);
    quantise_nf4_on_cpu(fold.w_NK, buffers);
    dequantize_4bit(ctx, buffers.view(fold.w_NK), fold.out_NK);
}

#ifdef UNSLOTH_CUDA
void fold_on_cuda(Context& ctx, const GridFold& fold) {
    const bool adapted = fold.b_Nr.defined();
    const kernels::GridFold params{.grid = fold.grid,
                                   .rows = fold.w_NK.size(0),
                                   .cols = fold.w_NK.size(1),
                                   .rank = adapted ? fold.b_Nr.size(1) : 0,
                                   .w = fold.w_NK.mutable_data_ptr<float>(),
                                   .b = adapted ? fold.b_Nr.const_data_ptr<float>() : nullptr,
                                   .a = adapted ? fold.a_rK.const_data_ptr<float>() : nullptr,
                                   .scale = fold.scale,
                                   .out_type = dtype_of(fold.out_NK),
                                   .out = target_of(fold.out_NK)};
    if (fold.grid != spec::ServeGrid::nf4) return kernels::fold_to_row_grid(params, stream_of(ctx));
    kernels::add_low_rank(params, stream_of(ctx));
    const Nf4Buffers to(fold.w_NK.numel(), fold.workspace);
    kernels::quantize_nf4({.w = params.w,
                           .type = spec::DType::f32,
                           .elements = fold.w_NK.numel(),
                           .map = to.tables.data_ptr<float>() + 16,
                           .packed = to.packed.data_ptr<uint8_t>(),
                           .absmax = to.maxima.data_ptr<float>(),
                           .absmax_codes = to.codes.data_ptr<uint8_t>(),
                           .nested_absmax = to.nested.data_ptr<float>(),
                           .offset = to.offset.data_ptr<float>()},
                          stream_of(ctx));
    kernels::decode_nested_maxima({.blocks = to.maxima.numel(),
                                   .codes = to.codes.data_ptr<uint8_t>(),
                                   .map = to.tables.data_ptr<float>() + 16,
                                   .nested = to.nested.data_ptr<float>(),
                                   .offset = to.offset.data_ptr<float>(),
                                   .maxima = to.values.data_ptr<float>()},
                                  stream_of(ctx));
    dequantize_4bit(ctx, to.view(fold.w_NK), fold.out_NK);
}
#endif

}  // namespace

int64_t grid_workspace(spec::ServeGrid grid, int64_t elements) {
    return grid == spec::ServeGrid::nf4 ? Nf4Buffers(elements).bytes : 0;
}

void prepare_grid_workspace(Context& ctx, spec::ServeGrid grid, const at::Tensor& workspace) {
    if (grid != spec::ServeGrid::nf4) return;
    UNSLOTH_CHECK(workspace.device() == ctx.device(), "the workspace is on ", workspace.device());
    const at::Tensor tables = at::empty({table_floats}, at::kFloat);
    const auto& map = spec::dynamic_map_256(true);
    std::copy(std::begin(spec::nf4_code), std::end(spec::nf4_code), tables.data_ptr<float>());
    std::copy(map.begin(), map.end(), tables.data_ptr<float>() + 16);
    Nf4Buffers(1, workspace).tables.copy_(tables);
}

void fold_to_grid(Context& ctx, const GridFold& fold) {
    const Region region(ctx, "fold_to_grid");
    UNSLOTH_CHECK(fold.grid != spec::ServeGrid::none && fold.w_NK.dim() == 2, "no grid, or no matrix");
    const int64_t rows = fold.w_NK.size(0), cols = fold.w_NK.size(1);
    check_contiguous(ctx, "w", fold.w_NK, {rows, cols}, at::kFloat);
    check_matrix(ctx, "out", fold.out_NK, rows, cols);
    if (fold.b_Nr.defined()) {
        check_contiguous(ctx, "b", fold.b_Nr, {rows, fold.b_Nr.size(1)}, at::kFloat);
        check_contiguous(ctx, "a", fold.a_rK, {fold.b_Nr.size(1), cols}, at::kFloat);
    }
    UNSLOTH_CHECK(!spec::has_row_blocks(fold.grid) || cols % spec::grid_block == 0, cols, " columns");
    const int64_t bytes = grid_workspace(fold.grid, rows * cols);
    UNSLOTH_CHECK(bytes == 0 || (fold.workspace.defined() && fold.workspace.numel() >= bytes),
                  "the workspace is smaller than ", bytes, " bytes");
    if (!ctx.is_cuda()) return fold_on_cpu(ctx, fold);
#ifdef UNSLOTH_CUDA
    fold_on_cuda(ctx, fold);
#endif
}

}  // namespace unsloth::ops
