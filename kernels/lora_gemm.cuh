// What the LoRA GEMMs share: sums over the blocks of a cluster, and accumulation into gradients.
#pragma once

#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/mma.cuh"
#include "kernels/common/pipeline.cuh"
#include "kernels/common/ptx.cuh"

namespace unsloth::kernels::lora {

inline constexpr int most_cluster = 8;

__device__ __forceinline__ void add(float4& sum, const float4& term) {
    sum.x += term.x, sum.y += term.y, sum.z += term.z, sum.w += term.w;
}

/// Four floats at `address` of shared memory, summed over the cluster's blocks in the order of their ranks: the same
/// bits in every run. All loads are in flight at once.
__device__ __forceinline__ float4 cluster_sum(uint32_t address, int blocks) {
    float4 terms[most_cluster];
#pragma unroll
    for (int rank = 0; rank < most_cluster; ++rank)
        if (rank < blocks) terms[rank] = load_shared_cluster(mapa(address, rank));
    float4 sum = terms[0];
#pragma unroll
    for (int rank = 1; rank < most_cluster; ++rank)
        if (rank < blocks) add(sum, terms[rank]);
    return sum;
}

/// Adds up to four neighbours of a gradient's row; `count` of them exist.
__device__ __forceinline__ void accumulate(float* to, const float4& sum, float scale, int count) {
    if (count >= 4 && reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
        float4 old = *reinterpret_cast<float4*>(to);
        old.x += scale * sum.x, old.y += scale * sum.y, old.z += scale * sum.z, old.w += scale * sum.w;
        *reinterpret_cast<float4*>(to) = old;
        return;
    }
    if (count > 0) to[0] += scale * sum.x;
    if (count > 1) to[1] += scale * sum.y;
    if (count > 2) to[2] += scale * sum.z;
    if (count > 3) to[3] += scale * sum.w;
}

}  // namespace unsloth::kernels::lora
