// 4-bit and 8-bit weights on a device: dequantise to a strided matrix, or some rows; quantise a 16/32-bit one.
#pragma once

#include <span>

#include "unsloth/ops/context.h"
#include "unsloth/spec/quant4.h"

namespace unsloth::ops {

/// out_NK (bf16, f16 or fp32, row stride free) = the dequantised weight; fp32 arithmetic without fused
/// multiply-add, rounded once. Pointers of `weight` are on ctx.device(). Bit-exact with bitsandbytes (see
/// tests/golden/quant). CUDA: near copy speed when cols and out's row stride are multiples of 8 and out is
/// aligned to 16 bytes (packed codes to 4), correct for all.
void dequantize_4bit(Context& ctx, const spec::Quant4View& weight, const at::Tensor& out_NK);

/// The same for weights[i] into outs[i], all of one dtype and apart from each other: a fused group's or a
/// layer's weights, as a rule into slices of few buffers. CUDA: one launch for every eight that have the
/// sizes and alignment above.
void dequantize_4bit(Context& ctx, std::span<const spec::Quant4View> weights, std::span<const at::Tensor> outs);

/// A quantised weight that owns its memory on a device (or shares the host's, see `upload`).
struct Quant4Tensor {
    at::Tensor packed;         ///< uint8 [ceil(NK/2)]
    at::Tensor absmax;         ///< uint8 [blocks] (nested; or MXFP4's exponents) or fp32
    at::Tensor nested_absmax;  ///< fp32 [ceil(blocks/256)]; undefined when not nested
    at::Tensor tables;         ///< fp32 [16 + 256]: code, nested map (zeros when not nested)
    float nested_offset = 0;
    int64_t rows = 0, cols = 0;
    int64_t block() const { return is_mxfp4() ? spec::mxfp4_block : spec::quant4_block; }
    bool is_mxfp4() const { return absmax.scalar_type() == at::kByte && !nested_absmax.defined(); }
    spec::Quant4View view() const;
};

/// Brings a weight from host memory to ctx.device(). On CUDA it is copied (the host's memory is free when the
/// call returns); on the CPU the codes and block maxima are shared, not copied: `host` must outlive the
/// result.
Quant4Tensor upload(Context& ctx, const spec::Quant4View& host);

/// Quantises w_NK (contiguous, fp32/bf16/f16, on ctx.device()) to NF4 with double quantisation, equal to
/// bitsandbytes' CUDA result within the bounds of tests/golden/quant; reductions run in a fixed order. A
/// block of zeros dequantises to zeros. Allocates its result (loading, not the step). Synchronises. An input
/// Error when w_NK holds a value that is not finite.
Quant4Tensor quantize_nf4(Context& ctx, const at::Tensor& w_NK);

/// An 8-bit weight with a scale for each row (LLM.int8): w = (code · maximum) · (1 / 127), each product rounded.
struct Int8Tensor {
    at::Tensor codes;   ///< int8 [N, K]
    at::Tensor maxima;  ///< fp32 [N]
};

/// out_NK (bf16, f16 or fp32, row stride free) = the weight's values, rounded once.
void dequantize_int8(Context& ctx, const Int8Tensor& weight, const at::Tensor& out_NK);

/// x_NK (bf16, rows without gaps): each value keeps `bits` bits of mantissa after its leading one, 1 to 7, rounded to
/// nearest, ties to even; values that are not finite stay so. For loading: allocates some rows at a time. A tensor core
/// at its card's power limit saves the energy of the dropped bits.
void round_mantissa(const at::Tensor& x_NK, int64_t bits);

/// out_nD[i] = row index_n[i] of the dequantised table, rounded once; index int32. Otherwise as gather_rows
/// (ops/rows.h): the table may be in pinned host memory.
void gather_rows(Context& ctx, const Int8Tensor& table_VD, const at::Tensor& index_n, const at::Tensor& out_nD);
void gather_rows(Context& ctx, const spec::Quant4View& table_VD, const at::Tensor& index_n, const at::Tensor& out_nD);

}  // namespace unsloth::ops
