// Many small fp32 matrices converted and copied into places of larger ones with one launch: the adapters of all layers
// into the margins of the weights.
#pragma once

#include <vector>

#include "unsloth/ops/context.h"

namespace unsloth::ops {

struct FillBlock {
    at::Tensor source;  ///< fp32 [R, C], row stride free; undefined: zeros
    at::Tensor out;     ///< [R, C], or [C, R] when transposed; fp32, bf16 or f16; row stride free
    double scale = 1.0;
    bool transposed = false;
};

/// Blocks in runs (a layer's blocks are a run); all tensors must stay where they are.
class MultiTensorCopy {
  public:
    /// Bytes of `storage` for blocks of these numbers of elements (0 on the CPU).
    static int64_t bytes(at::Device device, const std::vector<int64_t>& elements);
    /// `runs` begins each run's first block; `storage`: uint8 on the context's device. Outputs of one run do not
    /// overlap. Synchronises.
    MultiTensorCopy(Context& ctx, std::vector<FillBlock> blocks, std::vector<int64_t> runs, at::Tensor storage);
    /// out = scale * source for runs [first, first + count): one launch.
    void run(Context& ctx, int64_t first, int64_t count) const;
    int64_t runs() const { return static_cast<int64_t>(runs_.size()) - 1; }

  private:
    std::vector<FillBlock> blocks_;
    std::vector<int64_t> runs_;   ///< first block of each, and the end
    std::vector<int64_t> tiles_;  ///< the same in tiles, on CUDA
    at::Tensor storage_;
};

}  // namespace unsloth::ops
