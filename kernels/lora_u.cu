// u = x·Aᵀ: few columns out of a long reduction. A cluster of blocks shares one tile of tokens, each block takes a
// part of the reduction and each of its warps a part of that; the parts are added in shared memory, then
// across the cluster, in a fixed order. One kernel, no workspace.
//
// A block brings stages of x [kRows, kDepth] and A [kColumns, kDepth] by cp.async, kStages - 1 ahead, and multiplies
// them with mma.sync. x may be codes: then a stage is a block of int8's scales, which its sums are multiplied by, and
// factors divide A. Ceiling: the bandwidth of memory, x being read once (A comes from the L2). Up to eight tokens have
// a kernel of their own, with a block for each value of u; its ceiling is the time of a launch.
#include <type_traits>

#include "kernels/code_pairs.cuh"
#include "kernels/lora_gemm.cuh"
#include "kernels/lora_gemm.h"
#include "unsloth/core/check.h"

namespace unsloth::kernels {
namespace lora {
namespace {

struct ProjectParams {
    const void* x;
    const void* a;
    void* out;
    void* copy;  ///< or nullptr
    int64_t x_stride, a_stride, out_stride, copy_stride;
    int tokens, k, r, cluster;
    const float* scales;  ///< of codes, as are the next two: block b's of token t at b * scale_stride + t
    int64_t scale_stride;
    const void* factors;
    const int32_t *token_owner, *column_owner;  ///< or nullptr

    __device__ __forceinline__ bool owns(int token, int column) const {
        return token_owner == nullptr || token_owner[token] == column_owner[column];
    }
};

/// kTiles m16 tiles of tokens; warps along the reduction, kDepth elements of it a stage.
template <int kTiles_, int kDepth_, int kBlocks_ = 1>
struct ProjectTile {
    static constexpr int kTiles = kTiles_, kDepth = kDepth_, kWarps = 8, kStages = 4;
    static constexpr int kBlocks = kBlocks_;  ///< that shall fit a multiprocessor
    static constexpr int kRows = kTiles * 16, kThreads = kWarps * 32;
    static_assert(kDepth / 16 % kWarps == 0, "warps take whole k16 steps");
};
/// Of many tokens' codes. More columns leave a second block no registers.
template <int kColumns>
using TallTile = std::conditional_t<kColumns <= 16, ProjectTile<4, 256, 2>, ProjectTile<4, 256>>;

/// X: x's elements, T or codes.
template <class X, class Tile, int kColumns>
struct ProjectShared {
    static constexpr bool kCodes = is_codes<X>;
    static_assert(!kCodes || (sizeof(X) == 1 && Tile::kDepth == int8_block), "a stage's sums have one scale a row");
    // Rows of bytes. Their pitch is an odd number of 16-byte units, so that the eight rows of a tile are in different
    // banks; or of 32-byte units, where half a warp reads 8 bytes of four.
    static constexpr int kXPitch = kCodes ? Tile::kDepth + 16 : 2 * Tile::kDepth + 16;
    static constexpr int kAPitch = 2 * Tile::kDepth + (kCodes ? 32 : 16);
    static constexpr int kAAt = Tile::kRows * kXPitch, kFactorsAt = kAAt + kColumns * kAPitch,
                         kScalesAt = kFactorsAt + (kCodes ? 2 * Tile::kDepth : 0),
                         kStageBytes = kScalesAt + (kCodes ? 4 * Tile::kRows : 0);
    static constexpr int kSumPitch = kColumns + 8;
    static constexpr std::size_t kStagesBytes = std::size_t{Tile::kStages} * kStageBytes;
    static constexpr std::size_t kSumBytes = std::size_t{4} * Tile::kWarps * Tile::kRows * kSumPitch;
    static constexpr std::size_t kBytes = kStagesBytes > kSumBytes ? kStagesBytes : kSumBytes;
};

/// A thread's view of its block's share: kRows tokens from row_begin on, steps [first, last) of the reduction.
template <class T, class X, class Tile, int kColumns>
struct ProjectBlock {
    using Shared = ProjectShared<X, Tile, kColumns>;
    static constexpr int kRows = Tile::kRows, kDepth = Tile::kDepth, kThreads = Tile::kThreads;
    static constexpr int kPairs = kColumns / 16, kChunks = kDepth / 8;  // of 16 bytes in a stage's row
    using Sums = float[Tile::kTiles][kPairs * 2][4];

    const ProjectParams& p;
    unsigned char* const memory;
    const uint32_t base = shared_address(memory);
    const int rank = static_cast<int>(blockIdx.x) % p.cluster;
    const int row_begin = static_cast<int>(blockIdx.x) / p.cluster * kRows;
    const int first_column = static_cast<int>(blockIdx.y) * kColumns, columns = min(kColumns, p.r - first_column);
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;

    __device__ __forceinline__ void load(int step, int slot) const {
        const X* x = static_cast<const X*>(p.x);
        const T* a = static_cast<const T*>(p.a);
        const uint32_t stage = base + slot * Shared::kStageBytes, a_stage = stage + Shared::kAAt;
        const int k0 = step * kDepth;
        constexpr int kElements = 16 / sizeof(X), kXChunks = kDepth / kElements;
#pragma unroll
        for (int i = 0; i < kRows * kXChunks / kThreads; ++i) {
            const int index = i * kThreads + thread, row = index / kXChunks, column = index % kXChunks * kElements;
            const bool valid = row_begin + row < p.tokens && k0 + column < p.k;
            const X* from = x + (valid ? (row_begin + row) * p.x_stride + k0 + column : 0);
            cp_async_16_zfill(stage + row * Shared::kXPitch + index % kXChunks * 16, from, valid);
        }
        static_assert(kColumns * kChunks % kThreads == 0, "every thread copies as many pieces of A");
#pragma unroll
        for (int i = 0; i < kColumns * kChunks / kThreads; ++i) {
            const int index = i * kThreads + thread, row = index / kChunks, column = index % kChunks * 8;
            const bool valid = row < columns && k0 + column < p.k;
            cp_async_16_zfill(a_stage + row * Shared::kAPitch + column * 2,
                              a + (valid ? (first_column + row) * p.a_stride + k0 + column : 0), valid);
        }
        if constexpr (Shared::kCodes) {
            if (thread < kRows && row_begin + thread < p.tokens)
                cp_async_4(stage + Shared::kScalesAt + 4 * thread,
                           p.scales + step * p.scale_stride + row_begin + thread);
            const int column = (kThreads - 1 - thread) * 8;  // by other warps
            if (p.factors != nullptr && column < kDepth) {
                const bool valid = k0 + column < p.k;
                cp_async_16_zfill(stage + Shared::kFactorsAt + column * 2,
                                  static_cast<const T*>(p.factors) + (valid ? k0 + column : 0), valid);
            }
        }
    }

    /// The block's share of A into the L2: what fills A may be the kernel ahead of the one ahead, so no nearer.
    __device__ __forceinline__ void prefetch_a() const {
        const int steps = (p.k + kDepth - 1) / kDepth, share = (steps + p.cluster - 1) / p.cluster;
        const int first = rank * share * kDepth, width = min(share * kDepth, p.k - first) / 64;  // 128 bytes each
        for (int i = thread; i < columns * width; i += kThreads)
            prefetch_l2(static_cast<const T*>(p.a) + (first_column + i / width) * p.a_stride + first + i % width * 64);
    }

    __device__ __forceinline__ void multiply(int slot, Sums& sum) const {
        const uint32_t stage = base + slot * Shared::kStageBytes, a_stage = stage + Shared::kAAt;
#pragma unroll
        for (int i = 0; i < kDepth / 16 / Tile::kWarps; ++i) {
            const int k = (i * Tile::kWarps + warp) * 16;
            uint32_t b[kPairs][4];
#pragma unroll
            for (int n = 0; n < kPairs; ++n) {
                const int row = n * 16 + lane % 8 + lane / 16 * 8, column = k + lane / 8 % 2 * 8;
                ldmatrix_x4(b[n], a_stage + row * Shared::kAPitch + column * 2);
            }
#pragma unroll
            for (int m = 0; m < Tile::kTiles; ++m) {
                uint32_t tile[4];
                const int row = m * 16 + lane % 16;
                ldmatrix_x4(tile, stage + row * Shared::kXPitch + (k + lane / 16 * 8) * 2);
#pragma unroll
                for (int n = 0; n < kPairs; ++n) {
                    mma_m16n8k16<T>(sum[m][2 * n], tile, b[n][0], b[n][1]);
                    mma_m16n8k16<T>(sum[m][2 * n + 1], tile, b[n][2], b[n][3]);
                }
            }
        }
    }

    /// Of codes: 32 columns a warp. A thread gets four codes side by side of a row, so it takes as many of A's.
    __device__ __forceinline__ void multiply_codes(int slot, Sums& sum) const {
        static_assert(kDepth == 32 * Tile::kWarps, "two k16 steps a warp");
        const unsigned char* const stage = memory + slot * Shared::kStageBytes;
        const float* const scales = reinterpret_cast<const float*>(stage + Shared::kScalesAt);
        uint2 b[2][kPairs * 2];
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            const int column = warp * 32 + step * 16 + lane % 4 * 4;
            const uint2 factors = *reinterpret_cast<const uint2*>(stage + Shared::kFactorsAt + column * 2);
#pragma unroll
            for (int n = 0; n < kPairs * 2; ++n) {
                uint2& pairs = b[step][n];
                pairs = *reinterpret_cast<const uint2*>(stage + Shared::kAAt + (n * 8 + lane / 4) * Shared::kAPitch +
                                                        column * 2);
                if (p.factors == nullptr) continue;
                pairs.x = multiply_pairs(pairs.x, inverse_powers(factors.x));
                pairs.y = multiply_pairs(pairs.y, inverse_powers(factors.y));
            }
        }
#pragma unroll
        for (int m = 0; m < Tile::kTiles; ++m) {
            uint32_t codes[4];  // rows, eight further down, and both 16 columns on
            ldmatrix_x4(codes, base + slot * Shared::kStageBytes + (m * 16 + lane % 16) * Shared::kXPitch + warp * 32 +
                                   lane / 16 * 16);
            float part[kPairs * 2][4] = {};
#pragma unroll
            for (int step = 0; step < 2; ++step) {
                const uint32_t a[4] = {low_pair<X>(codes[2 * step]), low_pair<X>(codes[2 * step + 1]),
                                       high_pair<X>(codes[2 * step]), high_pair<X>(codes[2 * step + 1])};
#pragma unroll
                for (int n = 0; n < kPairs * 2; ++n) mma_m16n8k16<T>(part[n], a, b[step][n].x, b[step][n].y);
            }
            const float scale = scales[m * 16 + lane / 4], below = scales[m * 16 + lane / 4 + 8];
#pragma unroll
            for (int n = 0; n < kPairs * 2; ++n) {
                sum[m][n][0] += part[n][0] * scale, sum[m][n][1] += part[n][1] * scale;
                sum[m][n][2] += part[n][2] * below, sum[m][n][3] += part[n][3] * below;
            }
        }
    }

    __device__ __forceinline__ void mainloop(Sums& sum) const {
        constexpr int kStages = Tile::kStages;
        const int steps = (p.k + kDepth - 1) / kDepth, share = (steps + p.cluster - 1) / p.cluster;
        const int first = min(rank * share, steps), last = min(first + share, steps);
#pragma unroll
        for (int s = 0; s < kStages - 1; ++s) {
            if (first + s < last) load(first + s, s);
            cp_async_commit_group();
        }
        int slot = 0, next = kStages - 1;
        for (int step = first; step < last; ++step) {
            cp_async_wait_group<kStages - 2>();
            __syncthreads();
            if (step + kStages - 1 < last) load(step + kStages - 1, next);
            cp_async_commit_group();
            if constexpr (Shared::kCodes)
                multiply_codes(slot, sum);
            else
                multiply(slot, sum);
            slot = slot + 1 == kStages ? 0 : slot + 1;
            next = next + 1 == kStages ? 0 : next + 1;
        }
        cp_async_wait_group<0>();
        __syncthreads();  // the stages' memory now holds the sums
    }

    /// Adds the sums of the warps along the reduction: [row][column] in shared memory.
    __device__ __forceinline__ void add_warps(const Sums& sum) const {
        float* sums = reinterpret_cast<float*>(memory);
        constexpr int kPitch = Shared::kSumPitch;
#pragma unroll
        for (int m = 0; m < Tile::kTiles; ++m) {
            const int row = m * 16 + lane / 4;
#pragma unroll
            for (int n = 0; n < kPairs * 2; ++n) {
                float* to = sums + (warp * kRows + row) * kPitch + n * 8 + lane % 4 * 2;
                *reinterpret_cast<float2*>(to) = make_float2(sum[m][n][0], sum[m][n][1]);
                *reinterpret_cast<float2*>(to + 8 * kPitch) = make_float2(sum[m][n][2], sum[m][n][3]);
            }
        }
        __syncthreads();
        for (int i = thread; i < kRows * kColumns / 4; i += kThreads) {
            float* at = sums + i / (kColumns / 4) * kPitch + i % (kColumns / 4) * 4;
            float4 total = *reinterpret_cast<float4*>(at);
#pragma unroll
            for (int w = 1; w < Tile::kWarps; ++w) add(total, *reinterpret_cast<float4*>(at + w * kRows * kPitch));
            *reinterpret_cast<float4*>(at) = total;
        }
    }

    /// Every block adds a part of the tile over the cluster, and rounds and stores it.
    __device__ __forceinline__ void epilogue() const {
        cluster_sync();
        const int groups = columns / 8;
        for (int i = rank * kThreads + thread; i < kRows * groups; i += p.cluster * kThreads) {
            const int row = i / groups, of_block = i % groups * 8, column = first_column + of_block,
                      token = row_begin + row;
            if (token >= p.tokens) continue;
            const uint32_t at = base + (row * Shared::kSumPitch + of_block) * 4;
            const float4 low = cluster_sum(at, p.cluster), high = cluster_sum(at + 16, p.cluster);
            const float sums[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            Pack<T, 8> result;
#pragma unroll
            for (int c = 0; c < 8; ++c) result.v[c] = from_float<T>(p.owns(token, column + c) ? sums[c] : 0.0F);
            store_pack(static_cast<T*>(p.out) + token * p.out_stride + column, result);
            if (p.copy != nullptr) store_pack(static_cast<T*>(p.copy) + token * p.copy_stride + column, result);
        }
        cluster_sync();  // no block ends while others read its sums
    }
};

template <class T, class X, class Tile, int kColumns>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    project_kernel(const __grid_constant__ ProjectParams p) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char memory[];
    const ProjectBlock<T, X, Tile, kColumns> block{p, memory};
    if (uses_programmatic_launch(p.tokens)) block.prefetch_a();
    begin_after_previous(static_cast<uint32_t>(p.tokens));
    typename ProjectBlock<T, X, Tile, kColumns>::Sums sum = {};
    block.mainloop(sum);
    block.add_warps(sum);
    block.epilogue();
#else
    __trap();  // lora_supports() denies cards without clusters
#endif
}

/// A column of u for one of the few tokens of a decoding pass, by one block. It may start before the kernel ahead has
/// ended: A's row is fetched into the L2 meanwhile.
template <class T, int kThreads>
__global__ void __launch_bounds__(kThreads) column_kernel(const __grid_constant__ ProjectParams p) {
#if __CUDA_ARCH__ >= 900
    __shared__ float sums[kThreads / 32];
    const int column = static_cast<int>(blockIdx.x), token = static_cast<int>(blockIdx.y),
              thread = static_cast<int>(threadIdx.x);
    const T* a = static_cast<const T*>(p.a) + column * p.a_stride;
    for (int k = thread * 64; k < p.k; k += kThreads * 64) prefetch_l2(a + k);
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    const T* x = static_cast<const T*>(p.x) + token * p.x_stride;
    float sum = 0.0F;
#pragma unroll 4
    for (int k = p.owns(token, column) ? thread * 8 : p.k; k < p.k; k += kThreads * 8) {
        const Pack<T, 8> factor = load_pack<8>(a + k), value = load_pack<8>(x + k);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += to_float(value.v[i]) * to_float(factor.v[i]);
    }
    sum = group_sum(sum);
    if (thread % 32 == 0) sums[thread / 32] = sum;
    __syncthreads();
    if (thread != 0) return;
    float total = 0.0F;
#pragma unroll
    for (int warp = 0; warp < kThreads / 32; ++warp) total += sums[warp];
    static_cast<T*>(p.out)[token * p.out_stride + column] = from_float<T>(total);
    if (p.copy != nullptr) static_cast<T*>(p.copy)[token * p.copy_stride + column] = from_float<T>(total);
#else
    __trap();  // as project_kernel
#endif
}

template <class T, int kThreads>
void run_by_columns(const ProjectParams& p, cudaStream_t stream) {
    launch_kernel(&column_kernel<T, kThreads>,
                  {.grid = dim3(static_cast<unsigned>(p.r), static_cast<unsigned>(p.tokens)),
                   .threads = kThreads,
                   .stream = stream,
                   .after_previous = true},
                  p);
}

template <class T, class X, class Tile, int kColumns>
void run_tile(const ProjectParams& p, cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(ceil_div(p.tokens, Tile::kRows) * p.cluster),
                    static_cast<unsigned>(ceil_div(p.r, kColumns)));
    launch_kernel(&project_kernel<T, X, Tile, kColumns>,
                  {.grid = grid,
                   .threads = Tile::kThreads,
                   .shared_bytes = ProjectShared<X, Tile, kColumns>::kBytes,
                   .stream = stream,
                   .cluster = p.cluster,
                   .after_previous = uses_programmatic_launch(p.tokens)},
                  p);
}

template <class T, class X, int kColumns>
void run_columns(const ProjectParams& p, int tile, cudaStream_t stream) {
    switch (tile) {
        case 0:
            return run_tile<T, X, ProjectTile<1, is_codes<X> ? 256 : 128>, kColumns>(p, stream);
        case 1:
            return run_tile<T, X, ProjectTile<2, 256>, kColumns>(p, stream);
        default:
            if constexpr (is_codes<X> && kColumns < 64) {
                if (tile == 2) return run_tile<T, X, TallTile<kColumns>, kColumns>(p, stream);
            }
            UNSLOTH_CHECK(false, "lora_u: no tile ", tile);
    }
}

template <class T, class X = T>
void run(const ProjectParams& p, int tile, cudaStream_t stream) {
    if (!is_codes<X> && tile == 2)
        return p.k <= 8192 ? run_by_columns<T, 256>(p, stream) : run_by_columns<T, 512>(p, stream);
    if (p.r <= 16) return run_columns<T, X, 16>(p, tile, stream);
    if (p.r <= 32) return run_columns<T, X, 32>(p, tile, stream);
    if (p.r <= 48 || (p.r > 64 && p.r <= 96)) return run_columns<T, X, 48>(p, tile, stream);
    run_columns<T, X, 64>(p, tile, stream);
}

}  // namespace
}  // namespace lora

void lora_u(const LoraProjection& g, const LoraPlan& plan, cudaStream_t stream) {
    UNSLOTH_CHECK(lora_supports(g, 9), "lora_u: unsupported operands");
    if (g.tokens == 0) return;
    lora::ProjectParams p = {};
    p.x = g.x.data, p.x_stride = g.x.stride;
    p.a = g.a.data, p.a_stride = g.a.stride;
    p.out = g.u.data, p.out_stride = g.u.stride;
    p.copy = g.copy.data, p.copy_stride = g.copy.stride;
    p.tokens = static_cast<int>(g.tokens), p.k = static_cast<int>(g.k), p.r = static_cast<int>(g.r);
    p.cluster = plan.cluster;
    p.token_owner = g.token_owner, p.column_owner = g.column_owner;
    if (g.codes.codes != nullptr) {
        p.x = g.codes.codes, p.x_stride = g.k;
        p.scales = g.codes.scales, p.scale_stride = g.codes.scale_stride, p.factors = g.codes.factors;
        return g.codes.format == CodeFormat::int8 ? lora::run<__nv_bfloat16, Int8Codes>(p, plan.tile, stream)
                                                  : lora::run<__nv_bfloat16, E4m3Codes>(p, plan.tile, stream);
    }
    if (g.type == spec::DType::bf16) {
        lora::run<__nv_bfloat16>(p, plan.tile, stream);
    } else {
        lora::run<__half>(p, plan.tile, stream);
    }
}

}  // namespace unsloth::kernels
