// What the chunked kernels of the delta rule share: where chunks are, tiles of bf16 in shared memory, and their
// products.
//
// Registers of mma.m16n8k16's results in a lane, g = lane / 4 and t = lane % 4: columns 2 t and 2 t + 1 of row g, then
// of row g + 8. A result of 64 rows is spread over four warps of 16 rows, and over groups of such warps by columns.
#pragma once

#include "kernels/common/exp2_pack.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/mma.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/delta_rule.h"

namespace unsloth::kernels::delta {

using bf16 = __nv_bfloat16;

constexpr int chunk = 64;  ///< tokens
constexpr int dim = 128;   ///< k and v

/// Elements between rows of a tile: 16 bytes more than its columns, so that eight rows' chunks are in different banks.
__host__ __device__ constexpr int pitch(int columns) {
    return columns + 8;
}
__host__ __device__ constexpr int tile_elements(int rows, int columns) {
    return rows * pitch(columns);
}

/// Slots number chunks over all segments: segment s begins at slot begin / 64 + s, and some slots stay empty.
struct Chunk {
    int segment, begin, count;  ///< tokens; count 0: an empty slot
};
__device__ __forceinline__ int first_slot(const int32_t* offsets, int segment) {
    return offsets[segment] / chunk + segment;
}
__device__ __forceinline__ Chunk chunk_of(const DeltaSegments& segments, int slot) {
    int low = 0, high = segments.count - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (first_slot(segments.offsets, middle) <= slot)
            low = middle;
        else
            high = middle - 1;
    }
    const int begin = segments.offsets[low] + (slot - first_slot(segments.offsets, low)) * chunk;
    return {low, begin, max(0, min(chunk, segments.offsets[low + 1] - begin))};
}

/// A left operand's 16 x 16 block. kTransposed: the tile holds its transpose.
template <bool kTransposed, int kPitch>
__device__ __forceinline__ void load_left(uint32_t (&a)[4], const bf16* tile, int row, int k) {
    const int lane = threadIdx.x % 32;
    if constexpr (kTransposed)
        ldmatrix_x4_trans(a, shared_address(tile + (k + lane / 16 * 8 + lane % 8) * kPitch + row + lane / 8 % 2 * 8));
    else
        ldmatrix_x4(a, shared_address(tile + (row + lane % 16) * kPitch + k + lane / 16 * 8));
}
/// A right operand's 16 rows (k) of 16 columns: two of mma's. kTransposed: the tile holds its transpose.
template <bool kTransposed, int kPitch>
__device__ __forceinline__ void load_right(uint32_t (&b)[4], const bf16* tile, int k, int column) {
    const int lane = threadIdx.x % 32;
    if constexpr (kTransposed)
        ldmatrix_x4(b, shared_address(tile + (column + lane / 16 * 8 + lane % 8) * kPitch + k + lane / 8 % 2 * 8));
    else
        ldmatrix_x4_trans(b, shared_address(tile + (k + lane % 16) * kPitch + column + lane / 16 * 8));
}

enum class As { is, transposed };

/// sums[16 Rows x 8 Columns, at (row, column)] += a b over K; a and b: tiles, with these pitches.
template <As kA, int kPitchA, As kB, int kPitchB, int K, int Rows, int Columns>
__device__ __forceinline__ void multiply(float (&sums)[Rows][Columns][4], const bf16* a, int row, const bf16* b,
                                         int column) {
#pragma unroll 1
    for (int k = 0; k < K; k += 16) {
        uint32_t left[Rows][4];
#pragma unroll
        for (int m = 0; m < Rows; ++m) load_left<kA == As::transposed, kPitchA>(left[m], a, row + 16 * m, k);
#pragma unroll
        for (int n = 0; n < Columns; n += 2) {
            uint32_t right[4];
            load_right<kB == As::transposed, kPitchB>(right, b, k, column + 8 * n);
#pragma unroll
            for (int m = 0; m < Rows; ++m) {
                mma_m16n8k16<bf16>(sums[m][n], left[m], right[0], right[1]);
                mma_m16n8k16<bf16>(sums[m][n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

template <int Rows, int Columns>
__device__ __forceinline__ void clear(float (&sums)[Rows][Columns][4]) {
#pragma unroll
    for (int m = 0; m < Rows; ++m)
#pragma unroll
        for (int n = 0; n < Columns; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[m][n][e] = 0.0f;
}

/// f(row, column, x, y, half) for each two neighbours of this lane; half: 0 of row g, 1 of row g + 8 of a block.
template <int Rows, int Columns, class F>
__device__ __forceinline__ void each_pair(float (&sums)[Rows][Columns][4], int row, int column, F f) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < Rows; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int n = 0; n < Columns; ++n)
                f(row + 16 * m + 8 * half + lane / 4, column + 8 * n + 2 * (lane % 4), sums[m][n][2 * half],
                  sums[m][n][2 * half + 1], half);
}

__device__ __forceinline__ float2 read_pair(const bf16* p) {
    return unpack_bf16x2(*reinterpret_cast<const uint32_t*>(p));
}
__device__ __forceinline__ void write_pair(bf16* p, float x, float y) {
    *reinterpret_cast<uint32_t*>(p) = pack_bf16x2(x, y);
}

/// Starts to copy rows of 16-bit elements into a tile as bf16, `Rows` of which `count` are there: the others become 0.
/// All threads together.
template <int Rows, int Columns, int Threads, class T>
__device__ __forceinline__ void load_tile(bf16* tile, const T* from, int64_t stride, int count) {
    constexpr int packs = Columns / 8;
#pragma unroll 1
    for (int i = threadIdx.x; i < Rows * packs; i += Threads) {
        const int row = i / packs, column = i % packs * 8;
        const T* source = from + min(row, max(count - 1, 0)) * stride + column;
        bf16* to = tile + row * pitch(Columns) + column;
        if constexpr (std::is_same_v<T, bf16>) {
            cp_async_16_zfill(shared_address(to), source, row < count);
        } else {
            Pack<bf16, 8> converted;
            const Pack<T, 8> read = load_pack<8>(source);
#pragma unroll
            for (int k = 0; k < 8; ++k) converted.v[k] = from_float<bf16>(row < count ? to_float(read.v[k]) : 0.0f);
            store_pack(to, converted);
        }
    }
}
/// Writes a tile to rows of bf16, all threads together.
template <int Rows, int Columns, int Threads>
__device__ __forceinline__ void store_tile(bf16* to, int64_t stride, const bf16* tile) {
    constexpr int packs = Columns / 8;
#pragma unroll 1
    for (int i = threadIdx.x; i < Rows * packs; i += Threads) {
        const int row = i / packs, column = i % packs * 8;
        store_pack(to + row * stride + column, load_pack<8>(tile + row * pitch(Columns) + column));
    }
}

/// A chunk's factors, from what delta_prepare wrote.
struct Factors {
    const float *sums, *query, *key;  ///< [64]: of log decays; queries and keys as read are multiplied by these
};
__device__ __forceinline__ Factors factors_of(const DeltaRule& p, int slot, int head) {
    const int64_t of_key = (int64_t{slot} * p.shape.key_heads + head / p.shape.served()) * 2 * chunk;
    return {p.scratch.gates + (int64_t{slot} * p.shape.value_heads + head) * 2 * chunk, p.scratch.lengths + of_key,
            p.scratch.lengths + of_key + chunk};
}

/// The same for products with a state: rows of the first chunk token's or of the one after the last.
struct Weights {
    float from_query[chunk], from_key[chunk], to_end[chunk];
    float all;  ///< the chunk's decay
    __device__ __forceinline__ void set(const Factors& f) {
        const int i = threadIdx.x;
        if (i >= chunk) return;
        const float sum = f.sums[i], last = f.sums[chunk - 1], start = expf(sum);
        from_query[i] = f.query[i] * start;
        from_key[i] = f.key[i] * start;
        to_end[i] = f.key[i] * expf(last - sum);
        if (i == 0) all = expf(last);
    }
};

template <class T>
__device__ __forceinline__ const T* row_of(const ConstMatrix& x, int64_t token, int64_t column) {
    return static_cast<const T*>(x.data) + token * x.stride + column;
}
template <class T>
__device__ __forceinline__ T* row_of(const Matrix& x, int64_t token, int64_t column) {
    return static_cast<T*>(x.data) + token * x.stride + column;
}
template <class T>
__device__ __forceinline__ const T* row_of(const ConstHeads& x, int64_t token, int64_t head) {
    return static_cast<const T*>(x.data) + token * x.token_stride + head * x.head_stride;
}
template <class T>
__device__ __forceinline__ T* row_of(const Heads& x, int64_t token, int64_t head) {
    return static_cast<T*>(x.data) + token * x.token_stride + head * x.head_stride;
}

}  // namespace unsloth::kernels::delta
