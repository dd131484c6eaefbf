// What both kernels that multiply by tiled 4-bit weights share: the layout of tiles and scales, the tail's operand, and
// the epilogue's stores.
//
// Words: the result's second dimension ("rows", in tiles of 64) is N forward and K transposed; the reduction comes in
// blocks of 64: K or N of the weights, after the tail's blocks if there is a tail.
#pragma once

#include <algorithm>

#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/mma.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/nf4_gemm.h"
#include "kernels/nf4_tiles.cuh"

namespace unsloth::kernels::nf4 {

struct Segment {
    const uint8_t* tiles;
    const float* nested_absmax;
    const float* code;
    const float* nested_map;
    float nested_offset;
    int first;       ///< its first tile along N
    int tail_begin;  ///< of its rows' columns of the tail
};

struct Problem {
    Segment segments[nf4_gemm_most_weights];
    int count;
    int n_tiles, k_tiles;
    int row_tiles;    ///< of the result's second dimension
    int tail_blocks;  ///< ceil(tail / 64)
    int blocks;       ///< tail_blocks and the weights' tiles along the reduction
    int tail;         ///< columns of it that a segment's rows have, at most
    int all_tail;     ///< R
    int m;
    const __nv_bfloat16* x;
    int64_t x_stride;
    const __nv_bfloat16* tail_weight;
    int64_t tail_stride;
    bool tail_is_aligned;  ///< its weight's rows, to 16 bytes
    const __nv_bfloat16* bias;
    const __nv_bfloat16* residual;
    int64_t residual_stride;
    __nv_bfloat16* out;
    int64_t out_stride;
};

inline Problem make_problem(const Nf4GemmArgs& args) {
    Problem p{};
    p.count = args.count;
    for (int i = 0; i < args.count; ++i) {
        const spec::Nf4TilesView& w = args.weights[i];
        p.segments[i] = {w.tiles, w.nested_absmax, w.code, w.nested_map, w.nested_offset, p.n_tiles, 0};
        p.n_tiles += static_cast<int>(w.rows / spec::nf4_tile);
    }
    p.all_tail = p.tail = static_cast<int>(args.tail);
    // A block makes up to 128 rows, with one piece of u.
    const auto whole = [](const spec::Nf4TilesView& w) { return w.rows % (2 * spec::nf4_tile) == 0; };
    if (args.tail_columns != nullptr && std::all_of(args.weights, args.weights + args.count, whole)) {
        p.tail = 0;
        for (int i = 0; i < args.count; ++i) {
            p.segments[i].tail_begin = static_cast<int>(args.tail_columns[i].begin);
            p.tail = std::max(p.tail, static_cast<int>(args.tail_columns[i].count));
        }
    }
    p.k_tiles = static_cast<int>(args.weights[0].cols / spec::nf4_tile);
    p.row_tiles = args.transposed ? p.k_tiles : p.n_tiles;
    p.tail_blocks = static_cast<int>(ceil_div(p.tail, spec::nf4_tile));
    p.blocks = p.tail_blocks + (args.transposed ? p.n_tiles : p.k_tiles);
    p.m = static_cast<int>(args.m);
    p.x = static_cast<const __nv_bfloat16*>(args.x.data);
    p.x_stride = args.x.stride;
    p.tail_weight = static_cast<const __nv_bfloat16*>(args.tail_weight.data);
    p.tail_stride = args.tail_weight.stride;
    p.tail_is_aligned =
        reinterpret_cast<uintptr_t>(args.tail_weight.data) % 16 == 0 && args.tail_weight.stride % 8 == 0;
    p.bias = static_cast<const __nv_bfloat16*>(args.bias);
    p.residual = static_cast<const __nv_bfloat16*>(args.residual.data);
    p.residual_stride = args.residual.stride;
    p.out = static_cast<__nv_bfloat16*>(args.out.data);
    p.out_stride = args.out.stride;
    return p;
}

/// Which weight holds tile n of N.
__device__ __forceinline__ int segment_of(const Problem& p, int n_tile) {
    int s = 0;
#pragma unroll
    for (int i = 1; i < nf4_gemm_most_weights; ++i) s += i < p.count && n_tile >= p.segments[i].first ? 1 : 0;
    return s;
}

/// A tile by its place in the result's second dimension and in the reduction.
struct TileRef {
    int segment;
    int n;  ///< within the segment
    int k;
};

template <bool Transposed>
__device__ __forceinline__ TileRef tile_at(const Problem& p, int row_tile, int block) {
    const int sum_tile = block - p.tail_blocks;
    const int n = Transposed ? sum_tile : row_tile;
    const int segment = segment_of(p, n);
    return {segment, n - p.segments[segment].first, Transposed ? row_tile : sum_tile};
}

__device__ __forceinline__ const uint8_t* tile_data(const Problem& p, TileRef t) {
    return p.segments[t.segment].tiles + (int64_t{t.n} * p.k_tiles + t.k) * spec::nf4_tile_bytes;
}

/// The nested maximum of the block that row `row` of a tile is.
__device__ __forceinline__ const float* nested_absmax_of(const Problem& p, TileRef t, int row) {
    const auto block = static_cast<uint32_t>(t.n * spec::nf4_tile + row) * static_cast<uint32_t>(p.k_tiles) +
                       static_cast<uint32_t>(t.k);
    return p.segments[t.segment].nested_absmax + block / spec::quant4_nested_block;
}

/// First column of the tail for a tile of the result's second dimension.
__device__ __forceinline__ int tail_begin(const Problem& p, int row_tile) {
    return p.tail == p.all_tail ? 0 : p.segments[segment_of(p, row_tile)].tail_begin;
}

/// First column of x that a block of the reduction reads.
__device__ __forceinline__ int x_column(const Problem& p, int row_tile, int block) {
    return block < p.tail_blocks ? (p.blocks - p.tail_blocks + block) * spec::nf4_tile + tail_begin(p, row_tile)
                                 : (block - p.tail_blocks) * spec::nf4_tile;
}

/// The tail's A operand: rows `row` and row + 8 (row = first row of 16, plus lane / 4), columns `r` .. r + 15.
template <bool Transposed>
__device__ __forceinline__ void tail_operand(const Problem& p, int row, int r, int lane, uint32_t* a) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int n = row + i % 2 * 8, c = r + lane % 4 * 2 + i / 2 * 8;
        a[i] = 0;
        if (c >= p.all_tail) continue;
        if (Transposed) {
            const auto* w = reinterpret_cast<const uint16_t*>(p.tail_weight) + n;
            a[i] = uint32_t{w[c * p.tail_stride]} | uint32_t{w[(c + 1) * p.tail_stride]} << 16;
        } else {
            a[i] = *reinterpret_cast<const uint32_t*>(p.tail_weight + n * p.tail_stride + c);
        }
    }
}

__device__ __forceinline__ void add_eight(float (&v)[8], float4 low, float4 high) {
    v[0] += low.x, v[1] += low.y, v[2] += low.z, v[3] += low.w;
    v[4] += high.x, v[5] += high.y, v[6] += high.z, v[7] += high.w;
}

/// Adds bias and residual to eight sums and stores them, rounded once.
__device__ __forceinline__ void store_eight(const Problem& p, int token, int row, float (&v)[8]) {
    if (p.bias != nullptr) {
        // a slice of a joined bias need not be aligned to more than an element
        const __nv_bfloat16* bias = p.bias + row;
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] += __bfloat162float(bias[i]);
    }
    if (p.residual != nullptr) {
        const uint4 packed = *reinterpret_cast<const uint4*>(p.residual + token * p.residual_stride + row);
        const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            v[2 * i] += __uint_as_float(words[i] << 16);
            v[2 * i + 1] += __uint_as_float(words[i] & 0xFFFF0000u);
        }
    }
    uint4 result;
    uint32_t* words = &result.x;
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = pack_bf16x2(v[2 * i], v[2 * i + 1]);
    *reinterpret_cast<uint4*>(p.out + token * p.out_stride + row) = result;
}

template <bool Transposed>
__device__ __forceinline__ void load_codes(uint32_t (&r)[4], uint32_t address) {
    if constexpr (Transposed)
        ldmatrix_x4_trans(r, address);
    else
        ldmatrix_x4(r, address);
}

// ---- Pairs: a byte of a tile holds the codes of rows r and r + 8 at one column. A table in shared memory gives both
// as bf16 at once, from an own copy for each lane, so that no banks conflict. The codes are rounded to bf16 times
// code_stretch, chosen so that NF4's are near values that bf16 has: their error (7.8e-4 in the mean over normally
// distributed weights) is half of what rounding each weight to bf16 brings (1.66e-3). Scales, over code_stretch, are
// applied in fp32 to the sums of a block of 64.

constexpr int pair_entry_bytes = 256;  ///< for 32 lanes, and as much again: a place is then one PRMT of a byte
constexpr int pair_table_bytes = 256 * pair_entry_bytes;
constexpr float code_stretch = 1.4367F;

/// By `warps` warps; a barrier of theirs must follow.
__device__ __forceinline__ void fill_pair_table(uint8_t* table, const float* code, int warp, int lane, int warps) {
    for (int entry = warp; entry < 256; entry += warps)
        *reinterpret_cast<uint32_t*>(table + entry * pair_entry_bytes + lane * 4) =
            pack_bf16x2(__ldg(code + entry % 16) * code_stretch, __ldg(code + entry / 16) * code_stretch);
}
/// Of byte `byte` of the word: row r low, row r + 8 high. lane_place: lane * 4.
__device__ __forceinline__ uint32_t pair_of(const uint8_t* table, uint32_t lane_place, uint32_t word, int byte) {
    const uint32_t place = __byte_perm(word, lane_place, 0x5504u | static_cast<uint32_t>(byte) << 4);
    return *reinterpret_cast<const uint32_t*>(table + place);
}
__device__ __forceinline__ bool same_code(const Segment& a, const Segment& b) {
    bool same = true;
#pragma unroll
    for (int i = 0; i < 16; ++i) same &= __ldg(a.code + i) == __ldg(b.code + i);
    return same;
}

/// The tables of all weights in shared memory.
struct Tables {
    float map[nf4_gemm_most_weights][256];
    float code[nf4_gemm_most_weights][16];

    /// `thread` of `threads` (at least 16) that take part; a barrier of theirs must follow.
    __device__ __forceinline__ void load(const Problem& p, int thread, int threads) {
        for (int s = 0; s < p.count; ++s) {
            for (int i = thread; i < 256; i += threads) map[s][i] = p.segments[s].nested_map[i];
            if (thread < 16) code[s][thread] = p.segments[s].code[thread];
        }
    }
};

}  // namespace unsloth::kernels::nf4
