// The CUDA form of LoRA's products on our kernels (built with UNSLOTH_CUDA only). Arguments are checked, T > 0, R >
// 0.
#pragma once

#include "unsloth/ops/lora.h"

namespace unsloth::ops {

/// Whether our kernels run on a card: they want clusters, and more shared memory a block than cards of games have (99
/// KiB, of 12.0 too).
constexpr bool lora_runs_on(int compute_major, std::size_t shared_bytes_of_block) {
    return compute_major >= 9 && shared_bytes_of_block >= std::size_t{227} * 1024;
}

/// True when the product was issued; false when it is cuBLASLt's: by choice, by measurement, or because the kernel
/// does not take the operands. CheckError for the last with LoraChoice::kernel or codes, which only the kernel reads.
bool lora_u_cuda(Context& ctx, const LoraU& args);
bool lora_dy_cuda(Context& ctx, const LoraDy& args);

/// reads_codes() of ops/lora.h, where there are codes.
bool lora_reads_codes_cuda(const Context& ctx, const LoraU& args);
bool lora_reads_codes_cuda(const Context& ctx, const LoraDy& args);

}  // namespace unsloth::ops
