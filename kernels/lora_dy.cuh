// The kernel that reads dy once, for v = dy·sB and dB += s·dyᵀ·u; included by lora_dy_produce.cuh alone.
//
// A block owns a strip of dy's columns and walks over its tokens, 16 a step, with the strip's dB in registers. Warps
// are specialised: one produces (bulk loads into a ring of stages), kWarps consume, each a part of the strip's columns,
// and never wait for one another: their shares of v go through two small buffers to one more warp, which adds them and
// writes the strip's share. A cluster of blocks with different tokens adds its dB through shared memory. All orders
// are fixed.
//
// dy may be codes, whose values are exact in bf16. A consumer's columns are in one block of int8's scales: a token's
// scale multiplies its share of v, and u for dB. Factors divide sB, and dB's rows.
//
// Ceiling: the bandwidth of memory, dy being read once; u, B and the sums are thin.
#pragma once

#include "kernels/lora_dy_layout.cuh"
#include "kernels/lora_gemm.cuh"

namespace unsloth::kernels {
namespace lora {

/// A thread's view of its block's share: a strip of columns, and `steps` steps of tokens from `first` on.
template <class T, class X, class Tile, int kThin>
struct DyBlock {
    using Shared = DyShared<X, Tile, kThin>;
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
          stage_bytes(Shared::stage_bytes(p.thin)),
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
    __device__ __forceinline__ void produce() const;

    __device__ __forceinline__ void load_u(uint32_t stage, int token_begin, int tokens, uint32_t barrier,
                                           uint64_t policy) const {
        bulk_load(stage + Shared::kUAt, static_cast<const T*>(p.u) + static_cast<int64_t>(token_begin) * p.thin,
                  tokens * p.thin * 2, barrier, policy);
    }

    /// What no load fills must not be NaN.
    __device__ __forceinline__ void zero_margins(unsigned char* stage, int tokens) const {
        uint32_t* words = reinterpret_cast<uint32_t*>(stage);
        for (int row = 0; row < step_tokens; ++row)
            for (int i = (row < tokens ? columns / 2 : 0) + lane; i < kColumns / 2; i += 32)
                words[row * (Shared::kPitch / 4) + i] = 0;
        zero_u(words, tokens);
    }
    __device__ __forceinline__ void zero_u(uint32_t* words, int tokens) const {
        for (int i = tokens * p.thin / 2 + lane; i < Shared::kStageTokens * p.thin / 2; i += 32)
            words[Shared::kUAt / 4 + i] = 0;
    }

    /// The same of codes, two steps a stage, so that boxes are few. They give zeros for tokens that are not there, and
    /// what follows the strip's columns, which meets zeros of sB.
    __device__ __forceinline__ void produce_codes() const;

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

    /// The column of the strip that is row lane / 4 + 8 * half of a consumer's tile m. Of two codes that a transposed
    /// load gives side by side, one is a row of the first eight, the other of the second.
    __device__ __forceinline__ int column_of(int m, int half) const {
        return (warp * kTiles + m) * 16 + (Shared::kCodes ? lane / 4 * 2 + half : half * 8 + lane / 4);
    }
    /// 1 / factor of two columns side by side of the strip.
    __device__ __forceinline__ uint32_t inverse_factors(int column) const {
        const auto* factors = static_cast<const uint32_t*>(p.factors);
        return inverse_powers(factors[(range.begin + column_begin + column) / 2]);
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
                    const int row =
                        (warp * kTiles + m) * 16 + (Shared::kCodes ? lane % 4 * 4 + half * 2 : half * 8 + lane % 4 * 2);
                    const bool inside = column < range.thin_columns && row < columns;  // and so is row + 1
                    const uint32_t low = inside ? from[row * p.b_stride + column] : 0;
                    const uint32_t high = inside ? from[(row + 1) * p.b_stride + column] : 0;
                    b[m][n][half] = low | high << 16;
                    if (Shared::kCodes && p.factors != nullptr && inside)
                        b[m][n][half] = multiply_pairs(b[m][n][half], inverse_factors(row));
                }
            }
        }
    }

    /// A consumer warp: dB += dyᵀ u into `sum`, v's share into its buffer.
    __device__ __forceinline__ void consume(Sums& sum) const {
        uint32_t b[kTiles][kPairs * 2][2];
        load_b(b);
        const uint32_t u_at = Shared::kUAt + ((lane % 16) * p.thin + range.thin_begin) * 2;
        PipelineState state;
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const int of_stage = step % Shared::kStageSteps;
            const uint32_t stage = base + state.stage * stage_bytes;
            if (of_stage == 0) mbarrier_wait(full + 8 * state.stage, state.phase);
            uint32_t u[kPairs][4];
#pragma unroll
            for (int n = 0; n < kPairs; ++n) {
                // Columns of other projections may follow: read the last own ones twice rather than past the row's
                // end.
                const int column = n * 16 + lane / 16 * 8;
                ldmatrix_x4_trans(
                    u[n], stage + u_at + (of_stage * step_tokens * p.thin + min(column, range.thin_columns - 8)) * 2);
            }
            float v[kPairs * 2][4] = {};
            if constexpr (Shared::kCodes)
                multiply_codes(state, of_stage * step_tokens, u, b, sum, v);
            else
                multiply(stage, u, b, sum, v);
            if (of_stage + 1 == Shared::kStageSteps || step + 1 == steps) {
                __syncwarp();
                if (lane == 0) mbarrier_arrive(empty + 8 * state.stage);
                state.advance(p.stages);
            }
            share_v(v, step);
        }
        if constexpr (Shared::kCodes)
            if (p.factors != nullptr) divide_by_factors(sum);
    }

    __device__ __forceinline__ void divide_by_factors(Sums& sum) const {
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
            const int column = column_of(m, 0);
            const uint32_t pair = column < columns ? inverse_factors(column) : 0;
            const float of_it = __uint_as_float(pair << 16), of_next = __uint_as_float(pair & 0xFFFF0000u);
#pragma unroll
            for (int n = 0; n < kPairs * 2; ++n)
                sum[m][n][0] *= of_it, sum[m][n][1] *= of_it, sum[m][n][2] *= of_next, sum[m][n][3] *= of_next;
        }
    }

    /// multiply() of the codes of 16 tokens. Two tiles of 16 columns a load: as stored for v, transposed by pairs for
    /// dB (column_of).
    __device__ __forceinline__ void multiply_codes(const PipelineState& state, int first_of_stage,
                                                   uint32_t (&u)[kPairs][4], const uint32_t (&b)[kTiles][kPairs * 2][2],
                                                   Sums& sum, float (&v)[kPairs * 2][4]) const {
        const int at = state.stage * stage_bytes, row = first_of_stage + lane % 16;
        const float* const scales = reinterpret_cast<const float*>(data + at + Shared::kScalesAt) +
                                    warp * kTiles * 16 / int8_block * Shared::kStageTokens + first_of_stage;
        const float of_row = scales[lane / 4], below = scales[lane / 4 + 8];
        scale_tokens(u, scales);
        constexpr int kChunks = Shared::kBoxColumns / 16;  // of 16 codes, which the swizzle moves
#pragma unroll
        for (int pair = 0; pair < kTiles; pair += 2) {
            const int chunk = warp * kTiles + pair + lane / 16;
            const uint32_t from = base + at + chunk / kChunks * Shared::kBoxBytes + row * Shared::kBoxColumns +
                                  (chunk % kChunks ^ row % kChunks) * 16;
            uint32_t turned[4], codes[4];  // of a tile two each: eight tokens, and the next eight
            ldmatrix_x4_trans(turned, from);
            ldmatrix_x4(codes, from);
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const int m = pair + i / 2;
                const uint32_t by_column[4] = {X::even_bytes(turned[i]), X::even_bytes(turned[i] >> 8),
                                               X::even_bytes(turned[i + 1]), X::even_bytes(turned[i + 1] >> 8)};
#pragma unroll
                for (int n = 0; n < kPairs; ++n) {
                    mma_m16n8k16<T>(sum[m][2 * n], by_column, u[n][0], u[n][1]);
                    mma_m16n8k16<T>(sum[m][2 * n + 1], by_column, u[n][2], u[n][3]);
                }
                const uint32_t by_token[4] = {low_pair<X>(codes[i]), low_pair<X>(codes[i + 1]), high_pair<X>(codes[i]),
                                              high_pair<X>(codes[i + 1])};
#pragma unroll
                for (int n = 0; n < kPairs * 2; ++n) mma_m16n8k16<T>(v[n], by_token, b[m][n][0], b[m][n][1]);
            }
        }
#pragma unroll
        for (int n = 0; n < kPairs * 2; ++n) v[n][0] *= of_row, v[n][1] *= of_row, v[n][2] *= below, v[n][3] *= below;
    }

    /// u times its tokens' scales, rounded once.
    __device__ __forceinline__ void scale_tokens(uint32_t (&u)[kPairs][4], const float* scales) const {
        const float2 first = *reinterpret_cast<const float2*>(scales + lane % 4 * 2),
                     second = *reinterpret_cast<const float2*>(scales + lane % 4 * 2 + 8);
#pragma unroll
        for (int n = 0; n < kPairs; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 by = i % 2 == 0 ? first : second;
                const __nv_bfloat162 scaled = __floats2bfloat162_rn(__uint_as_float(u[n][i] << 16) * by.x,
                                                                    __uint_as_float(u[n][i] & 0xFFFF0000u) * by.y);
                u[n][i] = reinterpret_cast<const uint32_t&>(scaled);
            }
        }
    }

    /// dB += dyᵀ u, v += dy sB, of the consumer's columns of 16 tokens.
    __device__ __forceinline__ void multiply(uint32_t stage, const uint32_t (&u)[kPairs][4],
                                             const uint32_t (&b)[kTiles][kPairs * 2][2], Sums& sum,
                                             float (&v)[kPairs * 2][4]) const {
        const uint32_t own = stage + warp * kTiles * 32;
        const uint32_t dy_at = own + (lane % 16) * Shared::kPitch + lane / 16 * 16;
        const uint32_t dy_transposed_at = own + (lane % 8 + lane / 16 * 8) * Shared::kPitch + lane / 8 % 2 * 16;
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
            uint32_t a[4];
            ldmatrix_x4_trans(a, dy_transposed_at + m * 32);
#pragma unroll
            for (int n = 0; n < kPairs; ++n) {
                mma_m16n8k16<T>(sum[m][2 * n], a, u[n][0], u[n][1]);
                mma_m16n8k16<T>(sum[m][2 * n + 1], a, u[n][2], u[n][3]);
            }
            ldmatrix_x4(a, dy_at + m * 32);
#pragma unroll
            for (int n = 0; n < kPairs * 2; ++n) mma_m16n8k16<T>(v[n], a, b[m][n][0], b[m][n][1]);
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
                const int column = column_of(m, half);
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
                float* const first = sums + column_of(m, 0) * kPitch + lane % 4 * 2;
                float* const second = sums + column_of(m, 1) * kPitch + lane % 4 * 2;
#pragma unroll
                for (int n = 0; n < kPairs * 2; ++n) {
                    *reinterpret_cast<float2*>(first + n * 8) = make_float2(sum[m][n][0], sum[m][n][1]);
                    *reinterpret_cast<float2*>(second + n * 8) = make_float2(sum[m][n][2], sum[m][n][3]);
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
        cluster_sync();  // no block ends while others read its sums
    }
};

template <class T, class X, class Tile, int kThin>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks) dy_kernel(const __grid_constant__ DyParams p) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) unsigned char memory[];
    const DyBlock<T, X, Tile, kThin> block(p, memory);
    // Few tokens: the blocks of the second kernel may come at once and wait. Many: they would only be in the way.
    if (p.tokens <= few_tokens) griddepcontrol_launch_dependents();
    if (block.thread == 0) block.init_mbarriers();
    __syncthreads();

    typename DyBlock<T, X, Tile, kThin>::Sums sum = {};
    if (block.warp == Tile::kWarps) {
        if constexpr (is_codes<X>)
            block.produce_codes();
        else
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
