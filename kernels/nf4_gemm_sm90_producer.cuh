// What fills the stages of the Hopper kernel of nf4_gemm_sm90.cu: one producer thread, and two warps that decode
// scales; and the order of a block's tiles. sm_90a only.
#pragma once

#include "kernels/common/pipeline.cuh"
#include "kernels/nf4_gemm.cuh"

namespace unsloth::kernels::nf4 {

constexpr int groups = 2;  // consumer warpgroups
constexpr int group_threads = 128;
constexpr int threads = (groups + 1) * group_threads;
constexpr int chunk_tokens = 64;           // that the epilogue stages at once
constexpr int pitch = spec::nf4_tile + 4;  // floats between staged tokens: four lanes' rows hit different banks
constexpr int most_split = 8;

template <int Tokens, int Stages>
struct alignas(1024) Shared {
    uint8_t x[Stages][Tokens * 128];
    uint8_t codes[Stages][groups][spec::nf4_tile_bytes];
    float staged[groups][Tokens < chunk_tokens ? Tokens : chunk_tokens][pitch];
    float scales[Stages][groups][spec::nf4_tile];  // of the tiles' rows, in the order of scale_place
    float map[nf4_gemm_most_weights][256];
    uint64_t full[Stages], empty[Stages];
    uint64_t decoded[Stages];  // the stage's scales are there
};

/// A tile of the result, and the part [begin, end) of the reduction.
struct WorkTile {
    int row_block, token_block;
    int begin, end;
};

/// A block's tiles one after another. The blocks of a cluster share a tile, each a part of the
/// reduction.
template <bool Clustered>
struct TileScheduler {
    int row_blocks, token_blocks;
    int size, rank;  ///< of the cluster
    int index, step;

    __device__ __forceinline__ TileScheduler(int rows, int tokens, int cluster_size)
        : row_blocks(rows),
          token_blocks(tokens),
          size(Clustered ? cluster_size : 1),
          rank(Clustered ? static_cast<int>(cluster_rank()) : 0),
          index(static_cast<int>(blockIdx.x) / size),
          step(static_cast<int>(gridDim.x) / size) {}

    /// In an order that keeps x and the weights of the blocks that run together in the L2: bands of `band`
    /// token blocks, within a band token blocks fastest.
    __device__ __forceinline__ bool next(const Problem& p, WorkTile& work) {
        constexpr int band = 4;
        if (index >= row_blocks * token_blocks) return false;
        const int per_band = band * row_blocks, first = index / per_band * band;
        const int height = min(band, token_blocks - first), inside = index % per_band;
        work = {inside / height, first + inside % height, p.blocks * rank / size, p.blocks * (rank + 1) / size};
        index += step;
        return true;
    }
};

/// What one thread keeps the ring of stages full with, by block of the reduction: first the weights ...
template <int Tokens, int Stages, bool Transposed>
__device__ __forceinline__ void produce_codes(const Problem& p, Shared<Tokens, Stages>& s, int stage,
                                              const WorkTile& work, int block) {
    const uint32_t full = shared_address(&s.full[stage]);
    const bool is_tail = block < p.tail_blocks;
    mbarrier_arrive_expect_tx(full, Tokens * 128 + (is_tail ? 0 : groups * spec::nf4_tile_bytes));
    if (is_tail) return;
#pragma unroll
    for (int g = 0; g < groups; ++g) {
        // a last odd tile is read twice, and stored once
        const int row_tile = min(work.row_block * groups + g, p.row_tiles - 1);
        bulk_load(shared_address(s.codes[stage][g]), tile_data(p, tile_at<Transposed>(p, row_tile, block)),
                  spec::nf4_tile_bytes, full);
    }
}
/// ... then x.
template <int Tokens, int Stages>
__device__ __forceinline__ void produce_x(const Problem& p, const CUtensorMap& x_map, Shared<Tokens, Stages>& s,
                                          int stage, const WorkTile& work, int block) {
    tma_load_2d(shared_address(s.x[stage]), x_map, x_column(p, work.row_block * groups, block),
                work.token_block * Tokens, shared_address(&s.full[stage]));
}

template <int Tokens, int Stages, bool Transposed>
__device__ __forceinline__ void produce(const Problem& p, const CUtensorMap& x_map, Shared<Tokens, Stages>& s,
                                        PipelineState& state, const WorkTile& work, int first_block) {
    for (int block = first_block; block < work.end; ++block) {
        mbarrier_wait(shared_address(&s.empty[state.stage]), state.phase ^ 1);
        produce_codes<Tokens, Stages, Transposed>(p, s, state.stage, work, block);
        produce_x(p, x_map, s, state.stage, work, block);
        state.advance(Stages);
    }
}
/// The first tile's: the ring is filled with weights before the kernel ahead has ended.
template <int Tokens, int Stages, bool Transposed>
__device__ __forceinline__ void produce_first(const Problem& p, const CUtensorMap& x_map, Shared<Tokens, Stages>& s,
                                              PipelineState& state, const WorkTile& work) {
    const int ahead = min(Stages, work.end - work.begin);
    for (int i = 0; i < ahead; ++i) produce_codes<Tokens, Stages, Transposed>(p, s, i, work, work.begin + i);
    wait_for_prerequisites();
    for (int i = 0; i < ahead; ++i) {
        produce_x(p, x_map, s, i, work, work.begin + i);
        state.advance(Stages);
    }
    produce<Tokens, Stages, Transposed>(p, x_map, s, state, work, work.begin + ahead);
}

/// The place of the scale of a tile's row. Transposed, a thread's four of 16 (rows 2 j, 2 j + 1, 2 j + 8, 2 j +
/// 9) are adjacent.
template <bool Transposed>
__device__ __forceinline__ int scale_place(int row) {
    return Transposed ? row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2 : row;
}

/// A warp decodes the scales of one consumer warpgroup's tiles, two rows a lane.
template <int Tokens, int Stages, bool Transposed>
__device__ __forceinline__ void decode_scales(const Problem& p, Shared<Tokens, Stages>& s, PipelineState& state,
                                              const WorkTile& work, int group, int lane) {
    const int row_tile = min(work.row_block * groups + group, p.row_tiles - 1);
    float nested[2];  // of the next block: the load takes longer than the decoding
    const auto load_nested = [&](int block) {
        if (block < p.tail_blocks || block >= work.end) return;
        const TileRef t = tile_at<Transposed>(p, row_tile, block);
#pragma unroll
        for (int i = 0; i < 2; ++i) nested[i] = __ldg(nested_absmax_of(p, t, lane + 32 * i));
    };
    load_nested(work.begin);
    for (int block = work.begin; block < work.end; ++block) {
        mbarrier_wait(shared_address(&s.full[state.stage]), state.phase);
        if (block >= p.tail_blocks) {
            const TileRef t = tile_at<Transposed>(p, row_tile, block);
            const uint8_t* codes = s.codes[state.stage][group] + spec::nf4_tile_code_bytes;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int row = lane + 32 * i;
                s.scales[state.stage][group][scale_place<Transposed>(row)] =
                    nf4_scale(s.map[t.segment][codes[row]], nested[i], p.segments[t.segment].nested_offset);
            }
        }
        load_nested(block + 1);
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared_address(&s.decoded[state.stage]));
        state.advance(Stages);
    }
}

}  // namespace unsloth::kernels::nf4
