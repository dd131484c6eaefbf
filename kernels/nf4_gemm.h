// Matrix products that dequantise tiled 4-bit weights (spec/nf4_tiles.h) in registers. All pointers are
// device pointers, work is issued on `stream`, nothing synchronises; a failed launch throws.
//
// Legend: M tokens, N outputs and K inputs of the weight; R rank of a low-rank tail.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/rows_view.h"
#include "unsloth/spec/nf4_tiles.h"

namespace unsloth::kernels {

/// Weights that one product takes: a fused group's, stacked along N.
inline constexpr int nf4_gemm_most_weights = 4;

/// Columns of the tail's weight that are not 0 in all rows of a weight.
struct TailColumns {
    int64_t begin = 0, count = 0;  ///< multiples of 8
};

/// forward:    out[M, N] = x[M, K] Wᵀ + u[M, R] bᵀ + bias + residual
/// transposed: out[M, K] = x[M, N] W  + u[M, R] a            (x is dy; bias and residual are allowed here
/// too) All of bf16 with fp32 accumulation, rounded once. W has exactly the values that dequantisation to
/// bf16 gives (but for nf4_gemm_few). The order of summation is fixed for given arguments. out may be residual, and
/// overlaps nothing else.
struct Nf4GemmArgs {
    const spec::Nf4TilesView* weights = nullptr;  ///< [count], the same cols in all; N is the sum of their rows
    int count = 0;                                ///< 1 to nf4_gemm_most_weights
    bool transposed = false;
    int64_t m = 0;
    ConstMatrix x;            ///< [M, K + R] (transposed: [M, N + R]): u directly follows x's columns
    int64_t tail = 0;         ///< R, a multiple of 8; 0: no tail
    ConstMatrix tail_weight;  ///< forward: b [N, R]; transposed: a [R, K]
    /// Forward: [count], those of each weight's rows; others are not read. nullptr: all are.
    const TailColumns* tail_columns = nullptr;
    const void* bias = nullptr;  ///< [N] (transposed: [K]); nullptr: none
    ConstMatrix residual;        ///< [M, N] (transposed: [M, K]); data nullptr: none
    Matrix out;
};

/// What the arguments must fulfil for either kernel: bf16 rows of x, residual and out start at multiples of
/// 16 bytes, those of the tail's weight at multiples of 4; tiles are aligned to 16; sizes as said above.
bool nf4_gemm_supported(const Nf4GemmArgs& args);

/// Form of the portable kernel (mma.sync, sm_80 and later): a block makes 16 * strips rows of the result's
/// second dimension for 8 * token_groups tokens; its warps share the reduction.
struct Nf4GemmForm {
    int token_groups = 1;
    int strips = 2;
    int warps = 16;
};
/// Which forms are built.
bool nf4_gemm_has(Nf4GemmForm form);
void nf4_gemm(const Nf4GemmArgs& args, Nf4GemmForm form, cudaStream_t stream);

/// Form of the Hopper kernel (wgmma, TMA; sm_90a): a block makes 128 rows of the result's second dimension
/// for `tokens` tokens; `split` blocks of a cluster share the reduction.
struct Nf4GemmSm90Form {
    int tokens = 128;    ///< 16, 32, 64, 128, 256
    int split = 1;       ///< 1 to 8; 1 with 256 tokens
    bool pairs = false;  ///< weights as nf4_gemm_few's; forward alone, with 64 or 128 tokens
};
bool nf4_gemm_sm90_has(Nf4GemmSm90Form form);
void nf4_gemm_sm90(const Nf4GemmArgs& args, Nf4GemmSm90Form form, cudaStream_t stream);

/// The kernel of few tokens (mma.sync, sm_80 and later), forward alone: blocks of 4 or 8 tokens. Its weights are
/// nearer to the fp32 ones than those that dequantisation to bf16 gives, see nf4_gemm_few.cu.
bool nf4_gemm_few_has(int tokens);
void nf4_gemm_few(const Nf4GemmArgs& args, int tokens, cudaStream_t stream);

}  // namespace unsloth::kernels
