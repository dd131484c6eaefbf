// The consumer warpgroups of the Hopper kernel of nf4_gemm_sm90.cu, which includes this. sm_90a only.
#pragma once

#include "kernels/nf4_gemm_sm90_producer.cuh"

namespace unsloth::kernels::nf4 {

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

    /// The tail's blocks, whose weights need no decoding. Returns the first block after them.
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
    /// part of the tokens. The sums are where x was.
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
