// AdamW over one flat buffer, in fp32 and 8-bit block-wise, and the global gradient norm.
//
// Tensors start at multiples of 256 elements in the flat buffers, so a 256-element block belongs to one
// tensor. Sources: Loshchilov & Hutter, "Decoupled Weight Decay Regularization"; Dettmers et al., "8-bit
// Optimizers via Block-wise Quantization"; torch.optim.AdamW (decay before the update) and bitsandbytes' CUDA
// kernel (decay after it).
#pragma once

#include <array>
#include <vector>

#include "unsloth/ops/context.h"

namespace unsloth::ops {

inline constexpr int64_t optimizer_block = 256;

/// Groups of blocks that have a learning rate each.
inline constexpr int rate_groups = 4;

struct AdamwSettings {
    double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
    std::array<double, rate_groups> rate_factors = {1, 1, 1, 1};  ///< of each group, on the step's learning rate
};

/// Flags of a 256-element block; the bits above them are the number of its rate group.
enum BlockFlag : uint8_t { block_decays = 1, block_8bit = 2 };
inline constexpr int block_rate_shift = 2;

/// Flat state. P is a multiple of 256. All on the context's device, contiguous; what has no slots may be
/// undefined.
struct AdamwState {
    at::Tensor params_P;  ///< fp32
    at::Tensor grads_P;   ///< fp32
    at::Tensor flags_b;   ///< uint8 [P / 256]: BlockFlag, rate group
    /// For each block the index of its 256-element slot in the 32-bit or in the 8-bit moments (by its flag):
    /// int32 [P / 256].
    at::Tensor slot_b;
    at::Tensor m32, v32;              ///< fp32, slots of 256; start as 0
    at::Tensor m8, v8;                ///< uint8 codes, slots of 256; start as 0
    at::Tensor absmax_m8, absmax_v8;  ///< fp32 [slots8]; start as 0
    at::Tensor maps;                  ///< fp32 [512]: signed dynamic map, unsigned dynamic map (see dynamic_maps)
};

/// bitsandbytes' 8-bit dynamic map: 256 ascending fp32 values.
std::vector<float> dynamic_map(bool is_signed);

/// AdamwState::maps on `device`.
at::Tensor dynamic_maps(at::Device device);

/// 1 - beta^step as StepScalars holds it, from fp64 (as torch's optimizers compute it; bitsandbytes does it
/// in fp32, which moves the update by up to 1e-5 of itself in the first steps).
float bias_correction(double beta, uint32_t step);

/// Computes the global L2 norm of grads_P (partial sums of 16384 elements in a fixed order, fp64 total),
/// removes the loss scale, and writes outcome->grad_norm, outcome->clip = min(1, max_grad_norm / (norm +
/// 1e-6)) / loss_scale (without the minimum when max_grad_norm <= 0) and outcome->skipped (1, and clip 0,
/// when the norm is not finite or outcome->first_bad_site names a place; where it names none yet, a norm that is not
/// finite becomes it: bad_gradient_norm).
/// grads_P: fp32, contiguous, aligned to 16 bytes, a multiple of 4 elements. `scratch`:
/// gradient_norm_scratch(P) bytes of the device, aligned to 8, any dtype.
void gradient_norm(Context& ctx, const at::Tensor& grads_P, const at::Tensor& scratch);
int64_t gradient_norm_scratch(int64_t elements);  ///< bytes

/// Elements of a partial sum.
inline constexpr int64_t gradient_norm_chunk = 16384;
/// gradient_norm's two halves, for gradients of which a rank has a part that begins at a multiple of a chunk: the sums
/// of squares of its chunks (fp64, contiguous, one a chunk), and what follows from those of all chunks, to the same
/// bits.
void gradient_squares(Context& ctx, const at::Tensor& grads_P, const at::Tensor& partials);
void finish_gradient_norm(Context& ctx, const at::Tensor& partials);

/// One AdamW update of every block; learning rate, step and bias corrections from ctx.scalars, clip factor
/// and skip from ctx.outcome. 32-bit blocks follow torch.optim.AdamW; 8-bit ones bitsandbytes' arithmetic
/// (update from the unquantised moments, decay after the update), with a guard: where the second moment had
/// rounded to code 0 while the first had not, v is at least what the smallest non-zero code would have
/// become, so that a (nearly) zero gradient cannot divide by eps alone. Gradients that outweigh that entry
/// are untouched by the guard: codes stay bitsandbytes'. Nothing is changed when outcome->skipped. Gradients
/// are left as they are, or with `zero_gradients` all zero (+0), also after a skipped step: the next step
/// then needs no pass that clears them.
void adamw_step(Context& ctx, const AdamwState& state, const AdamwSettings& settings, bool zero_gradients = false);

}  // namespace unsloth::ops
