// RMSNorm over rows that do not stay in registers (norm.cu says which): they are read twice, the second time from the
// caches.
#pragma once

#include "kernels/common/launch.h"
#include "kernels/common/ptx.cuh"
#include "kernels/norm_rows.cuh"

namespace unsloth::kernels {

constexpr int stream_threads = 256;

template <class T, int V>
__global__ void __launch_bounds__(stream_threads) norm_forward_stream_kernel(const NormForward p, uint32_t rows) {
    begin_after_previous(rows);
    __shared__ float shared[32];
    const auto heads = static_cast<uint32_t>(p.shape.heads);
    const int64_t columns = p.shape.columns;
    for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T* x = static_cast<const T*>(p.x.data) + row_offset(p.x, row, heads);
        T* y = static_cast<T*>(p.y.data) + row_offset(p.y, row, heads);
        float squares = 0.f;
#pragma unroll 4
        for (int64_t c = threadIdx.x * V; c < columns; c += stream_threads * V) {
            const auto pack = load_pack<V>(x + c);
#pragma unroll
            for (int k = 0; k < V; ++k) squares += to_float(pack.v[k]) * to_float(pack.v[k]);
        }
        squares = block_sum(squares, shared);
        const float rstd = rsqrtf(squares / static_cast<float>(columns) + p.eps);
        for (int64_t c = threadIdx.x * V; c < columns; c += stream_threads * V) {
            auto pack = load_pack<V>(x + c);
            float w[V];
            load_weight<T>(p.weight, p.shape.weight_type, c, w);
#pragma unroll
            for (int k = 0; k < V; ++k) pack.v[k] = from_float<T>(to_float(pack.v[k]) * rstd * w[k]);
            store_pack(y + c, pack);
        }
        if (threadIdx.x == 0) {
            p.rstd[row] = rstd;
            if (!isfinite(squares)) report(p.site);
        }
    }
}

template <class T, int V>
__global__ void __launch_bounds__(stream_threads) norm_backward_stream_kernel(const NormBackward p, uint32_t rows) {
    __shared__ float shared[32];
    const auto heads = static_cast<uint32_t>(p.shape.heads);
    const int64_t columns = p.shape.columns;
    float* partial = p.partials + blockIdx.x * columns;  // a thread only meets its own columns of it
    for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T* dy_row = static_cast<const T*>(p.dy.data) + row_offset(p.dy, row, heads);
        const T* x_row = static_cast<const T*>(p.x.data) + row_offset(p.x, row, heads);
        T* dx_row = static_cast<T*>(p.dx.data) + row_offset(p.dx, row, heads);
        T* y_row = p.y.data != nullptr ? static_cast<T*>(p.y.data) + row_offset(p.y, row, heads) : nullptr;
        const float rstd = p.rstd[row];
        float dot = 0.f;
#pragma unroll 2
        for (int64_t c = threadIdx.x * V; c < columns; c += stream_threads * V) {
            const auto dy = load_pack<V>(dy_row + c);
            const auto x = load_pack<V>(x_row + c);
            float w[V];
            load_weight<T>(p.weight, p.shape.weight_type, c, w);
#pragma unroll
            for (int k = 0; k < V; ++k) dot += to_float(dy.v[k]) * w[k] * to_float(x.v[k]);
        }
        dot = block_sum(dot, shared);
        const float projection = rstd * rstd * dot / static_cast<float>(columns);
        float probe = 0.f;
        for (int64_t c = threadIdx.x * V; c < columns; c += stream_threads * V) {
            const auto dy = load_pack<V>(dy_row + c);  // before dx is written, which may be dy
            const auto x = load_pack<V>(x_row + c);
            Pack<T, V> dx = {};
            if (p.accumulate) dx = load_pack<V>(dx_row + c);
            float w[V];
            load_weight<T>(p.weight, p.shape.weight_type, c, w);
#pragma unroll
            for (int k = 0; k < V; ++k) {
                const float g = to_float(dy.v[k]) * w[k];
                dx.v[k] = from_float<T>(to_float(dx.v[k]) + rstd * (g - to_float(x.v[k]) * projection));
                probe += to_float(dx.v[k]) * 0.f;
            }
            store_pack(dx_row + c, dx);
            if (y_row != nullptr) {
                Pack<T, V> y;
#pragma unroll
                for (int k = 0; k < V; ++k) y.v[k] = from_float<T>(to_float(x.v[k]) * rstd * w[k]);
                store_pack(y_row + c, y);
            }
            if (p.dweight != nullptr) {
#pragma unroll
                for (int k = 0; k < V; ++k) {
                    const float before = row == blockIdx.x ? 0.f : partial[c + k];
                    partial[c + k] = before + to_float(dy.v[k]) * (to_float(x.v[k]) * rstd);
                }
            }
        }
        if (probe != 0.f) report(p.site);
    }
}

}  // namespace unsloth::kernels
