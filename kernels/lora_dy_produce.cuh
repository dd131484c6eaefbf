// The producing warp of lora_dy.cuh; included by lora_dy.cu alone.
#pragma once

#include "kernels/lora_dy.cuh"

namespace unsloth::kernels::lora {

template <class T, class X, class Tile, int kThin>
__device__ __forceinline__ void DyBlock<T, X, Tile, kThin>::produce() const {
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
            bulk_load(stage + lane * Shared::kPitch, dy + (token_begin + lane) * p.dy_stride, columns * 2, barrier,
                      policy);
        if (lane == step_tokens) load_u(stage, token_begin, tokens, barrier, keep);
        state.advance(p.stages);
    }
}

template <class T, class X, class Tile, int kThin>
__device__ __forceinline__ void DyBlock<T, X, Tile, kThin>::produce_codes() const {
    constexpr int kBlock = static_cast<int>(int8_block);
    const int boxes = (columns + Shared::kBoxColumns - 1) / Shared::kBoxColumns,
              blocks = (columns + kBlock - 1) / kBlock;  // of scales
    const float* scales = p.scales + (range.begin + column_begin) / kBlock * p.scale_stride;
    const uint64_t keep = l2_policy(false);
    PipelineState state;
#pragma unroll 1
    for (int step = 0, round = 0; step < steps; step += Shared::kStageSteps, ++round) {
        if (round >= p.stages) mbarrier_wait(empty + 8 * state.stage, state.phase ^ 1);
        const int token_begin = (first + step) * step_tokens,
                  tokens = min(Shared::kStageTokens, p.tokens - token_begin);
        const uint32_t stage = base + state.stage * stage_bytes, barrier = full + 8 * state.stage;
        const bool whole = tokens == Shared::kStageTokens;
        if (!whole || round < p.stages) {
            uint32_t* words = reinterpret_cast<uint32_t*>(data + state.stage * stage_bytes);
            for (int i = boxes * Shared::kBoxBytes / 4 + lane; i < Shared::kScalesAt / 4; i += 32) words[i] = 0;
            for (int i = (whole ? blocks * Shared::kStageTokens : 0) + lane;
                 i < Shared::kScaleBlocks * Shared::kStageTokens; i += 32) {
                const int block = i / Shared::kStageTokens, token = i % Shared::kStageTokens;
                const bool there = block < blocks && token < tokens;
                words[Shared::kScalesAt / 4 + i] =
                    there ? __float_as_uint(scales[block * p.scale_stride + token_begin + token]) : 0;
            }
            zero_u(words, tokens);
        }
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive_expect_tx(barrier, boxes * Shared::kBoxBytes + tokens * p.thin * 2 +
                                                   (whole ? blocks * Shared::kStageTokens * 4 : 0));
        __syncwarp();
        if (lane < boxes)
            tma_load_2d(stage + lane * Shared::kBoxBytes, p.code_map,
                        range.begin + column_begin + lane * Shared::kBoxColumns, p.first_token + token_begin, barrier);
        if (const int block = lane - 16; whole && block >= 0 && block < blocks)
            bulk_load(stage + Shared::kScalesAt + block * Shared::kStageTokens * 4,
                      scales + block * p.scale_stride + token_begin, Shared::kStageTokens * 4, barrier, keep);
        if (lane == 31) load_u(stage, token_begin, tokens, barrier, keep);
        state.advance(p.stages);
    }
}

}  // namespace unsloth::kernels::lora
