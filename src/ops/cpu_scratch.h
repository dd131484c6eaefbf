// An operator's temporary buffers on the CPU, cut from the planned workspace: LibTorch's temporaries come
// from malloc, and a heap that large buffers of many sizes come from and go to grows for thousands of steps.
#pragma once

#include "unsloth/ops/context.h"

namespace unsloth::ops::cpu {

/// Buffers from ctx.workspace, one after another, all given back at the end of the object. What does not fit there is
/// allocated: operators work without a planned workspace too. A copy takes what follows the original's buffers.
class Scratch {
  public:
    explicit Scratch(const Context& ctx) : workspace_(ctx.workspace) {}

    /// Contiguous, not initialised.
    at::Tensor take(at::IntArrayRef sizes, at::ScalarType type) {
        const int64_t bytes = c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(type));
        if (!workspace_.defined() || used_ + bytes > workspace_.numel())
            return at::empty(sizes, at::TensorOptions().dtype(type));
        const at::Tensor taken = workspace_.narrow(0, used_, bytes).view(type).view(sizes);
        used_ += rounded(bytes);
        return taken;
    }
    /// What a buffer takes: they begin at multiples of 64 bytes, as LibTorch's allocations do.
    static int64_t rounded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

  private:
    at::Tensor workspace_;
    int64_t used_ = 0;
};

}  // namespace unsloth::ops::cpu
