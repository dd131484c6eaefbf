// Where a warp may be held up: beside everything that warps of different roles wait for each other with (pipeline.cuh,
// ptx.cuh). Nothing in the product. tests/held_up compiles the kernels once more, with warps that really wait there, so
// that a race which timing hides becomes certain.
#pragma once

#ifdef UNSLOTH_HOLD_UP
#include "held_up/hold_up.cuh"
#endif

namespace unsloth::kernels {

__device__ __forceinline__ void hold_up() {
#ifdef UNSLOTH_HOLD_UP
    hold_up_named_warps();
#endif
}

}  // namespace unsloth::kernels
