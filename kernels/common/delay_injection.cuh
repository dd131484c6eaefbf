// Delay injection for warps, at every primitive with which warps of different roles wait for each other (pipeline.cuh,
// ptx.cuh). The product has no delays. tests/held_up compiles the kernels once more, with warps that really wait there,
// so that a race which timing hides becomes certain.
#pragma once

#ifdef UNSLOTH_DELAY_INJECTION
#include "held_up/delay_injection.cuh"
#endif

namespace unsloth::kernels {

__device__ __forceinline__ void delay_injection() {
#ifdef UNSLOTH_DELAY_INJECTION
    hold_up_named_warps();
#endif
}

}  // namespace unsloth::kernels
