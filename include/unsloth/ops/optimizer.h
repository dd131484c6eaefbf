// AdamW over one flat buffer, in fp32 and 8-bit block-wise, and the global gradient norm.
//
// Tensors start at multiples of 256 elements in the flat buffers, so a 256-element block belongs to one tensor.
// Sources: Loshchilov & Hutter, "Decoupled Weight Decay Regularization"; Dettmers et al., "8-bit Optimizers via Block-wise
// Quantization"; torch.optim.AdamW (decay before the update) and bitsandbytes' CUDA kernel (decay after it).
#pragma once

#include "unsloth/ops/context.h"

namespace unsloth::ops {

inline constexpr int64_t optimizer_block = 256;

struct AdamwSettings {
    double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
};

/// Flags of a 256-element block.
enum BlockFlag : uint8_t { block_decays = 1, block_8bit = 2 };

/// Flat state. P is a multiple of 256. All on the context's device.
struct AdamwState {
    at::Tensor params_P;     ///< fp32
    at::Tensor grads_P;      ///< fp32
    at::Tensor flags_b;      ///< uint8 [P / 256]: BlockFlag
    /// For each block the index of its 256-element slot in the 32-bit or in the 8-bit moments (by its flag): int32 [P / 256].
    at::Tensor slot_b;
    at::Tensor m32, v32;     ///< fp32, slots of 256
    at::Tensor m8, v8;       ///< uint8 codes, slots of 256; start as 0
    at::Tensor absmax_m8, absmax_v8;  ///< fp32 [slots8]; start as 0
    at::Tensor maps;         ///< fp32 [512]: signed dynamic map, unsigned dynamic map (see dynamic_map)
};

/// bitsandbytes' 8-bit dynamic map: 256 ascending fp32 values.
std::vector<float> dynamic_map(bool is_signed);

/// Computes the global L2 norm of grads (fp32 partial sums in a fixed order, fp64 total), removes the loss scale, and writes
/// outcome->grad_norm, outcome->clip = min(1, max_grad_norm / (norm + 1e-6)) / loss_scale and outcome->skipped (1 when
/// the norm is not finite, or outcome->first_bad_site names a place). `partials`: fp32/fp64 scratch, see gradient_norm_scratch.
void gradient_norm(Context& ctx, const at::Tensor& grads_P, const at::Tensor& scratch);
int64_t gradient_norm_scratch(int64_t elements);  ///< bytes

/// One AdamW update of every block; learning rate, step and bias corrections from ctx.scalars, clip factor and skip from
/// ctx.outcome. 32-bit blocks follow torch.optim.AdamW; 8-bit ones bitsandbytes' arithmetic (update from the unquantised
/// moments, decay after the update), with a guard: an element whose second moment rounds to code 0 while its first does
/// not keeps the smallest non-zero code of v, so that a following zero gradient cannot divide by eps alone.
/// Nothing is changed when outcome->skipped.
void adamw_step(Context& ctx, const AdamwState& state, const AdamwSettings& settings);

}  // namespace unsloth::ops
