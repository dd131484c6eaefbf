// What the kernel of lora_dy.cuh is given, and where it keeps it in shared memory.
#pragma once

#include <cuda.h>

#include <algorithm>

#include "kernels/code_pairs.cuh"
#include "kernels/lora_gemm.h"

namespace unsloth::kernels {
namespace lora {

/// One projection: its columns of dy, its columns of u and v, its gradient.
struct DyRange {
    int begin, columns, thin_begin, thin_columns, first_strip, rank;
    float scale;
    float* db;
};

struct DyParams {
    const void* dy;
    const void* u;  ///< [tokens, thin], contiguous
    const void* b;
    int64_t dy_stride, b_stride, columns;
    int tokens, thin, cluster, ranges, stages, evict_first;
    DyRange range[most_lora_parts];
    int strips;
    float* v_parts;       ///< [steps, strips, step_tokens, kThin]: addends are contiguous
    float* db_parts;      ///< [splits, columns, kThin]; nullptr: straight into the gradient
    const float* scales;  ///< of codes, as all that follows: block b's of token t at b * scale_stride + t
    int64_t scale_stride;
    const void* factors;
    int first_token;  ///< of `tokens` among those of `code_map`
    CUtensorMap code_map;
};

inline constexpr int step_tokens = 16, most_stages = 12, few_tokens = 1024;

template <int kWarps_, int kTiles_, int kBlocks_>
struct DyTile {
    static constexpr int kWarps = kWarps_;    ///< consumers
    static constexpr int kTiles = kTiles_;    ///< of 16 columns a consumer
    static constexpr int kBlocks = kBlocks_;  ///< that shall fit a multiprocessor
    static constexpr int kColumns = kWarps * kTiles * 16, kThreads = (kWarps + 2) * 32;
};

/// X: dy's elements, T or codes.
template <class X, class Tile, int kThin>
struct DyShared {
    static constexpr bool kCodes = is_codes<X>;
    static constexpr int kPitch = Tile::kColumns * 2 + 16;  // bytes; an odd number of 16: no bank conflicts
    static constexpr int kStageSteps = kCodes ? 2 : 1, kStageTokens = kStageSteps * step_tokens;
    static constexpr int kBoxColumns = 128, kBoxBytes = kStageTokens * kBoxColumns;  // of codes, swizzled by 128 bytes
    static constexpr int kScaleBlocks = kCodes ? Tile::kColumns / int8_block : 0;
    static constexpr int kScalesAt = kStageTokens * (kCodes ? Tile::kColumns : kPitch),
                         kUAt = kScalesAt + kScaleBlocks * kStageTokens * 4;
    static constexpr int kPartPitch = kThin + 8;
    static constexpr int kPartFloats = step_tokens * kPartPitch;  // one warp's share of v
    static constexpr int kPartBytes = 2 * Tile::kWarps * kPartFloats * 4;
    static constexpr int kSumPitch = kThin + 8;
    static constexpr int kSumBytes = Tile::kColumns * kSumPitch * 4;
    static constexpr int kAligned = kCodes ? 1024 : 16;  // as the swizzle wants boxes
    static constexpr int kBarrierBytes = kCodes ? kAligned : 8 * (2 * most_stages + 4);
    static_assert(8 * (2 * most_stages + 4) <= kBarrierBytes);
    static_assert(!kCodes || (sizeof(X) == 1 && Tile::kTiles % 2 == 0), "a load of codes is two tiles wide");

    __host__ __device__ static int stage_bytes(int thin) {
        return (kUAt + kStageTokens * thin * 2 + kAligned - 1) / kAligned * kAligned;
    }
    static int stages(int thin) {
        const int budget = 227 * 1024 / Tile::kBlocks - 1024 - kBarrierBytes - kPartBytes;
        return std::min(most_stages, std::max(2, budget / stage_bytes(thin)));
    }
    static int bytes(int thin) {
        return kBarrierBytes + std::max(stages(thin) * stage_bytes(thin) + kPartBytes, kSumBytes);
    }
};

/// The projection that a strip of columns belongs to.
__device__ __forceinline__ const DyRange& range_of(const DyParams& p, int strip) {
    int which = 0;
    while (which + 1 < p.ranges && strip >= p.range[which + 1].first_strip) ++which;
    return p.range[which];
}

}  // namespace lora
}  // namespace unsloth::kernels
