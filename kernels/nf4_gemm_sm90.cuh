// The warps' roles in the Hopper kernel of nf4_gemm_sm90.cu, which includes this: one producer thread, two warps that
// decode scales, two warpgroups of consumers; and the order of a block's tiles. sm_90a only.
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

/// Where the scale of a tile's row lies. Transposed, a thread's four of 16 (rows 2 j, 2 j + 1, 2 j + 8, 2 j +
/// 9) lie together.
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

/// One consumer warpgroup's view of a tile of the result.
template <int Tokens, int Stages, bool Transposed, bool Pairs>
struct Consumer {
    const Problem& p;
    Shared<Tokens, Stages>& s;
    const uint8_t* table;   // of pairs; nullptr: weights of different codes, which are looked up one by one
    int group, warp, lane;  // warp of the group
    int row_tile;
    int segment;  // whose code the lane holds an entry of
    float code_value;

    /// With few tokens the tensor cores' part is short, and registers are better spent on a second block on
    /// the SM.
    static constexpr bool overlapped = Tokens >= 64;

    /// What a block's operands are made from.
    struct Codes {
        uint32_t words[4];
        float row_scale[2];   // forward
        const float* scales;  // transposed: the lane's four of the first 16 rows
    };

    __device__ __forceinline__ Codes load(int block, const PipelineState& state) {
        mbarrier_wait(shared_address(&s.full[state.stage]), state.phase);
        mbarrier_wait(shared_address(&s.decoded[state.stage]), state.phase);
        const int now = segment_of(p, Transposed ? block - p.tail_blocks : row_tile);
        if (now != segment) {
            segment = now;
            code_value = __ldg(p.segments[now].code + lane % 16);
        }
        Codes c;
        load_codes<Transposed>(c.words,
                               shared_address(s.codes[state.stage][group]) +
                                   (Transposed ? lane / 8 * 512 + warp * 128 + lane % 8 * 16 : warp * 512 + lane * 16));
        const float* scales = s.scales[state.stage][group];
        if constexpr (Transposed) {
            c.scales = scales + lane % 4 * 4;
        } else {
#pragma unroll
            for (int i = 0; i < 2; ++i) c.row_scale[i] = scales[warp * 16 + lane / 4 + 8 * i];
        }
        return c;
    }

    /// The warp's A operand of the block's columns 16 i .. 16 i + 15.
    __device__ __forceinline__ void dequantize(const Codes& c, int i, uint32_t* a) {
        if constexpr (Transposed) {
            const float4 scales = *reinterpret_cast<const float4*>(c.scales + 16 * i);
            nf4_operand_transposed(c.words[i], code_value, make_float2(scales.x, scales.y),
                                   make_float2(scales.z, scales.w), a);
        } else {
            nf4_operand(c.words[i], code_value, c.row_scale, a);
        }
    }

    /// The warp's A operands of a block, whose scales are yet to be applied.
    __device__ __forceinline__ void look_up(const Codes& c, uint32_t (&a)[16]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            uint32_t rows[4];
#pragma unroll
            for (int byte = 0; byte < 4; ++byte)
                rows[byte] = pair_of(table, static_cast<uint32_t>(lane) * 4, c.words[i], byte);
            a[4 * i] = __byte_perm(rows[0], rows[2], 0x5410);
            a[4 * i + 1] = __byte_perm(rows[0], rows[2], 0x7632);
            a[4 * i + 2] = __byte_perm(rows[1], rows[3], 0x5410);
            a[4 * i + 3] = __byte_perm(rows[1], rows[3], 0x7632);
        }
    }

    __device__ __forceinline__ void issue(float (&sums)[Tokens / 2], const uint32_t (&a)[16], int stage,
                                          int accumulate) {
        const uint64_t x = wgmma_descriptor(shared_address(s.x[stage]), 128);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            Wgmma<Tokens>::bf16_rs(sums, a + 4 * i, x + 2 * i, accumulate);
            accumulate = 1;
        }
        wgmma_commit_group();
    }

    __device__ __forceinline__ void release(int stage) {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared_address(&s.empty[stage]));
    }

    /// The tail's blocks, whose weights need no decoding. Returns the first block behind them.
    __device__ __forceinline__ int consume_tail(const WorkTile& work, PipelineState& state, float (&sums)[Tokens / 2],
                                                int& accumulate) {
        int block = work.begin;
        const int begin = tail_begin(p, row_tile);
        for (; block < min(work.end, p.tail_blocks); ++block) {
            uint32_t a[16];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                tail_operand<Transposed>(p, row_tile * spec::nf4_tile + warp * 16 + lane / 4,
                                         begin + block * spec::nf4_tile + i * 16, lane, a + 4 * i);
            mbarrier_wait(shared_address(&s.full[state.stage]), state.phase);
            issue(sums, a, state.stage, accumulate);
            accumulate = 1;
            wgmma_wait_group<0>();
            // A tail needs no scales, but its stage is not free before the decoding warps have seen it: filled once
            // more, `full` would have the parity again that they wait to see end, and they would wait for ever.
            mbarrier_wait(shared_address(&s.decoded[state.stage]), state.phase);
            release(state.stage);
            state.advance(Stages);
        }
        return block;
    }

    /// Blocks [block, last]: dequantise, multiply, wait.
    __device__ __forceinline__ void consume_in_turn(int block, int last, PipelineState& state,
                                                    float (&sums)[Tokens / 2], int accumulate) {
        uint32_t a[16];
        for (; block <= last; ++block) {
            const Codes codes = load(block, state);
#pragma unroll
            for (int i = 0; i < 4; ++i) dequantize(codes, i, a + 4 * i);
            issue(sums, a, state.stage, accumulate);
            accumulate = 1;
            wgmma_wait_group<0>();
            release(state.stage);
            state.advance(Stages);
        }
    }

    /// The same with two sets of operands: one is read by running wgmmas while the next block's are written between
    /// them, so that the tensor cores always have the next instruction at hand.
    __device__ __forceinline__ void consume_overlapped(int block, int last, PipelineState& state,
                                                       float (&sums)[Tokens / 2], int accumulate) {
        uint32_t even[16], odd[16];
        {
            const Codes codes = load(block, state);
#pragma unroll
            for (int i = 0; i < 4; ++i) dequantize(codes, i, even + 4 * i);
        }
        int previous = -1;  // stage of the block before
        const auto step = [&](const uint32_t (&a)[16], uint32_t (&next)[16]) {
            const int stage = state.stage;
            state.advance(Stages);
            const Codes codes = load(block + 1, state);
            const uint64_t x = wgmma_descriptor(shared_address(s.x[stage]), 128);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                wgmma_fence();
                Wgmma<Tokens>::bf16_rs(sums, a + 4 * i, x + 2 * i, accumulate);
                wgmma_commit_group();
                accumulate = 1;
                if (i == 0) {
                    wgmma_wait_group<1>();  // the block before is done: its stage and its operands are free
                    if (previous >= 0) release(previous);
                }
                dequantize(codes, i, next + 4 * i);
            }
            previous = stage;
            ++block;
        };
        const auto final_step = [&](const uint32_t (&a)[16]) {
            issue(sums, a, state.stage, accumulate);
            wgmma_wait_group<0>();
            if (previous >= 0) release(previous);
            release(state.stage);
            state.advance(Stages);
        };
        while (block + 1 < last) {
            step(even, odd);
            step(odd, even);
        }
        if (block < last) {
            step(even, odd);
            final_step(odd);
        } else {
            final_step(even);
        }
    }

    /// By pairs: a block's sums on their own, to which its scales are applied; the next block is looked up meanwhile.
    __device__ __forceinline__ void consume_pairs(int block, int last, PipelineState& state, float (&sums)[Tokens / 2],
                                                  int accumulate) {
        if (accumulate == 0) {
#pragma unroll
            for (float& sum : sums) sum = 0.0F;
        }
        uint32_t even[16], odd[16];
        float scale[2];
        const auto next = [&](const PipelineState& at, uint32_t (&a)[16]) {
            const Codes codes = load(0, at);
#pragma unroll
            for (int i = 0; i < 2; ++i) scale[i] = codes.row_scale[i] * (1.0F / code_stretch);
            look_up(codes, a);
        };
        next(state, even);
        const auto step = [&](const uint32_t (&a)[16], uint32_t (&ahead)[16]) {
            const int stage = state.stage;
            const float of_block[2] = {scale[0], scale[1]};
            float part[Tokens / 2];
            issue(part, a, stage, 0);
            state.advance(Stages);
            if (block < last) next(state, ahead);
            wgmma_wait_group<0>();
            release(stage);
#pragma unroll
            for (int i = 0; i < Tokens / 2; ++i) sums[i] += of_block[i / 2 % 2] * part[i];
            ++block;
        };
        while (block < last) {
            step(even, odd);
            step(odd, even);
        }
        if (block == last) step(even, odd);
    }

    __device__ __forceinline__ void consume(const WorkTile& work, PipelineState& state, float (&sums)[Tokens / 2]) {
        int accumulate = 0;
        const int block = consume_tail(work, state, sums, accumulate);
        if (block >= work.end) return;
        if constexpr (Pairs) {
            if (table != nullptr) return consume_pairs(block, work.end - 1, state, sums, accumulate);
        }
        if constexpr (overlapped)
            consume_overlapped(block, work.end - 1, state, sums, accumulate);
        else
            consume_in_turn(block, work.end - 1, state, sums, accumulate);
    }

    /// The thread's sums of tokens [first, first + Count) to staged [Count][pitch].
    template <int Count>
    __device__ __forceinline__ void stage(const float (&sums)[Tokens / 2], int first, float* staged) const {
#pragma unroll
        for (int i = 0; i < Count / 2; ++i) {
            const int token = i / 4 * 8 + lane % 4 * 2 + i % 2, row = warp * 16 + lane / 4 + i / 2 % 2 * 8;
            staged[token * pitch + row] = sums[first / 2 + i];
        }
    }
    /// Bias and residual added, stored: a chunk of tokens at a time.
    __device__ __forceinline__ void epilogue(const WorkTile& work, const float (&sums)[Tokens / 2]) {
        constexpr int chunk = Tokens < chunk_tokens ? Tokens : chunk_tokens;
        float* const staged = &s.staged[group][0][0];
        const int thread = warp * 32 + lane;
        const bool exists = work.row_block * groups + group < p.row_tiles;
#pragma unroll
        for (int c = 0; c < Tokens / chunk; ++c) {
            if (work.token_block * Tokens + c * chunk >= p.m) break;
            stage<chunk>(sums, c * chunk, staged);
            named_barrier_sync(1 + group, group_threads);
#pragma unroll
            for (int pass = 0; pass < chunk / 16; ++pass) {
                const int in_chunk = pass * 16 + thread / 8, row = thread % 8 * 8;
                const int token = work.token_block * Tokens + c * chunk + in_chunk;
                if (token >= p.m || !exists) continue;
                const auto* from = reinterpret_cast<const float4*>(staged + in_chunk * pitch + row);
                float v[8] = {};
                add_eight(v, from[0], from[1]);
                store_eight(p, token, row_tile * spec::nf4_tile + row, v);
            }
            named_barrier_sync(1 + group, group_threads);  // the next chunk, or tile, may overwrite `staged`
        }
    }

    /// The same of a tile that a cluster shares: the blocks' sums are added in their order, every block a
    /// part of the tokens. The sums lie where x was.
    __device__ __forceinline__ void epilogue_cluster(const WorkTile& work, const float (&sums)[Tokens / 2], int size,
                                                     int rank) {
        static_assert(groups * Tokens * pitch * sizeof(float) <= sizeof(s.x), "sums do not fit");
        float* const staged = reinterpret_cast<float*>(s.x) + group * (Tokens * pitch);
        const bool exists = work.row_block * groups + group < p.row_tiles;
        named_barrier_sync(1 + groups, groups * group_threads);  // the other group has read x too
        stage<Tokens>(sums, 0, staged);
        cluster_sync();
        const int thread = warp * 32 + lane, row = thread % 8 * 8;
        for (int in_tile = thread / 8 * size + rank; in_tile < Tokens; in_tile += group_threads / 8 * size) {
            const int token = work.token_block * Tokens + in_tile;
            if (token >= p.m || !exists) break;
            const uint32_t from = shared_address(staged + in_tile * pitch + row);
            float v[8] = {};
#pragma unroll 4
            for (int r = 0; r < size; ++r) {
                const uint32_t place = mapa(from, static_cast<uint32_t>(r));
                add_eight(v, load_shared_cluster(place), load_shared_cluster(place + 16));
            }
            store_eight(p, token, row_tile * spec::nf4_tile + row, v);
        }
        __syncwarp();
        cluster_sync_relaxed();
    }
};

}  // namespace unsloth::kernels::nf4
