// What all row normalisation kernels share: a row's address, its weights, and the report of a row that is not
// finite.
#pragma once

#include "kernels/common/device.cuh"
#include "kernels/norm.h"

namespace unsloth::kernels {

template <class View>
__device__ __forceinline__ int64_t row_offset(const View& view, uint32_t row, uint32_t heads) {
    const uint32_t token = heads == 1 ? row : row / heads;
    return token * view.token_stride + (row - token * heads) * view.head_stride;
}

/// V columns of the weight, in fp32.
template <class T, int V>
__device__ __forceinline__ void load_weight(const void* weight, spec::DType type, int64_t column, float (&w)[V]) {
    if (type == spec::DType::f32) {
        const auto loaded = load_pack<V>(static_cast<const float*>(weight) + column);
#pragma unroll
        for (int k = 0; k < V; ++k) w[k] = loaded.v[k];
    } else {
        const auto loaded = load_pack<V>(static_cast<const T*>(weight) + column);
#pragma unroll
        for (int k = 0; k < V; ++k) w[k] = to_float(loaded.v[k]);
    }
}

__device__ __forceinline__ void report(const BadSite& site) {
    if (site.first != nullptr) atomicMin(site.first, site.code);
}

}  // namespace unsloth::kernels
