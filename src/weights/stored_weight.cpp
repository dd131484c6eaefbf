#include "unsloth/weights/stored_weight.h"

#include "unsloth/core/error.h"
#include "unsloth/ops/rows.h"
#include "unsloth/ops/upload.h"
#include "unsloth/weights/part.h"

namespace unsloth::weights {
namespace {

/// A part's block maxima in fp32, or MXFP4's exponents; `part` in blocks. Multiplied and added apart, as
/// spec::Quant4View says.
at::Tensor plain_maxima(const ops::Quant4Tensor& whole, const spec::MatrixSlice& part) {
    const int64_t blocks = whole.cols / whole.block();
    const at::Tensor maxima = part_of(whole.absmax.view({whole.rows, blocks}), part);
    if (!whole.nested_absmax.defined()) return maxima.contiguous().view({-1});
    const auto indices = at::TensorOptions(at::kLong).device(maxima.device());
    const at::Tensor places =
        part_of(at::arange(whole.rows * blocks, indices).view({whole.rows, blocks}), part).reshape({-1});
    const at::Tensor nested_block = places.floor_divide(spec::quant4_nested_block);
    const at::Tensor values = whole.tables.narrow(0, 16, 256).index_select(0, maxima.reshape({-1}).to(at::kLong));
    return values.mul(whole.nested_absmax.index_select(0, nested_block)).add(whole.nested_offset);
}

ops::Quant4Tensor slice_of(const ops::Quant4Tensor& whole, const spec::MatrixSlice& part) {
    const int64_t block = whole.block();
    UNSLOTH_CHECK(whole.cols % block == 0 && part.columns.begin % block == 0 && part.columns.size % block == 0,
                  "columns ", part.columns.begin, " + ", part.columns.size, " of ", whole.cols, " in 4 bit");
    const auto columns_by = [&](int64_t unit) {
        return spec::MatrixSlice{part.rows, {part.columns.begin / unit, part.columns.size / unit}, part.more_rows};
    };
    ops::Quant4Tensor made = whole;
    made.rows = part.row_count();
    made.cols = part.columns.size;
    made.packed = part_of(whole.packed.view({whole.rows, whole.cols / 2}), columns_by(2)).contiguous().view({-1});
    if (!whole.nested_absmax.defined() || !keeps_nested_maxima(part, whole.cols)) {
        made.absmax = plain_maxima(whole, columns_by(block));
        made.nested_absmax = at::Tensor();
        made.nested_offset = 0;
        return made;
    }
    constexpr int64_t nested = spec::quant4_nested_block;
    const int64_t first = part.rows.begin * whole.cols / block, blocks = part.rows.size * whole.cols / block;
    made.absmax = whole.absmax.narrow(0, first, blocks);
    made.nested_absmax = whole.nested_absmax.narrow(0, first / nested, (blocks + nested - 1) / nested);
    return made;
}

}  // namespace

bool keeps_nested_maxima(const spec::MatrixSlice& part, int64_t cols) {
    return part.columns == spec::Range{0, cols} && part.more_rows.empty() &&
           part.rows.begin * cols % (spec::quant4_block * spec::quant4_nested_block) == 0;
}

StoredWeight slice(const StoredWeight& whole, const spec::MatrixSlice& part) {
    if (const auto* quantised = std::get_if<ops::Quant4Tensor>(&whole)) {
        const spec::MatrixSlice all{{0, quantised->rows}, {0, quantised->cols}};
        return part == all ? *quantised : slice_of(*quantised, part);
    }
    if (const auto* int8 = std::get_if<ops::Int8Tensor>(&whole))
        return ops::Int8Tensor{part_of(int8->codes, part).contiguous(), joined_rows_of(int8->maxima, part)};
    return part_of(std::get<at::Tensor>(whole), part).contiguous();
}

void expand(ops::Context& ctx, std::span<const StoredWeight* const> weights, std::span<const at::Tensor> outs_NK) {
    std::vector<spec::Quant4View> rows;
    std::vector<at::Tensor> outs;
    for (std::size_t i = 0; i < weights.size(); ++i) {
        if (const auto* quantised = std::get_if<ops::Quant4Tensor>(weights[i])) {
            rows.push_back(quantised->view());
            outs.push_back(outs_NK[i]);
        } else if (const auto* tiles = std::get_if<ops::Nf4Tiles>(weights[i])) {
            ops::dequantize_nf4_tiles(ctx, *tiles, outs_NK[i]);
        } else if (const auto* int8 = std::get_if<ops::Int8Tensor>(weights[i])) {
            ops::dequantize_int8(ctx, *int8, outs_NK[i]);
        } else if (const at::Tensor& matrix = std::get<at::Tensor>(*weights[i]); matrix.device() == ctx.device()) {
            ops::copy_2d(ctx, matrix, outs_NK[i]);
        } else {
            ops::copy_from_host(matrix, outs_NK[i]);
        }
    }
    if (!rows.empty()) ops::dequantize_4bit(ctx, rows, outs);
}

void expand(ops::Context& ctx, const StoredWeight& weight, const at::Tensor& out_NK) {
    const StoredWeight* const one[] = {&weight};
    expand(ctx, one, std::span(&out_NK, 1));
}

void gather_rows(ops::Context& ctx, const StoredWeight& weight, const at::Tensor& index_n, const at::Tensor& out_nD) {
    if (const auto* quantised = std::get_if<ops::Quant4Tensor>(&weight)) {
        ops::gather_rows(ctx, quantised->view(), index_n, out_nD);
    } else if (const auto* int8 = std::get_if<ops::Int8Tensor>(&weight)) {
        ops::gather_rows(ctx, *int8, index_n, out_nD);
    } else {
        ops::gather_rows(ctx, std::get<at::Tensor>(weight), index_n, out_nD);
    }
}

float* nested_offset(StoredWeight& weight) {
    if (auto* rows = std::get_if<ops::Quant4Tensor>(&weight)) return &rows->nested_offset;
    if (auto* tiles = std::get_if<ops::Nf4Tiles>(&weight)) return &tiles->nested_offset;
    return nullptr;
}

}  // namespace unsloth::weights
