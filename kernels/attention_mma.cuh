// What the kernels of attention_mma.h share: rows of a head in shared memory, operands from there, and what a tile of
// rows sees of a tile of keys.
//
// Registers of mma.m16n8k16 in a lane, g = lane / 4 and t = lane % 4: results [0..3] are columns 2 t, 2 t + 1 of row g,
// then of row g + 8. Two results side by side (16 columns), packed to 16 bits, are the left operand of a product over
// these columns.
#pragma once

#include <climits>

#include "kernels/attention_mma.h"
#include "kernels/attention_portable.cuh"
#include "kernels/common/exp2_pack.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/ptx.cuh"

namespace unsloth::kernels::mma_attention {

using portable_attention::find_tile;
using portable_attention::lse_at;
using portable_attention::Range;
using portable_attention::slots;
using portable_attention::TileRows;
using portable_attention::visible_keys;
using portable_attention::visible_queries;

constexpr float log2_e = 1.4426950408889634f;

/// Rows of up to D 16-bit elements in shared memory, a tile aligned to 256 bytes. The 16-byte chunk c of row r is at
/// place c ^ r % 8, so that the chunks of eight rows are in different banks.
template <int D>
struct Rows {
    static constexpr int bytes = D <= 64 ? 128 : D <= 128 ? 256 : 512;
    static constexpr int steps = D / 16;  ///< of a product over D

    static __device__ __forceinline__ uint32_t place(int row, int chunk) {
        return row * bytes + ((chunk ^ row % 8) << 4);
    }
    /// A lane's ldmatrix offset in a 16 x 16 block at the tile's origin; at() moves it to others. The block's four
    /// 8 x 8 matrices come rows first: the left operand; with _trans the right one of a product over rows.
    static __device__ __forceinline__ uint32_t by_rows(int lane) { return place(lane % 16, lane / 16); }
    /// They come columns first: the right operand of a product over columns.
    static __device__ __forceinline__ uint32_t by_columns(int lane) {
        return place(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    }
    /// The block at `row` (a multiple of 8) and column 16 * step.
    static __device__ __forceinline__ uint32_t at(uint32_t tile, uint32_t lane_place, int row, int step) {
        return tile + row * bytes + (lane_place ^ step << 5);
    }
};

/// One head's rows of a segment in memory.
template <class T>
struct Source {
    const T* rows;
    int64_t stride;
    int count, columns;
    __device__ __forceinline__ Source(const HeadRows& x, int head, int begin, int count_, int columns_)
        : rows(static_cast<const T*>(x.data) + begin * x.row_stride + head * x.head_stride),
          stride(x.row_stride),
          count(count_),
          columns(columns_) {}
};

/// Starts to copy `Count` rows from `first` on, all threads together; zeros beyond the segment and the head.
template <class T, int D, int Count, int Threads>
__device__ __forceinline__ void copy_rows(uint32_t tile, const Source<T>& source, int first) {
    constexpr int chunks = Rows<D>::bytes / 16;
    static_assert(Threads % chunks == 0 && Count * chunks % Threads == 0);
    constexpr int step = Threads / chunks;
    const int chunk = threadIdx.x % chunks, r = threadIdx.x / chunks;
    if (chunk >= D / 8) return;
    const T* from = source.rows + (first + r) * source.stride + chunk * 8;
    const int left = chunk * 8 < source.columns ? source.count - first - r : 0;
    const uint32_t to = tile + Rows<D>::place(r, chunk);
#pragma unroll
    for (int i = 0; i < Count; i += step, from += step * source.stride)
        cp_async_16_zfill(step % 8 == 0 ? to + i * Rows<D>::bytes : tile + Rows<D>::place(r + i, chunk), from,
                          i < left);
}

/// Which pairs of a block of rows and one of keys see each other: some, all.
struct Sight {
    bool some, all;
};
__device__ __forceinline__ Sight sight(const PortableAttention& a, const TileRows& t, int row, int rows, int key,
                                       int keys) {
    const int shift = t.k_count - t.q_count, low = row + shift, high = min(row + rows, t.q_count) - 1 + shift;
    return {row < t.q_count && key <= high && (a.window == 0 || key + keys - 1 > low - a.window),
            key + keys - 1 <= low && (a.window == 0 || key > high - a.window)};
}
/// A key is seen from `position` if position - key, unsigned, is below this.
__device__ __forceinline__ unsigned span(const PortableAttention& a) {
    return a.window > 0 ? a.window : INT_MAX;
}

/// Rounded to T, as the left operand of products over two results' columns.
template <class T>
__device__ __forceinline__ void pack_results(const float (&first)[4], const float (&second)[4],
                                             uint32_t (&operand)[4]) {
    operand[0] = pack_two<T>(first[0], first[1]);
    operand[1] = pack_two<T>(first[2], first[3]);
    operand[2] = pack_two<T>(second[0], second[1]);
    operand[3] = pack_two<T>(second[2], second[3]);
}

/// sums += operand (over 16 of the tile's rows, from `row` on) * those rows.
template <class T, int D>
__device__ __forceinline__ void add_rows(float (&sums)[D / 8][4], const uint32_t (&operand)[4], uint32_t tile,
                                         uint32_t lane_place, int row) {
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, Rows<D>::at(tile, lane_place, row, step));
        mma_m16n8k16<T>(sums[2 * step], operand, b[0], b[1]);
        mma_m16n8k16<T>(sums[2 * step + 1], operand, b[2], b[3]);
    }
}

/// Writes a lane's part of rows `first` + g and that + 8 of a head, times their factors; not beyond the segment's
/// `count` rows and `columns`.
template <class T, int D>
__device__ __forceinline__ void store_rows(const HeadRows& x, int head, int begin, int first, int count, int columns,
                                           int lane, const float (&sums)[D / 8][4], const float (&factors)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = first + lane / 4 + 8 * half;
        if (row >= count) continue;
        T* to = static_cast<T*>(x.data) + (int64_t{begin} + row) * x.row_stride + head * x.head_stride;
#pragma unroll
        for (int j = 0; j < D / 8; ++j) {
            const int column = 8 * j + 2 * (lane % 4);
            if (8 * j < columns)
                *reinterpret_cast<uint32_t*>(to + column) =
                    pack_two<T>(factors[half] * sums[j][2 * half], factors[half] * sums[j][2 * half + 1]);
        }
    }
}

/// The queries that see a block's keys, `Count` at a time, of each head that shares them in turn.
template <int Count>
struct QueryTiles {
    Range range;
    int head, first;
    __device__ __forceinline__ void advance() {
        first += Count;
        if (first >= range.high) ++head, first = range.low;
    }
};

/// What a tile of queries needs in addition to its rows: each one's log-sum-exp (infinite past the segment: its
/// probabilities are 0) and delta.
template <int Count>
__device__ __forceinline__ void copy_statistics(const PortableAttention& a, const TileRows& t, const float* delta,
                                                const QueryTiles<Count>& queries, float2* to) {
    if (threadIdx.x >= Count) return;
    const int row = queries.first + static_cast<int>(threadIdx.x);
    float2* own = to + threadIdx.x;
    if (row < t.q_count) {
        cp_async_4(shared_address(&own->x), &lse_at(a.lse, t, queries.head, row));
        cp_async_4(shared_address(&own->y), delta + queries.head * a.q_tokens + t.q_begin + row);
    } else {
        *own = {INFINITY, 0.0f};
    }
}

/// Probabilities and their gradients of 16 keys (rows of s and dp) by 16 queries: s becomes p, dp becomes p (dp -
/// delta). `position`: the lane's first query less its first key; statistics: of these queries; scale: of scores to
/// powers of 2.
__device__ __forceinline__ void weigh_keys(float (&s)[2][4], float (&dp)[2][4], const float2* statistics, int position,
                                           bool all, unsigned seen, float scale) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        // Of this lane's two queries: log-sum-exp and delta each.
        const float4 of = *reinterpret_cast<const float4*>(statistics + 8 * j + 2 * (lane % 4));
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const float lse = e % 2 == 0 ? of.x : of.z, d = e % 2 == 0 ? of.y : of.w;
            float p = ex2_approx(s[j][e] * scale - lse * log2_e);
            if (!all && static_cast<unsigned>(position + 8 * j + e % 2 - e / 2 * 8) >= seen) p = 0.0f;
            s[j][e] = p;
            dp[j][e] = p * (dp[j][e] - d);
        }
    }
}

/// The same where queries are the rows, 8 Columns adjacent keys, and dp alone is wanted; lse: times log2_e.
template <int Columns>
__device__ __forceinline__ void weigh_queries(const float (&s)[Columns][4], float (&dp)[Columns][4],
                                              const float (&lse)[2], const float (&delta)[2], int position, bool all,
                                              unsigned seen, float scale) {
#pragma unroll
    for (int j = 0; j < Columns; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float p = ex2_approx(s[j][e] * scale - lse[e / 2]);
            if (!all && static_cast<unsigned>(position + e / 2 * 8 - 8 * j - e % 2) >= seen) p = 0.0f;
            dp[j][e] = p * (dp[j][e] - delta[e / 2]);
        }
}

/// Calls f(TypeTag<T>, padded head_dim as an integral constant) for what attention_mma_serves.
template <class F>
void dispatch(const PortableAttention& a, F f) {
    UNSLOTH_CHECK(attention_mma_serves(a), "attention by tensor cores does not take such rows");
    const auto by_size = [&](auto type) {
        if (a.head_dim <= 64)
            f(type, std::integral_constant<int, 64>{});
        else if (a.head_dim <= 96)
            f(type, std::integral_constant<int, 96>{});
        else if (a.head_dim <= 128)
            f(type, std::integral_constant<int, 128>{});
        else
            f(type, std::integral_constant<int, 256>{});
    };
    if (a.dtype == spec::DType::bf16)
        by_size(TypeTag<__nv_bfloat16>{});
    else
        by_size(TypeTag<__half>{});
}

}  // namespace unsloth::kernels::mma_attention
