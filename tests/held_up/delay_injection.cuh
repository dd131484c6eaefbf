// What delay_injection() of kernels/common/delay_injection.cuh does in the copies that the test runs.
#pragma once

#include "held_up/delay_injection.h"
#include "kernels/common/launch.h"

namespace unsloth::kernels {
namespace {

__constant__ HoldUp held_up;

[[maybe_unused]] const bool listed =
    list_hold_up([](const HoldUp& value) { UNSLOTH_CUDA_CHECK(cudaMemcpyToSymbol(held_up, &value, sizeof value)); });

}  // namespace

/// Without a branch: one would have ptxas end each wgmma before the next. (In the forms by pairs it does so all the
/// same.)
__device__ __forceinline__ void hold_up_named_warps() {
    constexpr uint32_t golden = 2654435761;  // spreads the clock's low bits over the high ones
    const uint32_t named = held_up.warps >> threadIdx.x / 32 & held_up.blocks >> blockIdx.x % 8 & 1;
    const uint32_t later = (static_cast<uint32_t>(clock()) * golden >> 29) * held_up.sometimes;  // 0 one time in eight
    __nanosleep(named * held_up.nanoseconds * static_cast<uint32_t>(later == 0));
}

}  // namespace unsloth::kernels
