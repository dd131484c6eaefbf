// The CUDA form of LoRA's products on our kernels (built with UNSLOTH_CUDA only). Arguments are checked, T > 0, R >
// 0.
#pragma once

#include "unsloth/ops/lora.h"

namespace unsloth::ops {

/// True when the product was issued; false when it is cuBLASLt's: by choice, by measurement, or because the kernel
/// does not take the operands. CheckError for the last with LoraChoice::kernel.
bool lora_u_cuda(Context& ctx, const LoraU& args);
bool lora_dy_cuda(Context& ctx, const LoraDy& args);

}  // namespace unsloth::ops
