#include "unsloth/ops/serve_grid.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "ops/checks.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/ops/quant.h"
#include "unsloth/ops/rows.h"
#include "unsloth/spec/dynamic_map.h"
#include "unsloth/spec/quant4_host.h"
#include "unsloth/spec/serve_grid_host.h"
#ifdef UNSLOTH_CUDA
#include "kernels/fixed_low_rank.h"
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

/// nf4's workspace, for a matrix of `elements` elements.
struct Nf4Buffers {
    at::Tensor tables, maxima, values, nested, offset;  ///< fp32: block maxima before and after they are coded
    at::Tensor sums;                                    ///< fp64
    at::Tensor codes, packed;                           ///< uint8
    int64_t bytes = 0;

    explicit Nf4Buffers(int64_t elements, const at::Tensor& workspace = {}) {
        const int64_t blocks = (elements + spec::quant4_block - 1) / spec::quant4_block,
                      nested_blocks = (blocks + spec::quant4_nested_block - 1) / spec::quant4_nested_block;
        const auto take = [&](at::Tensor& part, at::ScalarType type, int64_t count) {
            const int64_t size = count * static_cast<int64_t>(c10::elementSize(type));
            if (workspace.defined()) part = workspace.narrow(0, bytes, size).view(type);
            bytes += aligned_part(size);
        };
        take(tables, at::kFloat, table_floats);  // first: they have one address for matrices of all sizes
        take(maxima, at::kFloat, blocks);
        take(values, at::kFloat, blocks);
        take(nested, at::kFloat, nested_blocks);
        take(offset, at::kFloat, 1);
        take(sums, at::kDouble, nested_blocks);
        take(codes, at::kByte, blocks);
        take(packed, at::kByte, (elements + 1) / 2);
    }
    /// With the block maxima that reading a file gives.
    spec::Quant4View view(const at::Tensor& out_NK) const {
        spec::Quant4View view;
        view.packed = packed.data_ptr<uint8_t>();
        view.code = tables.data_ptr<float>();
        view.absmax_f32 = values.data_ptr<float>();
        view.rows = out_NK.size(0);
        view.cols = out_NK.size(1);
        return view;
    }
};

int64_t nf4_bytes(spec::ServeGrid grid, int64_t elements) {
    return grid == spec::ServeGrid::nf4 ? Nf4Buffers(elements).bytes : 0;
}

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

/// Writes W into the buffer for values, unless it is there already.
void expand_values(Context& ctx, const GridFold& fold) {
    if (fold.codes != nullptr) return dequantize_4bit(ctx, *fold.codes, fold.values_NK);
    if (fold.w_NK.const_data_ptr() != fold.values_NK.const_data_ptr()) copy_2d(ctx, fold.w_NK, fold.values_NK);
}

void fold_on_cpu(Context& ctx, const GridFold& fold) {
    const int64_t rows = fold.out_NK.size(0), cols = fold.out_NK.size(1),
                  rank = fold.b_Nr.defined() ? fold.b_Nr.size(1) : 0;
    expand_values(ctx, fold);
    float* const w = fold.values_NK.data_ptr<float>();
    const bool by_rows = fold.grid != spec::ServeGrid::nf4;
    std::optional<spec::FixedLowRank> low_rank;
    if (rank > 0)
        low_rank.emplace(fold.b_Nr.const_data_ptr<float>(), fold.a_rK.const_data_ptr<float>(), rank, fold.scale, rows,
                         cols);
    at::parallel_for(0, rows, std::max<int64_t>(1, fold_task_elements / cols), [&](int64_t begin, int64_t end) {
        if (low_rank) low_rank->add(begin, end, w + begin * cols);
        if (by_rows) spec::round_rows_to_grid(fold.grid, end - begin, cols, w + begin * cols);
    });
    if (by_rows) return copy_2d(ctx, fold.values_NK, fold.out_NK);
    const Nf4Buffers buffers(rows * cols, fold.workspace);
    quantise_nf4_on_cpu(fold.values_NK, buffers);
    dequantize_4bit(ctx, buffers.view(fold.out_NK), fold.out_NK);
}

#ifdef UNSLOTH_CUDA
bool is_aligned(const void* data) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

/// Of the workspace what rounding takes; the adapter's operands follow.
int64_t rounding_bytes(spec::ServeGrid grid, int64_t rows, int64_t cols) {
    if (grid == spec::ServeGrid::fp8) return aligned_part(rows * static_cast<int64_t>(sizeof(uint32_t)));
    return nf4_bytes(grid, rows * cols);
}

/// direct: W is read as it is stored.
kernels::GridFold launch_of(Context& ctx, const GridFold& fold, bool direct) {
    kernels::GridFold params{.grid = fold.grid,
                             .rows = fold.out_NK.size(0),
                             .cols = fold.out_NK.size(1),
                             .out_type = dtype_of(fold.out_NK),
                             .out = target_of(fold.out_NK)};
    if (fold.b_Nr.defined() && fold.b_Nr.size(1) > 0) {
        const int64_t rank = fold.b_Nr.size(1), after = rounding_bytes(fold.grid, params.rows, params.cols);
        params.low_rank =
            kernels::fixed_operands(params.rows, params.cols, rank, fold.workspace.data_ptr<uint8_t>() + after);
        kernels::make_fixed_operands(fold.b_Nr.const_data_ptr<float>(), fold.a_rK.const_data_ptr<float>(), rank,
                                     fold.scale, params.low_rank, stream_of(ctx));
    }
    if (fold.grid == spec::ServeGrid::fp8)
        params.row_largest = reinterpret_cast<uint32_t*>(fold.workspace.data_ptr<uint8_t>());
    if (direct && fold.codes != nullptr) {
        params.codes = *fold.codes;
        return params;
    }
    if (!direct) expand_values(ctx, fold);
    const at::Tensor& w_NK = direct ? fold.w_NK : fold.values_NK;
    params.w = w_NK.const_data_ptr();
    params.w_type = dtype_of(w_NK);
    return params;
}

kernels::MaximaArgs maxima_of(const Nf4Buffers& to) {
    return {.map = to.tables.data_ptr<float>() + 16,
            .absmax = to.maxima.data_ptr<float>(),
            .sums = to.sums.data_ptr<double>(),
            .codes = to.codes.data_ptr<uint8_t>(),
            .nested_absmax = to.nested.data_ptr<float>(),
            .offset = to.offset.data_ptr<float>(),
            .decoded = to.values.data_ptr<float>()};
}

void fold_on_cuda(Context& ctx, const GridFold& fold) {
    const void* const source = fold.codes != nullptr ? fold.codes->packed : fold.w_NK.const_data_ptr();
    kernels::GridFold params = launch_of(ctx, fold, is_aligned(source));
    if (fold.grid != spec::ServeGrid::nf4) return kernels::fold_to_rows(params, stream_of(ctx));
    const int64_t elements = params.rows * params.cols;
    const Nf4Buffers to(elements, fold.workspace);
    if (params.cols % spec::quant4_block == 0) {
        params.nf4 = {to.packed.data_ptr<uint8_t>(), to.maxima.data_ptr<float>()};
        kernels::fold_to_nf4(params, stream_of(ctx));
        kernels::quantize_maxima(maxima_of(to), to.maxima.numel(), stream_of(ctx));
    } else {
        float* const values = fold.values_NK.data_ptr<float>();
        params.out = {values, params.cols};
        kernels::fold_to_values(params, stream_of(ctx));
        kernels::quantize_nf4(
            {.w = values, .elements = elements, .packed = to.packed.data_ptr<uint8_t>(), .maxima = maxima_of(to)},
            stream_of(ctx));
    }
    dequantize_4bit(ctx, to.view(fold.out_NK), fold.out_NK);
}
#endif

}  // namespace

int64_t grid_workspace(spec::ServeGrid grid, int64_t rows, int64_t cols, int64_t rank) {
#ifdef UNSLOTH_CUDA
    const int64_t rounding = rounding_bytes(grid, rows, cols);
    return rank > 0 ? rounding + kernels::fixed_operand_bytes(rows, cols, rank) : rounding;
#else
    (void)rank;
    return nf4_bytes(grid, rows * cols);
#endif
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
    UNSLOTH_CHECK(fold.grid != spec::ServeGrid::none && fold.values_NK.dim() == 2, "no grid, or no matrix");
    const int64_t rows = fold.values_NK.size(0), cols = fold.values_NK.size(1);
    check_contiguous(ctx, "values", fold.values_NK, {rows, cols}, at::kFloat);
    check_matrix(ctx, "out", fold.out_NK, rows, cols);
    if (fold.codes == nullptr) {
        check_matrix(ctx, "w", fold.w_NK, rows, cols);
        UNSLOTH_CHECK(fold.w_NK.is_contiguous(), "w has gaps");
    } else {
        UNSLOTH_CHECK(fold.codes->rows == rows && fold.codes->cols == cols && fold.codes->exponents == nullptr,
                      "codes of another matrix, or MXFP4's");
    }
    if (fold.b_Nr.defined()) {
        check_contiguous(ctx, "b", fold.b_Nr, {rows, fold.b_Nr.size(1)}, at::kFloat);
        check_contiguous(ctx, "a", fold.a_rK, {fold.b_Nr.size(1), cols}, at::kFloat);
    }
    UNSLOTH_CHECK(cols % spec::columns_of(fold.grid) == 0, cols, " columns");
    const int64_t rank = fold.b_Nr.defined() ? fold.b_Nr.size(1) : 0,
                  bytes =
                      ctx.is_cuda() ? grid_workspace(fold.grid, rows, cols, rank) : nf4_bytes(fold.grid, rows * cols);
    UNSLOTH_CHECK(rank <= spec::largest_fixed_rank, "rank ", rank);
    UNSLOTH_CHECK(bytes == 0 || (fold.workspace.defined() && fold.workspace.numel() >= bytes),
                  "the workspace is smaller than ", bytes, " bytes");
    if (!ctx.is_cuda()) return fold_on_cpu(ctx, fold);
#ifdef UNSLOTH_CUDA
    fold_on_cuda(ctx, fold);
#endif
}

}  // namespace unsloth::ops
