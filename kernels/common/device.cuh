// What every .cu shares on the device side: 16-byte accesses, conversion to fp32, reductions in a fixed order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace unsloth::kernels {

inline constexpr int warp_size = 32;
inline constexpr unsigned all_lanes = 0xFFFFFFFFu;

/// N elements moved together: one 16-byte access (or two, for 8 floats) where N * sizeof(T) >= 16.
template <class T, int N>
struct alignas(N * sizeof(T) >= 16 ? 16 : N * sizeof(T)) Pack {
    T v[N];
};

/// Elements of T in 16 bytes.
template <class T>
inline constexpr int vector_width = 16 / static_cast<int>(sizeof(T));

template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_pack(const T* p) {
    return *reinterpret_cast<const Pack<T, N>*>(p);
}

template <int N, class T>
__device__ __forceinline__ void store_pack(T* p, const Pack<T, N>& pack) {
    *reinterpret_cast<Pack<T, N>*>(p) = pack;
}

__device__ __forceinline__ float to_float(float v) {
    return v;
}
__device__ __forceinline__ float to_float(__nv_bfloat16 v) {
    return __bfloat162float(v);
}
__device__ __forceinline__ float to_float(__half v) {
    return __half2float(v);
}

/// Rounds to nearest, ties to even.
template <class T>
__device__ __forceinline__ T from_float(float v);
template <>
__device__ __forceinline__ float from_float<float>(float v) {
    return v;
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) {
    return __float2bfloat16_rn(v);
}
template <>
__device__ __forceinline__ __half from_float<__half>(float v) {
    return __float2half_rn(v);
}

/// Two bf16 in a 32-bit word, the first in its low half.
__device__ __forceinline__ uint32_t pack_bf16x2(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
}
__device__ __forceinline__ float2 unpack_bf16x2(uint32_t word) {
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(word));
}

/// Sum over groups of `Width` neighbouring lanes (a power of two up to 32); every lane gets it. All lanes take part.
template <int Width = 32>
__device__ __forceinline__ float group_sum(float v) {
#pragma unroll
    for (int offset = Width / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(all_lanes, v, offset);
    return v;
}

/// The largest of groups of `Width` neighbouring lanes, as group_sum.
template <int Width = 32>
__device__ __forceinline__ float group_max(float v) {
#pragma unroll
    for (int offset = Width / 2; offset > 0; offset /= 2) v = fmaxf(v, __shfl_xor_sync(all_lanes, v, offset));
    return v;
}

/// Sum over the block, in a fixed order; every thread gets it. `shared`: 32 floats. blockDim.x is a multiple
/// of 32. Starts with a barrier, so that `shared` may be used again at once.
__device__ __forceinline__ float block_sum(float v, float* shared) {
    v = group_sum(v);
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    __syncthreads();
    if (lane == 0) shared[warp] = v;
    __syncthreads();
    const int warps = blockDim.x / 32;
    return group_sum(lane < warps ? shared[lane] : 0.f);
}

/// Sum in fp64 over a block of `Threads` threads, in a fixed order (a tree); thread 0 gets it.
template <int Threads>
__device__ __forceinline__ double block_sum_f64(double v) {
    __shared__ double sums[Threads];
    sums[threadIdx.x] = v;
    for (int half = Threads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    return sums[0];
}
/// Sums of two columns of `count` values, likewise.
template <int Threads>
__device__ __forceinline__ double2 block_sums_f64(const float* first, const float* second, int64_t count) {
    double2 own{};
    for (int64_t i = threadIdx.x; i < count; i += Threads) {
        own.x += first[i];
        own.y += second[i];
    }
    const double all = block_sum_f64<Threads>(own.x);
    __syncthreads();  // the sum is read
    return {all, block_sum_f64<Threads>(own.y)};
}

}  // namespace unsloth::kernels
