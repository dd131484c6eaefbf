// Launchers of the LoRA GEMMs on tensor cores: u = x·Aᵀ, and v = dy·sB with dB += s·dyᵀ·u in one read of dy. No
// LibTorch here: pointers, strides, a stream. See include/unsloth/ops/lora.h.
//
// Legend: T tokens, N a group's outputs, K its inputs, R its total rank (each projection's padded to 8), r one
// projection's. Inputs and u, v: bf16 or f16, fp32 sums, rounded once. Gradients: fp32. Every sum has a fixed order
// for a given plan, and a plan follows from the shapes and the card: the same call gives the same bits. Errors:
// CheckError for what lora_supports() denies, runtime Error when a launch fails.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/coded_gemm.h"
#include "kernels/rows_view.h"
#include "unsloth/spec/dtype.h"

namespace unsloth::kernels {

inline constexpr int most_lora_parts = 4;
inline constexpr int64_t most_projected_rank = 64;  ///< R of the group for u, of codes
inline constexpr int64_t most_part_rank = 32;       ///< r of a part for v and dB: 64 measured slower than the library

/// One projection's place in its group.
struct LoraPart {
    int64_t n_begin = 0, n = 0;  ///< columns of dy, rows of sB; multiples of 8
    int64_t r_begin = 0, r = 0;  ///< columns of u and v: padded, multiples of 8
    int64_t rank = 0;            ///< columns of dB; 0: no adapter, no gradient
    float scale = 1;             ///< of dB
    float* db = nullptr;         ///< [n, rank], contiguous, +=
};

/// Rows of x or dy as codes, which are read instead: value = scale · code / factor.
struct CodedRows {
    CodeFormat format = CodeFormat::e4m3;
    const void* codes = nullptr;    ///< [T, columns], contiguous; nullptr: there are none
    const float* scales = nullptr;  ///< e4m3: [T]; int8: as CodedGemmCase::sx
    int64_t scale_stride = 0;
    const void* factors = nullptr;  ///< [columns] bf16, powers of two; nullptr: ones
};

/// How a product is cut up. tile: an index that the launcher knows; cluster: blocks that add their sums through
/// shared memory (1 to 8); splits: further parts of the tokens, added by a second kernel.
struct LoraPlan {
    int tile = 0, cluster = 1, splits = 1;
};

/// u = x·Aᵀ.
struct LoraProjection {
    int64_t tokens = 0, k = 0, r = 0;
    spec::DType type = spec::DType::bf16;
    ConstMatrix x;    ///< [T, K]
    ConstMatrix a;    ///< [R, K]
    Matrix u;         ///< [T, R], usually the columns right of x
    Matrix copy;      ///< [T, R]: a second u; no data: none
    CodedRows codes;  ///< of x
    /// int32 [T] and [R], both or none: u is 0 where they differ. Not with codes.
    const int32_t* token_owner = nullptr;
    const int32_t* column_owner = nullptr;
};
/// True when lora_u takes these operands: 16-bit types (bf16, of codes), 16-byte rows, R >= 8 (of codes up to 64), a
/// card with clusters (sm_90 or later). Pure.
bool lora_supports(const LoraProjection& p, int compute_major);
LoraPlan lora_plan(const LoraProjection& p);
/// Up to this number of tokens, a block makes one value of u.
inline constexpr int most_tokens_by_columns = 8;
void lora_u(const LoraProjection& p, const LoraPlan& plan, cudaStream_t stream);

/// v = dy·sB and dB += scale·dyᵀ·u.
struct LoraBackward {
    int64_t tokens = 0, n = 0, r = 0;
    spec::DType type = spec::DType::bf16;
    int part_count = 0;
    LoraPart parts[most_lora_parts];
    ConstMatrix dy;           ///< [T, N]
    ConstMatrix b;            ///< sB [N, R], block diagonal: of a part's rows only that part's columns are read
    const void* u = nullptr;  ///< [T, R], contiguous
    Matrix v;                 ///< [T, R], usually the columns right of dy; columns of no part are left alone
    CodedRows codes;          ///< of dy
};
/// True when lora_v_db takes these operands: 16-bit types (bf16, of codes), 16-byte rows (sB's aside), r <= 32, sm_90
/// or later; of codes parts of whole 16 columns, which begin where a block of int8's scales does. Pure.
bool lora_supports(const LoraBackward& p, int compute_major);
LoraPlan lora_plan(const LoraBackward& p, int multiprocessors);
/// Bytes that let lora_v_db take all tokens at once, and the least that it works with.
struct LoraWorkspace {
    int64_t wanted = 0, least = 0;
};
LoraWorkspace lora_workspace(const LoraBackward& p, const LoraPlan& plan);
/// Two kernels; with less workspace than wanted it takes the tokens in runs of two kernels each. `workspace`: aligned
/// to 16.
void lora_v_db(const LoraBackward& p, const LoraPlan& plan, void* workspace, int64_t workspace_bytes,
               cudaStream_t stream);

}  // namespace unsloth::kernels
