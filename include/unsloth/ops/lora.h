// LoRA GEMMs for a group of projections that share an input: u = x·Aᵀ, v = dy·sB, dB += s·dyᵀ·u, dA +=
// vᵀ·x.
//
// Legend: T tokens, N the group's outputs, K its inputs, R its total rank (each projection's padded to 8), r a
// projection's. Layout of the buffers: weights/layout.h. On CUDA each product runs on this project's kernels where they
// measured faster than cuBLASLt, else on cuBLASLt; on the CPU it is ops::gemm. fp32 sums in a fixed order, one
// rounding to the output's dtype.
#pragma once

#include <string>
#include <vector>

#include "unsloth/ops/gemm_coded.h"

namespace unsloth::ops {

/// One projection's place in its group, and its gradients.
struct LoraSlice {
    int64_t n_begin = 0, n = 0;  ///< columns of dy, rows of sB
    int64_t r_begin = 0, r = 0;  ///< columns of u and v, rows of A that are reserved: multiples of 8
    int64_t rank = 0;            ///< of them in use; 0: no adapter, gradients are not looked at
    double scale = 1.0;          ///< of dB
    at::Tensor da = {};          ///< fp32 [rank, K], row stride free, +=
    at::Tensor db = {};          ///< fp32 [n, rank], contiguous, +=
};

/// Who computes a product on CUDA.
enum class LoraChoice : uint8_t {
    measured,  ///< our kernel where ctx.kernels says so
    kernel,    ///< our kernel; CheckError when it does not take the operands
    library,   ///< cuBLASLt
};

/// u = x·Aᵀ. Row strides are free; u may be the columns next to x.
struct LoraU {
    at::Tensor x_TK;  ///< fp32, bf16 or f16; not looked at, and may be undefined, where there are codes
    at::Tensor a_RK;
    at::Tensor u_TR;
    at::Tensor copy_TR = {};  ///< a second u; undefined: none
    CodedMatrix codes = {};   ///< of x, which are read instead; empty: none. CheckError where reads_codes() denies
    /// int32, both or none: u is 0 where they differ, as rows.h's zero_others makes it. Not with codes.
    at::Tensor owner_T = {}, owner_R = {};
    LoraChoice choice = LoraChoice::measured;
    const char* label = "lora u";
};
void lora_u(Context& ctx, const LoraU& args);
/// Whether it reads args.codes, and nothing else of x: on the CPU, as the reference, and by our kernels, whatever
/// ctx.kernels says: where they run, for a bf16 u of a rank up to 64. False where there are none.
bool reads_codes(const Context& ctx, const LoraU& args);

/// v = dy·sB and dB += s·dyᵀ·u, in one read of dy where our kernel runs (it uses ctx.workspace). v may be the columns
/// next to dy.
struct LoraDy {
    at::Tensor dy_TN;  ///< as LoraU's x
    at::Tensor b_NR;   ///< s·B, zero outside of the slices; those of one adapter share rank columns (library alone)
    at::Tensor u_TR;
    at::Tensor v_TR;
    std::vector<LoraSlice> slices;
    CodedMatrix codes = {};  ///< of dy, as LoraU's
    LoraChoice choice = LoraChoice::measured;
    const char* label = "lora dy";
    const char* label_v = "lora dyB";  ///< of the two products, where they are separate
    const char* label_db = "lora dB";
};
void lora_dy(Context& ctx, const LoraDy& args);
/// As LoraU's; up to a rank of 32 a projection, with a contiguous u. Our kernels want projections of whole 16 columns,
/// that begin at multiples of 16, of int8 codes of int8_block; and a ctx.workspace that holds a part of v and dB.
bool reads_codes(const Context& ctx, const LoraDy& args);

/// dA += vᵀ·x: always a library GEMM (it reads x at the copy rate, and few tokens in one kernel), of all slices at once
/// where their gradients are contiguous.
struct LoraDa {
    at::Tensor v_TR, x_TK;
    std::vector<LoraSlice> slices;
    const char* label = "lora dA";
};
void lora_da(Context& ctx, const LoraDa& args);

}  // namespace unsloth::ops
