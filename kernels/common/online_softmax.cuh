// Maximum and sum of exp(x - maximum) of a row in one pass, merged over a block in a fixed order.
//
// Source: Milakov & Gimelshein, "Online normalizer calculation for softmax" (2018).
#pragma once

#include <cfloat>

#include "kernels/common/device.cuh"

namespace unsloth::kernels {

/// Online softmax: running maximum and sum of exp(x - maximum). The maximum starts finite, so that -inf logits add 0
/// and not NaN.
struct OnlineSoftmax {
    float maximum = -FLT_MAX;
    float sum = 0.f;

    __device__ __forceinline__ void rescale(float new_maximum) {
        sum *= __expf(maximum - new_maximum);
        maximum = new_maximum;
    }
    template <class T, int N>
    __device__ __forceinline__ void add(const Pack<T, N>& pack) {
        float highest = maximum;
#pragma unroll
        for (int k = 0; k < N; ++k) highest = fmaxf(highest, to_float(pack.v[k]));
        if (highest > maximum) rescale(highest);
#pragma unroll
        for (int k = 0; k < N; ++k) sum += __expf(to_float(pack.v[k]) - maximum);
    }
    __device__ __forceinline__ void add(float value) {
        if (value > maximum) rescale(value);
        sum += __expf(value - maximum);
    }
    /// -inf where every value was.
    __device__ __forceinline__ float log_sum() const { return maximum + logf(sum); }
    __device__ __forceinline__ void merge(float other_maximum, float other_sum) {
        const float highest = fmaxf(maximum, other_maximum);
        // No fused multiply-add: merging a into b and b into a must give the same bits.
        sum =
            __fadd_rn(__fmul_rn(sum, __expf(maximum - highest)), __fmul_rn(other_sum, __expf(other_maximum - highest)));
        maximum = highest;
    }
    /// Merges over the warp: a butterfly, so that every lane holds the same bits.
    __device__ __forceinline__ void merge_warp() {
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            const float other_maximum = __shfl_xor_sync(all_lanes, maximum, offset);
            const float other_sum = __shfl_xor_sync(all_lanes, sum, offset);
            merge(other_maximum, other_sum);
        }
    }
};

/// Merges over a block of `Threads` = 1024 threads; every thread gets the result. A barrier before the next call is the
/// caller's.
template <int Threads>
__device__ OnlineSoftmax merge_block(OnlineSoftmax state) {
    static_assert(Threads == 32 * 32, "a warp merges what the warps left");
    __shared__ float maxima[Threads / 32];
    __shared__ float sums[Threads / 32];
    state.merge_warp();
    if (threadIdx.x % 32 == 0) {
        maxima[threadIdx.x / 32] = state.maximum;
        sums[threadIdx.x / 32] = state.sum;
    }
    __syncthreads();
    state.maximum = maxima[threadIdx.x % 32];
    state.sum = sums[threadIdx.x % 32];
    state.merge_warp();
    return state;
}

}  // namespace unsloth::kernels
