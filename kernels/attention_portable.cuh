// What the portable attention's kernels share: which rows a block owns and what they see, tiles of fp32 in shared
// memory, and products of tiles.
#pragma once

#include <type_traits>

#include "kernels/attention_portable.h"
#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "unsloth/core/check.h"

namespace unsloth::kernels::portable_attention {

constexpr int threads = 256;
/// Columns of padding after a tile's row: rows then start in different banks for 16-byte reads.
constexpr int pad = 4;

__device__ __forceinline__ float4 load4(const float* x) {
    return *reinterpret_cast<const float4*>(x);
}

/// N consecutive floats, aligned to N * 4 bytes (N = 1, 2, 4).
template <int N>
__device__ __forceinline__ void load_floats(const float* x, float (&y)[N]) {
    if constexpr (N == 4) {
        const float4 v = load4(x);
        y[0] = v.x, y[1] = v.y, y[2] = v.z, y[3] = v.w;
    } else if constexpr (N == 2) {
        const float2 v = *reinterpret_cast<const float2*>(x);
        y[0] = v.x, y[1] = v.y;
    } else {
        static_assert(N == 1);
        y[0] = *x;
    }
}

/// A block's tile: up to `Rows` rows of one segment. Segment s owns the slots from offsets[s] / rows + s on, at
/// least as many as it has tiles, so a slot finds its segment by bisection and no list of tiles is needed.
struct TileRows {
    int segment, first;  ///< first row within the segment
    int q_begin, q_count, k_begin, k_count;
};

template <int Rows>
__device__ __forceinline__ bool find_tile(const PortableAttention& a, const int32_t* offsets, int slot,
                                          TileRows& tile) {
    int low = 0, high = a.segments - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (offsets[middle] / Rows + middle <= slot)
            low = middle;
        else
            high = middle - 1;
    }
    tile.segment = low;
    tile.first = (slot - (offsets[low] / Rows + low)) * Rows;
    tile.q_begin = a.q_offsets[low];
    tile.q_count = a.q_offsets[low + 1] - tile.q_begin;
    tile.k_begin = a.k_offsets[low];
    tile.k_count = a.k_offsets[low + 1] - tile.k_begin;
    return tile.first < offsets[low + 1] - offsets[low];
}

/// The keys [low, high) that some query of rows [first, first + rows) sees, low a multiple of `step`.
struct Range {
    int low, high;
};
__device__ __forceinline__ Range visible_keys(const PortableAttention& a, const TileRows& t, int first, int rows,
                                              int step) {
    const int shift = t.k_count - t.q_count;
    const int last = min(first + rows, t.q_count) - 1;
    const int low = a.window > 0 ? max(0, first + shift - a.window + 1) : 0;
    return {low / step * step, min(t.k_count, last + shift + 1)};
}
/// The queries that see some key of [first, first + keys).
__device__ __forceinline__ Range visible_queries(const PortableAttention& a, const TileRows& t, int first, int keys,
                                                 int step) {
    const int shift = t.k_count - t.q_count;
    const int last = min(first + keys, t.k_count) - 1;
    const int high = a.window > 0 ? min(t.q_count, last - shift + a.window) : t.q_count;
    return {max(0, first - shift) / step * step, high};
}
__device__ __forceinline__ bool is_visible(const PortableAttention& a, const TileRows& t, int row, int key) {
    const int position = row + t.k_count - t.q_count;
    return row < t.q_count && key < t.k_count && key <= position && (a.window == 0 || key > position - a.window);
}

/// tile[r][c] = rows [first, first + Rows) of one head, times factor, zero outside the segment and beyond d.
template <class T, int Rows, int D, int Threads>
__device__ __forceinline__ void load_tile(float* tile, const HeadRows& x, int head, int64_t begin, int first, int count,
                                          int d, int thread, float factor = 1.0f) {
    const T* source = static_cast<const T*>(x.data) + begin * x.row_stride + head * x.head_stride;
#pragma unroll 2
    for (int i = thread; i < Rows * D; i += Threads) {
        const int r = i / D, c = i % D, row = first + r;
        tile[r * (D + pad) + c] = row < count && c < d ? factor * to_float(source[row * x.row_stride + c]) : 0.0f;
    }
}

/// acc[i][j] = sum over D of left[row0 + i * row_step][.] * right[col0 + j * col_step][.].
template <int D, int I, int J>
__device__ __forceinline__ void multiply_abt(const float* left, int row0, int row_step, const float* right, int col0,
                                             int col_step, float (&acc)[I][J]) {
#pragma unroll
    for (int i = 0; i < I; ++i)
#pragma unroll
        for (int j = 0; j < J; ++j) acc[i][j] = 0.0f;
#pragma unroll 2
    for (int c = 0; c < D; c += 4) {
        float4 l[I], r[J];
#pragma unroll
        for (int i = 0; i < I; ++i) l[i] = load4(left + (row0 + i * row_step) * (D + pad) + c);
#pragma unroll
        for (int j = 0; j < J; ++j) r[j] = load4(right + (col0 + j * col_step) * (D + pad) + c);
#pragma unroll
        for (int i = 0; i < I; ++i)
#pragma unroll
            for (int j = 0; j < J; ++j)
                acc[i][j] += l[i].x * r[j].x + l[i].y * r[j].y + l[i].z * r[j].z + l[i].w * r[j].w;
    }
}

/// acc[i][4 g + e] += sum over n of weights[row(i)][n] * tile[n][64 g + 4 tx + e], row(i) = row0 + i *
/// row_step.
template <int D, int N, int I>
__device__ __forceinline__ void multiply_ab(const float* weights, int row0, int row_step, const float* tile, int tx,
                                            float (&acc)[I][D / 16]) {
#pragma unroll 2
    for (int n = 0; n < N; n += 4) {
        float w[I][4];
#pragma unroll
        for (int i = 0; i < I; ++i) load_floats(weights + (row0 + i * row_step) * (N + pad) + n, w[i]);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
#pragma unroll
            for (int g = 0; g < D / 64; ++g) {
                const float4 t = load4(tile + (n + e) * (D + pad) + 64 * g + 4 * tx);
#pragma unroll
                for (int i = 0; i < I; ++i) {
                    acc[i][4 * g + 0] += w[i][e] * t.x;
                    acc[i][4 * g + 1] += w[i][e] * t.y;
                    acc[i][4 * g + 2] += w[i][e] * t.z;
                    acc[i][4 * g + 3] += w[i][e] * t.w;
                }
            }
        }
    }
}

/// acc[i][4 g + e] += sum over m of weights[m][col0 + i] * tile[m][64 g + 4 tx + e]: the transposed weights.
template <int D, int M, int N, int I>
__device__ __forceinline__ void multiply_atb(const float* weights, int col0, const float* tile, int tx,
                                             float (&acc)[I][D / 16]) {
#pragma unroll 2
    for (int m = 0; m < M; ++m) {
        float w[I];
        load_floats(weights + m * (N + pad) + col0, w);
#pragma unroll
        for (int g = 0; g < D / 64; ++g) {
            const float4 t = load4(tile + m * (D + pad) + 64 * g + 4 * tx);
#pragma unroll
            for (int i = 0; i < I; ++i) {
                acc[i][4 * g + 0] += w[i] * t.x;
                acc[i][4 * g + 1] += w[i] * t.y;
                acc[i][4 * g + 2] += w[i] * t.z;
                acc[i][4 * g + 3] += w[i] * t.w;
            }
        }
    }
}

/// x[row][...] = factor * acc, for one row of a thread's columns 64 g + 4 tx + e.
template <class T, int D>
__device__ __forceinline__ void store_row(const HeadRows& x, int head, int64_t token, int d, int tx,
                                          const float (&acc)[D / 16], float factor) {
    T* target = static_cast<T*>(x.data) + token * x.row_stride + head * x.head_stride;
#pragma unroll
    for (int g = 0; g < D / 64; ++g)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int c = 64 * g + 4 * tx + e;
            if (c < d) target[c] = from_float<T>(factor * acc[4 * g + e]);
        }
}

__device__ __forceinline__ float& lse_at(const RowStatistics& s, const TileRows& t, int head, int row) {
    return s.data[t.q_begin * s.token_stride + head * s.head_stride + row * s.row_stride];
}

// ---- launches

/// Slots for tiles of `rows` rows: see TileRows.
inline unsigned slots(int64_t tokens, int segments, int rows) {
    return static_cast<unsigned>(tokens / rows + segments);
}

/// Calls f(TypeTag<T>, padded head_dim as an integral constant).
template <class F>
void dispatch(const PortableAttention& a, F f) {
    UNSLOTH_CHECK(a.head_dim > 0 && a.head_dim <= portable_most_head_dim, "portable attention: head_dim ", a.head_dim);
    dispatch_floating(a.dtype, [&](auto type) {
        if (a.head_dim <= 64)
            f(type, std::integral_constant<int, 64>{});
        else if (a.head_dim <= 128)
            f(type, std::integral_constant<int, 128>{});
        else
            f(type, std::integral_constant<int, 256>{});
    });
}

}  // namespace unsloth::kernels::portable_attention
