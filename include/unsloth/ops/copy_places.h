// Copies of what sequences keep besides keys (ops/gated_delta.h), whole places at a time.
#pragma once

#include <span>

#include "unsloth/ops/context.h"

namespace unsloth::ops {

struct PlaceCopy {
    int32_t from = 0, to = 0;
};

/// data[to] = data[from] for each copy and each tensor [places, ...] (contiguous, any dtype). CheckError for a place
/// that a tensor has not, and where a place is written twice, or both read and written. CUDA: in the order of
/// ctx.stream(), one launch for up to 128 tensors and 64 copies.
void copy_places(Context& ctx, std::span<const at::Tensor> data, std::span<const PlaceCopy> copies);

}  // namespace unsloth::ops
