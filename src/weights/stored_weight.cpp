#include "unsloth/weights/stored_weight.h"

#include "unsloth/ops/rows.h"

namespace unsloth::weights {

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
            outs_NK[i].copy_(matrix);
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
