// What kernels that read tiled 4-bit weights share: exact dequantisation in registers.
#pragma once

#include "kernels/common/device.cuh"
#include "kernels/quant4_scales.cuh"
#include "unsloth/spec/nf4_tiles.h"

namespace unsloth::kernels {

/// Bytes of a tile.
template <bool kMxfp4>
inline constexpr int tile_bytes_of = kMxfp4 ? spec::mxfp4_tile_bytes : spec::nf4_tile_bytes;

/// nested_map[code] * nested_absmax + offset, each operation rounded: a fused multiply-add would change bits.
__device__ __forceinline__ float nf4_scale(float mapped, float nested_absmax, float offset) {
    return __fadd_rn(__fmul_rn(mapped, nested_absmax), offset);
}

/// Two elements, whose codes are the low 4 bits of `low` and `high`: code * scale rounded to fp32, then to
/// bf16, as dequantize_4bit does; low half first. Lane l holds code[l % 16]; a shuffle of width 16 takes the
/// index modulo 16 itself. All lanes take part.
__device__ __forceinline__ uint32_t nf4_pair(uint32_t low, uint32_t high, float code_value, float low_scale,
                                             float high_scale) {
    const float a = __fmul_rn(__shfl_sync(all_lanes, code_value, static_cast<int>(low), 16), low_scale);
    const float b = __fmul_rn(__shfl_sync(all_lanes, code_value, static_cast<int>(high), 16), high_scale);
    return pack_bf16x2(a, b);
}

/// The A operand (16 x 16) of mma.sync.m16n8k16 or of a warp's part of wgmma from a sub-block that ldmatrix
/// gave: rows are rows of the weight. row_scale: of rows lane / 4 and lane / 4 + 8.
__device__ __forceinline__ void nf4_operand(uint32_t word, float code_value, const float (&row_scale)[2], uint32_t* a) {
    a[0] = nf4_pair(word, word >> 16, code_value, row_scale[0], row_scale[0]);
    a[1] = nf4_pair(word >> 4, word >> 20, code_value, row_scale[1], row_scale[1]);
    a[2] = nf4_pair(word >> 8, word >> 24, code_value, row_scale[0], row_scale[0]);
    a[3] = nf4_pair(word >> 12, word >> 28, code_value, row_scale[1], row_scale[1]);
}

/// The same of the transposed sub-block, from ldmatrix.trans: rows are columns of the weight, and the
/// reduction index, a row of the weight, brings the scale: `first` of rows 2 (lane % 4) and + 1, `second` of those + 8.
__device__ __forceinline__ void nf4_operand_transposed(uint32_t word, float code_value, float2 first, float2 second,
                                                       uint32_t* a) {
    a[0] = nf4_pair(word, word >> 16, code_value, first.x, first.y);
    a[1] = nf4_pair(word >> 8, word >> 24, code_value, first.x, first.y);
    a[2] = nf4_pair(word >> 4, word >> 20, code_value, second.x, second.y);
    a[3] = nf4_pair(word >> 12, word >> 28, code_value, second.x, second.y);
}

}  // namespace unsloth::kernels
