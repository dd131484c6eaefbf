// What LibTorch's allocator counts for a plan's arenas.
#pragma once

#include "unsloth/model/loader.h"

namespace unsloth::test {

/// More than 10 MiB come in pieces of 2, of which less than one that is left over stays with them
/// (c10/cuda/CUDACachingAllocator.cpp).
inline int64_t counted_bytes(int64_t bytes) {
    constexpr int64_t mib = int64_t{1} << 20, piece = 2 * mib;
    if (bytes <= 10 * mib) return bytes;
    const int64_t pieces = (bytes + piece - 1) / piece * piece;
    return pieces - bytes < mib ? pieces : bytes;
}

/// Of both arenas; beside them there are only a step's scalars.
inline int64_t arena_bytes(const model::ModelPlan& plan) {
    return counted_bytes(plan.resident().total_bytes()) + counted_bytes(plan.step().total_bytes());
}

}  // namespace unsloth::test
