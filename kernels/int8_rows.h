// int8 codes with an fp32 scale for every int8_block of a row, made by the kernels that make the rows; the rule is
// include/unsloth/ops/coded_rows.h's. All of bf16; pointers are device pointers, work is issued on `stream`, nothing
// synchronises; a failed launch throws.
//
// What is quantised is the bf16 result: each kernel equals its plain form followed by quantize_rows_int8 (rows above
// 8192 columns: up to norm_forward's order of summation).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/coded_gemm.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/rows_view.h"
#include "kernels/swiglu.h"

namespace unsloth::kernels {

struct Int8Rows {
    int8_t* codes = nullptr;        ///< [rows, columns], contiguous; columns a multiple of 8
    float* scales = nullptr;        ///< [blocks, scale_stride]: block b of row i at b * scale_stride + i
    int64_t scale_stride = 0;       ///< at least as many as there are rows
    const void* factors = nullptr;  ///< [columns] bf16, powers of two, aligned to 16 bytes: values are multiplied
                                    ///< by them before they become codes; nullptr: by 1
};

/// Rows are what fp8_rows_supported wants, here and below.
void quantize_rows_int8(const ConstMatrix& x, int64_t rows, int64_t columns, const Int8Rows& out, cudaStream_t stream);

/// heads must be 1; no y.data: the bf16 form is not wanted.
void norm_forward_int8(const NormForward& params, const Int8Rows& out, cudaStream_t stream);

/// No act.data: the bf16 form is not wanted.
void swiglu_forward_int8(const SwigluForward& params, const Int8Rows& out, cudaStream_t stream);

/// The codes are those of [dgate | dup], 2 * columns a row; columns a multiple of int8_block. codes_alone: gate_up
/// stays as it is.
void swiglu_backward_int8(const SwigluBackward& params, bool codes_alone, const Int8Rows& out, cudaStream_t stream);

/// Rotates the first `heads` heads of rows of `columns` values in place, and quantises the whole row. Heads are
/// adjacent: columns is a multiple of head_dim = 2 * pairs, which divides int8_block and is a multiple of 16;
/// x.head_stride is head_dim. cos and sin are aligned to 16 bytes. codes_alone: x stays as it is.
void rope_apply_int8(const RopeApply& params, int64_t columns, bool codes_alone, const Int8Rows& out,
                     cudaStream_t stream);

}  // namespace unsloth::kernels
