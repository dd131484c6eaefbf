// The kernel that reads dy once, for v = dy·sB and dB += s·dyᵀ·u; included by lora_dy.cu alone.
//
// A block owns a strip of dy's columns and walks over its tokens, 16 a step, with the strip's dB in registers. Warps
// are specialised: one produces (bulk loads into a ring of stages), kWarps consume, each a part of the strip's columns,
// and never wait for one another: their shares of v go through two small buffers to one more warp, which adds them and
// writes the strip's share. A cluster of blocks with different tokens adds its dB through shared memory. All orders
// are fixed.
//
// Ceiling: the bandwidth of memory, dy being read once; u, B and the sums are thin.
#pragma once

#include "kernels/lora_gemm.cuh"
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
    float* v_parts;   ///< [steps, strips, step_tokens, kThin]: what is added lies together
    float* db_parts;  ///< [splits, columns, kThin]; nullptr: straight into the gradient
};

inline constexpr int step_tokens = 16, most_stages = 12, few_tokens = 1024;

template <int kWarps_, int kTiles_, int kBlocks_>
struct DyTile {
    static constexpr int kWarps = kWarps_;    ///< consumers
    static constexpr int kTiles = kTiles_;    ///< of 16 columns a consumer
    static constexpr int kBlocks = kBlocks_;  ///< that shall fit a multiprocessor
    static constexpr int kColumns = kWarps * kTiles * 16, kThreads = (kWarps + 2) * 32;
};

template <class Tile, int kThin>
struct DyShared {
    static constexpr int kPitch = Tile::kColumns + 8;  // an odd number of 16-byte units: no bank conflicts
    static constexpr int kDyBytes = step_tokens * kPitch * 2;
    static constexpr int kPartPitch = kThin + 8;
    static constexpr int kPartFloats = step_tokens * kPartPitch;  // one warp's share of v
    static constexpr int kPartBytes = 2 * Tile::kWarps * kPartFloats * 4;
    static constexpr int kSumPitch = kThin + 8;
    static constexpr int kSumBytes = Tile::kColumns * kSumPitch * 4;
    static constexpr int kBarrierBytes = 8 * (2 * most_stages + 4);

    static int stage_bytes(int thin) { return kDyBytes + step_tokens * thin * 2; }
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

/// A thread's view of its block's share: a strip of columns, and `steps` steps of tokens from `first` on.
template <class T, class Tile, int kThin>
struct DyBlock {
    using Shared = DyShared<Tile, kThin>;
    static constexpr int kColumns = Tile::kColumns, kTiles = Tile::kTiles, kPairs = kThin / 16;
    using Sums = float[kTiles][kPairs * 2][4];  ///< of dB: a consumer's columns by thin columns

    const DyParams& p;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int strip = static_cast<int>(blockIdx.y);
    const DyRange range;
    const int column_begin, columns;
    int first, steps;
    // Shared memory: the mbarriers of the stages and of the buffers of v; stages; the consumers' shares of v.
    const uint32_t full, empty = full + 8 * most_stages, v_full = empty + 8 * most_stages, v_empty = v_full + 16;
    unsigned char* const data;
    const uint32_t base;  ///< of `data`
    const int stage_bytes;
    float* const v_shared;

    __device__ __forceinline__ DyBlock(const DyParams& params, unsigned char* memory)
        : p(params),
          range(range_of(p, strip)),
          column_begin((strip - range.first_strip) * kColumns),
          columns(min(kColumns, range.columns - column_begin)),
          full(shared_address(memory)),
          data(memory + Shared::kBarrierBytes),
          base(shared_address(data)),
          stage_bytes(Shared::kDyBytes + step_tokens * p.thin * 2),
          v_shared(reinterpret_cast<float*>(data + p.stages * stage_bytes)) {
        const int all_steps = (p.tokens + step_tokens - 1) / step_tokens, blocks = static_cast<int>(gridDim.x);
        const int share = (all_steps + blocks - 1) / blocks;
        first = min(static_cast<int>(blockIdx.x) * share, all_steps), steps = min(share, all_steps - first);
    }

    /// By one thread; a barrier of the block must follow.
    __device__ __forceinline__ void init_mbarriers() const {
        for (int s = 0; s < p.stages; ++s) {
            mbarrier_init(full + 8 * s, 1);
            mbarrier_init(empty + 8 * s, Tile::kWarps);
        }
        for (int s = 0; s < 2; ++s) {
            mbarrier_init(v_full + 8 * s, Tile::kWarps);
            mbarrier_init(v_empty + 8 * s, 1);
        }
        fence_mbarrier_init();
        fence_proxy_async();
    }

    /// Brings the tiles: all lanes of one warp.
    __device__ __forceinline__ void produce() const {
        const T* dy = static_cast<const T*>(p.dy) + range.begin + column_begin;
        const uint64_t policy = l2_policy(p.evict_first != 0), keep = l2_policy(false);
        PipelineState state;
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            if (step >= p.stages) mbarrier_wait(empty + 8 * state.stage, state.phase ^ 1);
            const int token_begin = (first + step) * step_tokens, tokens = min(step_tokens, p.tokens - token_begin);
            const uint32_t stage = base + state.stage * stage_bytes, barrier = full + 8 * state.stage;
            // Loads leave columns beyond the strip's alone: zeroed once, they stay so.
            if (tokens < step_tokens || (columns < kColumns && step < p.stages))
                zero_margins(data + state.stage * stage_bytes, tokens);
            __syncwarp();
            if (lane == 0) mbarrier_arrive_expect_tx(barrier, tokens * (columns + p.thin) * 2);
            __syncwarp();
            if (lane < tokens)
                bulk_load(stage + lane * (Shared::kPitch * 2), dy + (token_begin + lane) * p.dy_stride, columns * 2,
                          barrier, policy);
            if (lane == step_tokens)
                bulk_load(stage + Shared::kDyBytes,
                          static_cast<const T*>(p.u) + static_cast<int64_t>(token_begin) * p.thin, tokens * p.thin * 2,
                          barrier, keep);
            state.advance(p.stages);
        }
    }

    /// What no load fills must not be NaN.
    __device__ __forceinline__ void zero_margins(unsigned char* stage, int tokens) const {
        uint32_t* words = reinterpret_cast<uint32_t*>(stage);
        for (int row = 0; row < step_tokens; ++row)
            for (int i = (row < tokens ? columns / 2 : 0) + lane; i < kColumns / 2; i += 32)
                words[row * (Shared::kPitch / 2) + i] = 0;
        for (int i = tokens * p.thin / 2 + lane; i < step_tokens * p.thin / 2; i += 32)
            words[Shared::kDyBytes / 4 + i] = 0;
    }

    /// Adds the consumers' shares of v, step by step: one warp.
    __device__ __forceinline__ void reduce_v() const {
        if (p.db_parts == nullptr) prefetch_gradient();
        constexpr int kFloats = step_tokens * kThin;
        float* out = p.v_parts + (static_cast<int64_t>(first) * p.strips + strip) * kFloats;
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const int buffer = step % 2;
            mbarrier_wait(v_full + 8 * buffer, step / 2 % 2);
            const float* parts = v_shared + buffer * (Tile::kWarps * Shared::kPartFloats);
#pragma unroll
            for (int i = lane; i < kFloats / 4; i += 32) {
                const int token = i / (kThin / 4), column = i % (kThin / 4) * 4;
                const float* at = parts + token * Shared::kPartPitch + column;
                float4 total = *reinterpret_cast<const float4*>(at);
#pragma unroll
                for (int w = 1; w < Tile::kWarps; ++w)
                    add(total, *reinterpret_cast<const float4*>(at + w * Shared::kPartFloats));
                *reinterpret_cast<float4*>(out + i * 4) = total;
            }
            __syncwarp();
            if (lane == 0) mbarrier_arrive(v_empty + 8 * buffer);
            out += static_cast<int64_t>(p.strips) * kFloats;
        }
    }

    /// The gradient will be added to at the end: have it near.
    __device__ __forceinline__ void prefetch_gradient() const {
        const int floats = columns * range.rank, part = (floats + p.cluster - 1) / p.cluster;
        const float* gradient = range.db + static_cast<int64_t>(column_begin) * range.rank;
        const int begin = static_cast<int>(blockIdx.x) % p.cluster * part, end = min(begin + part, floats);
        for (int at = begin + lane * 32; at < end; at += 32 * 32) prefetch_l2(gradient + at);
    }

    /// The consumer's rows of sB as the B operand; they stay in registers.
    __device__ __forceinline__ void load_b(uint32_t (&b)[kTiles][kPairs * 2][2]) const {
        const uint16_t* from =
            static_cast<const uint16_t*>(p.b) + (range.begin + column_begin) * p.b_stride + range.thin_begin;
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
            for (int n = 0; n < kPairs * 2; ++n) {
                const int column = n * 8 + lane / 4;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int row = (warp * kTiles + m) * 16 + half * 8 + lane % 4 * 2;
                    const bool inside = column < range.thin_columns && row < columns;  // and so is row + 1
                    const uint32_t low = inside ? from[row * p.b_stride + column] : 0;
                    const uint32_t high = inside ? from[(row + 1) * p.b_stride + column] : 0;
                    b[m][n][half] = low | high << 16;
                }
            }
        }
    }

    /// A consumer warp: dB += dyᵀ u into `sum`, v's share into its buffer.
    __device__ __forceinline__ void consume(Sums& sum) const {
        uint32_t b[kTiles][kPairs * 2][2];
        load_b(b);
        const uint32_t dy_at = ((lane % 16) * Shared::kPitch + warp * kTiles * 16 + lane / 16 * 8) * 2;
        const uint32_t dy_transposed_at =
            ((lane % 8 + lane / 16 * 8) * Shared::kPitch + warp * kTiles * 16 + lane / 8 % 2 * 8) * 2;
        const uint32_t u_at = Shared::kDyBytes + ((lane % 16) * p.thin + range.thin_begin) * 2;
        PipelineState state;
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const uint32_t stage = base + state.stage * stage_bytes;
            mbarrier_wait(full + 8 * state.stage, state.phase);
            uint32_t u[kPairs][4];
#pragma unroll
            for (int n = 0; n < kPairs; ++n) {
                // Columns of other projections may follow: read the last own ones twice rather than past the row's
                // end.
                const int column = n * 16 + lane / 16 * 8;
                ldmatrix_x4_trans(u[n], stage + u_at + min(column, range.thin_columns - 8) * 2);
            }
            float v[kPairs * 2][4] = {};
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
                uint32_t a[4];
                ldmatrix_x4_trans(a, stage + dy_transposed_at + m * 32);
#pragma unroll
                for (int n = 0; n < kPairs; ++n) {
                    mma_m16n8k16<T>(sum[m][2 * n], a, u[n][0], u[n][1]);
                    mma_m16n8k16<T>(sum[m][2 * n + 1], a, u[n][2], u[n][3]);
                }
                ldmatrix_x4(a, stage + dy_at + m * 32);
#pragma unroll
                for (int n = 0; n < kPairs * 2; ++n) mma_m16n8k16<T>(v[n], a, b[m][n][0], b[m][n][1]);
            }
            __syncwarp();
            if (lane == 0) mbarrier_arrive(empty + 8 * state.stage);
            state.advance(p.stages);
            share_v(v, step);
        }
    }

    __device__ __forceinline__ void share_v(const float (&v)[kPairs * 2][4], int step) const {
        const int buffer = step % 2;
        if (step >= 2) mbarrier_wait(v_empty + 8 * buffer, step / 2 % 2 ^ 1);
        float* part = v_shared + (buffer * Tile::kWarps + warp) * Shared::kPartFloats + lane / 4 * Shared::kPartPitch +
                      lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < kPairs * 2; ++n) {
            *reinterpret_cast<float2*>(part + n * 8) = make_float2(v[n][0], v[n][1]);
            *reinterpret_cast<float2*>(part + n * 8 + 8 * Shared::kPartPitch) = make_float2(v[n][2], v[n][3]);
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(v_full + 8 * buffer);
    }

    /// dB of a block without a cluster: straight from the registers to its part.
    __device__ __forceinline__ void epilogue_alone(const Sums& sum, float* parts) const {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int column = (warp * kTiles + m) * 16 + half * 8 + lane / 4;
                if (column >= columns) continue;
#pragma unroll
                for (int n = 0; n < kPairs * 2; ++n)
                    *reinterpret_cast<float2*>(parts + static_cast<int64_t>(column) * kThin + n * 8 + lane % 4 * 2) =
                        make_float2(sum[m][n][2 * half], sum[m][n][2 * half + 1]);
            }
        }
    }

    /// dB of a cluster: every block leaves its sums as [column][thin] where the stages were; then each adds a part of
    /// them over the cluster, into `parts` or the gradient.
    __device__ __forceinline__ void epilogue_cluster(const Sums& sum, float* parts) const {
        constexpr int kPitch = Shared::kSumPitch;
        if (warp < Tile::kWarps) {
            float* sums = reinterpret_cast<float*>(data);
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
                float* to = sums + ((warp * kTiles + m) * 16 + lane / 4) * kPitch + lane % 4 * 2;
#pragma unroll
                for (int n = 0; n < kPairs * 2; ++n) {
                    *reinterpret_cast<float2*>(to + n * 8) = make_float2(sum[m][n][0], sum[m][n][1]);
                    *reinterpret_cast<float2*>(to + n * 8 + 8 * kPitch) = make_float2(sum[m][n][2], sum[m][n][3]);
                }
            }
        }
        __syncthreads();
        cluster_sync();
        const int rank = static_cast<int>(blockIdx.x) % p.cluster;
        for (int i = rank * Tile::kThreads + thread; i < kThin * kColumns / 4; i += p.cluster * Tile::kThreads) {
            const int column = i / (kThin / 4), c = i % (kThin / 4) * 4;
            if (column >= columns || c >= range.rank) continue;
            const float4 total = cluster_sum(base + (column * kPitch + c) * 4, p.cluster);
            if (parts != nullptr) {
                *reinterpret_cast<float4*>(parts + static_cast<int64_t>(column) * kThin + c) = total;
            } else {
                accumulate(range.db + static_cast<int64_t>(column_begin + column) * range.rank + c, total, range.scale,
                           range.rank - c);
            }
        }
        cluster_sync();  // nobody leaves while others read its sums
    }
};

template <class T, class Tile, int kThin>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks) dy_kernel(const __grid_constant__ DyParams p) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char memory[];
    const DyBlock<T, Tile, kThin> block(p, memory);
    // Few tokens: the blocks of the second kernel may come at once and wait. Many: they would only be in the way.
    if (p.tokens <= few_tokens) griddepcontrol_launch_dependents();
    if (block.thread == 0) block.init_mbarriers();
    __syncthreads();

    typename DyBlock<T, Tile, kThin>::Sums sum = {};
    if (block.warp == Tile::kWarps) {
        block.produce();
    } else if (block.warp == Tile::kWarps + 1) {
        block.reduce_v();
    } else {
        block.consume(sum);
    }
    __syncthreads();

    if (p.tokens > few_tokens) griddepcontrol_launch_dependents();
    float* parts = p.db_parts;
    if (parts != nullptr)
        parts +=
            (static_cast<int64_t>(blockIdx.x) / p.cluster * p.columns + block.range.begin + block.column_begin) * kThin;
    if (parts != nullptr && p.cluster == 1) {
        if (block.warp < Tile::kWarps) block.epilogue_alone(sum, parts);
        return;
    }
    block.epilogue_cluster(sum, parts);
#else
    __trap();  // lora_supports() denies cards without clusters and bulk loads
#endif
}

}  // namespace lora
}  // namespace unsloth::kernels
