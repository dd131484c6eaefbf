// e4m3 codes with one fp32 scale a row, made by the kernels that make the rows; the rule is
// include/unsloth/ops/coded_rows.h's. All of bf16; pointers are device pointers, work is issued on `stream`, nothing
// synchronises; a failed launch throws.
//
// What is quantised is the bf16 result: each kernel equals its plain form followed by quantize_rows_fp8 (rows
// above 8192 columns: up to norm_forward's order of summation).
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/rows_view.h"
#include "kernels/swiglu.h"

namespace unsloth::kernels {

struct Fp8Rows {
    uint8_t* codes = nullptr;  ///< [rows, columns], contiguous; columns a multiple of 8
    float* scales = nullptr;   ///< [rows]
};

/// Longest row of codes that the kernels hold in registers; of SwiGLU's pair it is act forward, [dgate | dup]
/// backward.
inline constexpr int64_t fp8_longest_row = 65536;
/// Longest row that exists already, and is read twice: a vocabulary's logits.
inline constexpr int64_t fp8_longest_read_row = int64_t{1} << 24;
/// Rows must allow 16-byte accesses, and have a multiple of 8 columns up to `longest`.
bool fp8_rows_supported(const ConstMatrix& rows, int64_t columns, int64_t longest = fp8_longest_row);

/// Columns up to fp8_longest_read_row, here and below.
void quantize_rows_fp8(const ConstMatrix& x, int64_t rows, int64_t columns, const Fp8Rows& out, cudaStream_t stream);

/// out = codes * scales, rounded once; out's rows as fp8_rows_supported wants them. Reads 1, writes 2 bytes an element.
void dequantize_rows_fp8(const Fp8Rows& x, int64_t rows, int64_t columns, const Matrix& out, cudaStream_t stream);

/// heads must be 1; no y.data: the bf16 form is not wanted. Reads 2, writes 3 bytes an element (1 without y).
void norm_forward_fp8(const NormForward& params, const Fp8Rows& out, cudaStream_t stream);

/// No act.data: the bf16 form is not wanted.
void swiglu_forward_fp8(const SwigluForward& params, const Fp8Rows& out, cudaStream_t stream);

/// The codes are those of [dgate | dup], 2 * columns a row. codes_alone: gate_up stays as it is.
void swiglu_backward_fp8(const SwigluBackward& params, bool codes_alone, const Fp8Rows& out, cudaStream_t stream);

/// Rotates the first `heads` heads of rows of `columns` values in place, and quantises the whole row. Heads
/// are adjacent: columns is a multiple of head_dim = 2 * pairs, x.head_stride is head_dim; pairs is a
/// multiple of 8. cos and sin are aligned to 16 bytes. codes_alone: x stays as it is.
void rope_apply_fp8(const RopeApply& params, int64_t columns, bool codes_alone, const Fp8Rows& out,
                    cudaStream_t stream);

/// w [rows, columns] -> its transpose [columns, rows], quantised by its own rows; for loading. `scales` holds
/// scratch meanwhile. Deterministic.
void quantize_columns_fp8(const ConstMatrix& w, int64_t rows, int64_t columns, const Fp8Rows& out, cudaStream_t stream);
/// w's rows must allow 16-byte accesses, columns be a multiple of 8, rows of 4; neither 0.
bool fp8_columns_supported(const ConstMatrix& w, int64_t rows, int64_t columns);

}  // namespace unsloth::kernels
