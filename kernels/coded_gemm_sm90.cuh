// The warps' roles in the 8-bit product with a bf16 tail (coded_gemm_sm90.cu says how it is cut, and includes this):
// one producer thread, two warpgroups of consumers, and a thread for each that moves its epilogue's tiles.
#pragma once

#include "kernels/coded_gemm.h"
#include "kernels/common/device.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/pipeline.cuh"
#include "kernels/common/ptx.cuh"

namespace unsloth::kernels::coded_sm90 {

constexpr int tile_rows = 128;
constexpr int group_rows = 64;   // of a tile that one warpgroup multiplies
constexpr int stage_k = 128;     // bytes along K
constexpr int box_columns = 64;  // of results: rows of 128 bytes
constexpr int threads = 384;
constexpr int shared_limit = 232448;

constexpr int block_stages = int8_block / stage_k;  // of int8 codes that share a scale for each row of x

template <CodeFormat Format, int Columns_, int Cluster_>
struct Shape {
    static constexpr bool int8 = Format == CodeFormat::int8;
    static constexpr int Columns = Columns_, Cluster = Cluster_;
    static constexpr int x_bytes = tile_rows * stage_k;
    static constexpr int stage_bytes = x_bytes + Columns * stage_k;
    static constexpr int scale_bytes = Columns * 4;
    static constexpr int row_scale_bytes = int8 ? tile_rows * 4 : 0;  // of a stage
    static constexpr int out_bytes = group_rows * Columns * 2;        // results of one warpgroup
    static constexpr int rest = 2 * out_bytes + 2 * scale_bytes + 4 * 8;
    static constexpr int stages = (shared_limit - rest) / (stage_bytes + row_scale_bytes + 2 * 8);
    static constexpr int shared_bytes = stages * (stage_bytes + row_scale_bytes + 2 * 8) + rest;
    static constexpr int accumulators = Columns / 2;
    static constexpr int least_stages =
        stages / 2 + 1;  // of codes in a tile: the ring never reaches a third tile's scales
    static_assert(Columns % box_columns == 0);
};

struct Params {
    CUtensorMap x, w, u, b, scale, residual, y;
    CUtensorMap row_scale;  // of int8 codes, where block b of row i is at b * row_scale_stride + i
    int row_scale_stride;
    const float* sx;  // of e4m3 codes
    const __nv_bfloat16* bias;
    int rows, columns;
    int has_residual;
    int stages_k;      // stages of codes in a tile
    int tail_stages;   // stages of u and b, each
    int tail_columns;  // wide: 16, 32 or 64
    int row_groups;    // clusters needed to cover the rows
    int column_tiles;
    int band;  // row groups that neighbour each other in time, so that w's tiles stay in L2
};

/// The layout of shared memory: stages, results, column scales of this tile and the next, barriers.
template <class S>
struct Shared {
    uint32_t base;
    __device__ __forceinline__ uint32_t x(int slot) const { return base + slot * S::stage_bytes; }
    __device__ __forceinline__ uint32_t w(int slot) const { return x(slot) + S::x_bytes; }
    __device__ __forceinline__ uint32_t out(int group) const { return x(S::stages) + group * S::out_bytes; }
    __device__ __forceinline__ uint32_t scales(uint32_t odd) const { return out(2) + odd * S::scale_bytes; }
    /// x's of the block of codes that ends with this stage.
    __device__ __forceinline__ uint32_t row_scales(int slot) const { return scales(2) + slot * S::row_scale_bytes; }
    /// A stage's bytes have arrived; its readers are done.
    __device__ __forceinline__ uint32_t full(int slot) const { return row_scales(S::stages) + slot * 8; }
    __device__ __forceinline__ uint32_t empty(int slot) const { return full(S::stages) + slot * 8; }
    /// A warpgroup's results may be written (and the residual is where they go); they are written.
    __device__ __forceinline__ uint32_t ready(int group) const { return empty(S::stages) + group * 8; }
    __device__ __forceinline__ uint32_t written(int group) const { return ready(2) + group * 8; }
};

/// This block's tiles, one after another: bands of row groups, column by column inside a band.
template <class S>
struct TileScheduler {
    int index = blockIdx.x / S::Cluster;
    uint32_t odd = 0;  // the tile's number, modulo 2
    __device__ __forceinline__ bool more(const Params& p) const { return index < p.row_groups * p.column_tiles; }
    __device__ __forceinline__ void advance() {
        index += gridDim.x / S::Cluster;
        odd ^= 1;
    }
    /// Its first row (of this block of the cluster) and column.
    __device__ __forceinline__ int2 origin(const Params& p, uint32_t rank) const {
        const int in_band = p.band * p.column_tiles;
        const int first = index / in_band * p.band;
        const int height = min(p.row_groups - first, p.band);
        const int rest = index % in_band;
        const int row_group = first + rest % height;
        return {(row_group * S::Cluster + static_cast<int>(rank)) * tile_rows, rest / height * S::Columns};
    }
};

/// One thread: fills the ring of stages by TMA, tile after tile.
template <class S>
__device__ __forceinline__ void produce(const Params& p, const Shared<S>& shared, uint32_t rank) {
    constexpr int part = S::Columns / S::Cluster;  // rows of w that this block fetches
    PipelineState state;
    for (TileScheduler<S> tiles; tiles.more(p); tiles.advance()) {
        const int2 origin = tiles.origin(p, rank);
        const int own = origin.y + static_cast<int>(rank) * part;
        const auto load = [&](const CUtensorMap& left, const CUtensorMap& right, int k, int row_bytes,
                              bool column_scales, int block) {
            mbarrier_wait(shared.empty(state.stage), state.phase ^ 1);
            const uint32_t full = shared.full(state.stage);
            mbarrier_arrive_expect_tx(full, (tile_rows + S::Columns) * row_bytes +
                                                (column_scales ? S::scale_bytes : 0) +
                                                (block >= 0 ? S::row_scale_bytes : 0));
            tma_load_2d(shared.x(state.stage), left, k, origin.x, full);
            const uint32_t to = shared.w(state.stage) + rank * part * row_bytes;
            if (S::Cluster == 1)
                tma_load_2d(to, right, k, own, full);
            else
                tma_load_2d_multicast(to, right, k, own, full, (1 << S::Cluster) - 1);
            if (column_scales) tma_load_1d(shared.scales(tiles.odd), p.scale, origin.y, full);
            if (S::int8 && block >= 0)
                tma_load_1d(shared.row_scales(state.stage), p.row_scale, block * p.row_scale_stride + origin.x, full);
            state.advance(S::stages);
        };
        for (int step = 0; step < p.stages_k; ++step) {
            const bool last = step == p.stages_k - 1, ends = last || step % block_stages == block_stages - 1;
            load(p.x, p.w, step * stage_k, stage_k, last, ends ? step / block_stages : -1);
        }
        for (int step = 0; step < p.tail_stages; ++step)
            load(p.u, p.b, step * p.tail_columns, p.tail_columns * 2, false, -1);
    }
}

/// One thread for each consumer warpgroup: loads the residual to where the results will go, and stores these.
template <class S>
__device__ __forceinline__ void move_epilogue(const Params& p, const Shared<S>& shared, uint32_t rank, int group) {
    constexpr int boxes = S::Columns / box_columns, box_bytes = S::out_bytes / boxes;
    const uint32_t ready = shared.ready(group), out = shared.out(group);
    for (TileScheduler<S> tiles; tiles.more(p); tiles.advance()) {
        const int2 origin = tiles.origin(p, rank);
        const int row = origin.x + group * group_rows;
        if (p.has_residual) {
            mbarrier_arrive_expect_tx(ready, S::out_bytes);
            for (int i = 0; i < boxes; ++i)
                tma_load_2d(out + i * box_bytes, p.residual, origin.y + i * box_columns, row, ready);
        } else {
            mbarrier_arrive(ready);
        }
        mbarrier_wait(shared.written(group), tiles.odd);
        for (int i = 0; i < boxes; ++i) tma_store_2d(p.y, origin.y + i * box_columns, row, out + i * box_bytes);
        tma_store_wait_read();
    }
}

/// Rounds a warpgroup's results, with residual and bias when `Adds`, and leaves them where move_epilogue finds them:
/// boxes of 64 columns, rows of 128 bytes whose 16-byte pieces are swizzled as TMA has it.
template <class S, bool Adds>
__device__ __forceinline__ void write_results(const Params& p, const float (&d)[S::accumulators], uint32_t out,
                                              int column) {
    const int lane = threadIdx.x % 32;
    const int row = threadIdx.x % 128 / 32 * 16 + lane % 16;
    const uint32_t at = out + row * 128, piece = lane / 16 ^ lane % 8;
#pragma unroll
    for (int pair = 0; pair < S::Columns / 16; ++pair) {  // of 8 columns each
        const uint32_t address = at + pair / 4 * (group_rows * 128) + (piece ^ pair % 4 * 2) * 16;
        uint32_t words[4] = {};
        if (Adds && p.has_residual) ldmatrix_x4(words, address);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int eight = 2 * pair + i / 2;
            float2 sum{d[4 * eight + i % 2 * 2], d[4 * eight + i % 2 * 2 + 1]};
            if (Adds) {
                const float2 residual = unpack_bf16x2(words[i]);
                sum.x += residual.x, sum.y += residual.y;
                const int c = column + 8 * eight + lane % 4 * 2;
                if (p.bias && c < p.columns) {
                    const float2 bias = unpack_bf16x2(__ldg(reinterpret_cast<const uint32_t*>(p.bias + c)));
                    sum.x += bias.x, sum.y += bias.y;
                }
            }
            words[i] = pack_bf16x2(sum.x, sum.y);
        }
        stmatrix_x4(address, words);
    }
}

/// A consumer warpgroup: 64 rows of each tile.
template <class S>
struct Consumer {
    static constexpr int count = S::accumulators;
    const Params& p;
    const Shared<S>& shared;
    const uint32_t rank;
    const int group = threadIdx.x / 128 - 1;
    const int lane = threadIdx.x % 32;
    PipelineState state = {};
    int2 origin = {};
    float row_scale[2] = {};
    int last = 0;  // stage of a tile's codes, whose column scales came with it

    /// The barrier that lets a warpgroup issue its next block.
    static __device__ __forceinline__ int turn(int of_group) { return 1 + of_group; }

    __device__ __forceinline__ void release(int slot) const {
        if (lane < S::Cluster) mbarrier_arrive_cluster(shared.empty(slot), lane);
    }

    /// Issues the wgmmas of the next stage, once it is there. Returns the stage.
    template <class Sum>
    __device__ __forceinline__ int multiply(Sum (&d)[count], bool fresh) {
        const int slot = state.stage;
        mbarrier_wait(shared.full(slot), state.phase);
        const uint64_t a = wgmma_descriptor(shared.x(slot) + group * group_rows * stage_k, stage_k);
        const uint64_t b = wgmma_descriptor(shared.w(slot), stage_k);
        fence_accumulators(d);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < stage_k / 32; ++i) {
            if constexpr (S::int8)
                WgmmaInt8<S::Columns>::ss(d, a + 2 * i, b + 2 * i, i > 0 || !fresh);
            else
                Wgmma<S::Columns>::e4m3_ss(d, a + 2 * i, b + 2 * i, i > 0 || !fresh);
        }
        wgmma_commit_group();
        fence_accumulators(d);
        state.advance(S::stages);
        return slot;
    }

    /// The first of the two rows of the tile that this thread has sums of; the other is 8 below.
    __device__ __forceinline__ int own_row() const {
        return group * group_rows + threadIdx.x % 128 / 32 * 16 + lane / 4;
    }

    /// While the tensor cores are at work: the row scales of e4m3 codes.
    __device__ __forceinline__ void load_row_scales() {
        const int row = origin.x + own_row();
        row_scale[0] = row < p.rows ? __ldg(p.sx + row) : 0.f;
        row_scale[1] = row + 8 < p.rows ? __ldg(p.sx + row + 8) : 0.f;
    }

    /// One of int8 codes, which came with the last stage of their block.
    __device__ __forceinline__ float row_scale_at(int slot, int row) const {
        float scale;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(scale) : "r"(shared.row_scales(slot) + row * 4) : "memory");
        return scale;
    }

    /// The column scales, which came with the last stage of codes.
    __device__ __forceinline__ void load_column_scales(float2 (&w)[count / 4], uint32_t odd) const {
#pragma unroll
        for (int j = 0; j < count / 4; ++j)
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                         : "=f"(w[j].x), "=f"(w[j].y)
                         : "r"(shared.scales(odd) + (8 * j + 2 * (lane % 4)) * 4));
    }

    template <int Steps>
    __device__ __forceinline__ void multiply_tail(float (&d)[count]) {
        for (int stage = 0; stage < p.tail_stages; ++stage, state.advance(S::stages)) {
            mbarrier_wait(shared.full(state.stage), state.phase);
            const uint64_t a = wgmma_descriptor(shared.x(state.stage) + group * group_rows * Steps * 32, Steps * 32);
            const uint64_t b = wgmma_descriptor(shared.w(state.stage), Steps * 32);
            fence_accumulators(d);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < Steps; ++i) Wgmma<S::Columns>::bf16_ss(d, a + 2 * i, b + 2 * i);
            wgmma_commit_group();
            fence_accumulators(d);
            wgmma_wait_group<0>();
            fence_accumulators(d);
            release(state.stage);
        }
    }

    /// From sums of codes to results: scales, tail, residual and bias.
    __device__ __forceinline__ void epilogue(float (&d)[count], const float2 (&w)[count / 4], uint32_t odd) {
#pragma unroll
        for (int j = 0; j < count / 4; ++j) {
            d[4 * j] *= row_scale[0] * w[j].x;
            d[4 * j + 1] *= row_scale[0] * w[j].y;
            d[4 * j + 2] *= row_scale[1] * w[j].x;
            d[4 * j + 3] *= row_scale[1] * w[j].y;
        }
        if (p.tail_columns == 16)
            multiply_tail<1>(d);
        else if (p.tail_columns == 32)
            multiply_tail<2>(d);
        else
            multiply_tail<4>(d);
        mbarrier_wait(shared.ready(group), odd);
        if (p.has_residual || p.bias)
            write_results<S, true>(p, d, shared.out(group), origin.y);
        else
            write_results<S, false>(p, d, shared.out(group), origin.y);
        fence_proxy_async();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared.written(group));
    }

    /// Sums of e4m3 codes, one stage later than the tensor cores.
    __device__ __forceinline__ void sum_codes(float (&d)[count]) {
        int slot = multiply(d, true);
        load_row_scales();
        for (int step = 1; step < p.stages_k; ++step) {
            const int next = multiply(d, false);
            wgmma_wait_group<1>();
            release(slot);
            slot = next;
        }
        last = slot;
    }

    /// Sums of int8 codes with their row scales. The two warpgroups take turns: while one's block is on the tensor
    /// cores, the other converts its own.
    __device__ __forceinline__ void sum_blocks(float (&d)[count]) {
#pragma unroll
        for (int i = 0; i < count; ++i) d[i] = 0.f;
        row_scale[0] = row_scale[1] = 1.f;
        for (int step = 0; step < p.stages_k; step += block_stages) {
            int sums[count];
            named_barrier_sync(turn(group), 256);
            int slot = multiply(sums, true);
            if (step + 1 < p.stages_k) {
                const int next = multiply(sums, false);
                named_barrier_arrive(turn(1 - group), 256);
                wgmma_wait_group<1>();
                release(slot);
                slot = next;
            } else {
                named_barrier_arrive(turn(1 - group), 256);
            }
            const float upper = row_scale_at(slot, own_row()), lower = row_scale_at(slot, own_row() + 8);
            wgmma_wait_group<0>();
            fence_accumulators(sums);
            if (step + block_stages < p.stages_k) release(slot);
#pragma unroll
            for (int i = 0; i < count; ++i) d[i] = fmaf(static_cast<float>(sums[i]), i % 4 < 2 ? upper : lower, d[i]);
            last = slot;
        }
    }

    __device__ __forceinline__ void consume() {
        if (S::int8 && group == 1) named_barrier_arrive(turn(0), 256);
        float d[count];
        for (TileScheduler<S> tiles; tiles.more(p); tiles.advance()) {
            origin = tiles.origin(p, rank);
            if constexpr (S::int8)
                sum_blocks(d);
            else
                sum_codes(d);
            float2 w[count / 4];
            load_column_scales(w, tiles.odd);
            wgmma_wait_group<0>();
            fence_accumulators(d);
            release(last);
            epilogue(d, w, tiles.odd);
        }
        if (S::int8 && group == 0) named_barrier_sync(turn(0), 256);  // the other's last
    }
};

}  // namespace unsloth::kernels::coded_sm90
