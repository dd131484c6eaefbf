// The parts of paged attention by tensor cores: heads of 64 or 128 in 16 bit, up to 16 of which share a kv head.
//
// A warp takes a page at a time: scores S = Q Kᵀ with the heads as the rows of mma.sync's A operand (16, of which most
// may be none), then O += P V. Keys and values go from memory into registers, 16 bytes a load, and never through shared
// memory: the columns of a product may come in any order, so a lane's operand is contiguous there. For K that is the
// order of the reduction (a lane's eight dimensions are two steps), for V the order of O's columns; two keys' values
// are put side by side by a PRMT. P is what S's registers hold, rounded to the type, as in Dao, "FlashAttention-2"
// (2023).
//
// Keys and values in 8 bit become bf16 in registers, times 2^key_code_shift; Q and P, which cannot get too large by
// that, are multiplied by 2^operand_shift, a key's power of two is its score's and a value's its weight's. All of these
// are powers of two, so that the result is what 16-bit keys of the same values would give: but for an ulp of one in
// some 100,000 elements on an H200, where subnormal operands shift what a tensor core's sums keep.
#pragma once

#include <type_traits>

#include "kernels/common/device.cuh"
#include "kernels/common/exp2_pack.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/key_codes.cuh"
#include "kernels/paged_attention.h"

namespace unsloth::kernels::paged {

constexpr int mma_warps = 4, mma_heads = 16;
constexpr int mma_blocks = 3;  // on a multiprocessor at once: registers are what limits them

constexpr int operand_shift = 64, result_shift = -key_code_shift - operand_shift;

/// A lane's part of a key or a value: `Chunks` times eight dimensions, in memory order. Of 16-bit values a load
/// takes one chunk, of codes two.
template <bool Codes, int Chunks>
struct Part {
    static constexpr int words_a_chunk = Codes ? 2 : 4;
    uint32_t words[Chunks * words_a_chunk];

    /// Dimensions between two loads; lanes' own are side by side. Zeros where it is not `there`.
    __device__ __forceinline__ void load(const void* from, int bytes_between, bool there) {
        constexpr int count = Chunks * words_a_chunk;
#pragma unroll
        for (int w = 0; w < count; w += 4) {
            const auto* at = static_cast<const unsigned char*>(from) + w / 4 * bytes_between;
            if constexpr (count % 4 == 0) {
                uint4 v{};
                if (there) v = load_once_16(at);
                words[w] = v.x, words[w + 1] = v.y, words[w + 2] = v.z, words[w + 3] = v.w;
            } else {
                uint2 v{};
                if (there) v = load_once_8(at);
                words[w] = v.x, words[w + 1] = v.y;
            }
        }
    }
    /// A chunk of another lane's.
    __device__ __forceinline__ void take_from(int lane, int chunk) {
#pragma unroll
        for (int w = chunk * words_a_chunk; w < (chunk + 1) * words_a_chunk; ++w)
            words[w] = __shfl_sync(all_lanes, words[w], lane);
    }
    /// Dimensions 2 i and 2 i + 1 of a chunk in 16 bits each.
    __device__ __forceinline__ uint32_t pair(int chunk, int i) const {
        if constexpr (Codes) return key_code_pair(words[chunk * 2 + i / 2], i % 2);
        return words[chunk * words_a_chunk + i];
    }
};

/// The first of the eight dimensions of a chunk that are a lane's, when `lanes` lanes share a key or value.
template <bool Codes>
constexpr __device__ __forceinline__ int dimension_of(int chunk, int lane, int lanes, int chunks) {
    if (!Codes) return chunk * lanes * 8 + lane * 8;
    const int together = chunks % 2 == 0 ? 2 : 1;  // chunks of a load
    return (chunk / together * lanes + lane) * together * 8 + chunk % together * 8;
}

/// A warp's view of the keys of its row and kv head. g: of a head in A's and the results' rows, of a key or a dimension
/// in B's columns; t: of a pair in the reduction, or in the results' columns.
template <class T, int D, bool Tall, bool Codes>
struct PageWorker {
    using Stored = std::conditional_t<Codes, uint8_t, T>;
    static constexpr int chunks = D / 32;        // of a lane's K and Q, which four lanes share
    static constexpr int value_chunks = D / 64;  // of a lane's V, which eight share

    const PagedAttention& a;
    const uint4 (*const q)[chunks][warp_size];  // in shared memory, by half and lane
    const int kv_head, g, t;
    float out[value_chunks * 8][4] = {};
    float row_max[2] = {-INFINITY, -INFINITY}, row_sum[2] = {};

    __device__ __forceinline__ PageWorker(const PagedAttention& args, const uint4 (*operands)[chunks][warp_size],
                                          int head, int lane)
        : a(args), q(operands), kv_head(head), g(lane / 4), t(lane % 4) {}

    /// By one warp, for all; a barrier must follow.
    __device__ static void load_queries(const PagedAttention& a, uint4 (*to)[chunks][warp_size], int row, int kv_head,
                                        int lane) {
        const int shared_by = a.heads / a.kv_heads;
#pragma unroll
        for (int half = 0; half < (Tall ? 2 : 1); ++half) {
            const int of_group = lane / 4 + 8 * half;
            const T* from = static_cast<const T*>(a.q.data) + row * a.q.token_stride +
                            (kv_head * shared_by + of_group) * a.q.head_stride;
#pragma unroll
            for (int c = 0; c < chunks; ++c)
                to[half][c][lane] =
                    of_group < shared_by ? operand(from + dimension_of<Codes>(c, lane % 4, 4, chunks)) : uint4{};
        }
    }

    /// Eight values of Q.
    __device__ static __forceinline__ uint4 operand(const T* from) {
        uint4 words = *reinterpret_cast<const uint4*>(from);
        if constexpr (Codes) {
            auto* pairs = reinterpret_cast<__nv_bfloat162*>(&words);
            const __nv_bfloat162 factor = __float2bfloat162_rn(power_of_two(operand_shift + 127));
#pragma unroll
            for (int i = 0; i < 4; ++i) pairs[i] = __hmul2(pairs[i], factor);
        }
        return words;
    }

    /// What this lane's eight scores of a page are multiplied by: key 8 j + 2 t + i, of the keys or of the values. 0
    /// after the last of `count` keys, where nothing was written.
    struct Factors {
        float of[4][2];
    };
    __device__ __forceinline__ Factors factors(int page, int head, int count, int shift, float scale) const {
        const uint8_t* from = a.exponents + (static_cast<int64_t>(page) * 2 * a.kv_heads + head) * page_tokens + 2 * t;
        Factors result;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const uint16_t two = *reinterpret_cast<const uint16_t*>(from + 8 * j);
#pragma unroll
            for (int i = 0; i < 2; ++i)
                result.of[j][i] = 8 * j + 2 * t + i < count ? power_of_two((two >> 8 * i & 255) + shift) * scale : 0.0f;
        }
        return result;
    }

    /// Keys [first, first + page_tokens) of the row, on this page, as far as they are in [low, end).
    __device__ __forceinline__ void take(int first, int page, int low, int end) {
        const int64_t place = static_cast<int64_t>(page) * page_tokens;
        const Stored* key = static_cast<const Stored*>(a.k.data) + (place + g) * a.k.stride + kv_head * D +
                            dimension_of<Codes>(0, t, 4, chunks);
        Part<Codes, chunks> k[4];
#pragma unroll
        for (int j = 0; j < 4; ++j, key += 8 * a.k.stride) k[j].load(key, 4 * 16, first + 8 * j + g < end);

        float scores[4][4] = {};  // of eight keys each: 2 t, 2 t + 1 of head g, then of head g + 8
#pragma unroll
        for (int c = 0; c < chunks; ++c) {
            const uint4 low = q[0][c][g * 4 + t], high = Tall ? q[Tall ? 1 : 0][c][g * 4 + t] : uint4{};
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32_t operand[4] = {half == 0 ? low.x : low.z, half == 0 ? high.x : high.z,
                                             half == 0 ? low.y : low.w, half == 0 ? high.y : high.w};
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    mma_m16n8k16<T>(scores[j], operand, k[j].pair(c, 2 * half), k[j].pair(c, 2 * half + 1));
            }
        }
        // Values where the keys were: registers are what limits the blocks at work at once. Eight lanes together read
        // 128 bytes of one value, as less at once costs as much; then each takes what is its own.
        const int lane = g * 4 + t, value_key = lane / 8 * 2;
        const Stored* value = static_cast<const Stored*>(a.v.data) + (place + value_key) * a.v.stride + kv_head * D +
                              dimension_of<Codes>(0, lane % 8, 8, value_chunks);
        Part<Codes, value_chunks> v[2][4];
#pragma unroll
        for (int s = 0; s < 2; ++s) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                v[s][i].load(value, 8 * 16, first + value_key + 16 * s + i % 2 + i / 2 * 8 < end);
                value += (i % 2 == 0 ? 1 : 7) * a.v.stride;
            }
        }
        uint32_t p[2][4];  // of 16 keys each
        if constexpr (Codes) {
            scale(scores, factors(page, kv_head, end - first, result_shift, a.scale));
            weigh(scores, first, low, end);
            scale(scores, factors(page, a.kv_heads + kv_head, end - first, operand_shift, 1.0f));
        } else {
            weigh(scores, first, low, end);
        }
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            p[s][0] = pack_two<T>(scores[2 * s][0], scores[2 * s][1]);
            p[s][1] = pack_two<T>(scores[2 * s][2], scores[2 * s][3]);
            p[s][2] = pack_two<T>(scores[2 * s + 1][0], scores[2 * s + 1][1]);
            p[s][3] = pack_two<T>(scores[2 * s + 1][2], scores[2 * s + 1][3]);
        }
#pragma unroll
        for (int s = 0; s < 2; ++s) {
#pragma unroll
            for (int c = 0; c < value_chunks; ++c) {
#pragma unroll
                for (int i = 0; i < 4; ++i) v[s][i].take_from(t * 8 + g, c);
#pragma unroll
                for (int e = 0; e < 8; ++e) {
                    const int w = e / 2;
                    const unsigned place_of = e % 2 == 0 ? 0x5410 : 0x7632;
                    mma_m16n8k16<T>(out[c * 8 + e], p[s], __byte_perm(v[s][0].pair(c, w), v[s][1].pair(c, w), place_of),
                                    __byte_perm(v[s][2].pair(c, w), v[s][3].pair(c, w), place_of));
                }
            }
        }
    }

    __device__ static __forceinline__ void scale(float (&scores)[4][4], const Factors& by) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) scores[j][i] *= by.of[j][i % 2];
        }
    }

    /// Scores become exp(score - maximum), and what was summed before is scaled to the new maximum.
    __device__ __forceinline__ void weigh(float (&scores)[4][4], int first, int low, int end) {
#pragma unroll
        for (int half = 0; half < (Tall ? 2 : 1); ++half) {
            float highest = row_max[half];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int key = first + 8 * j + 2 * t + i;
                    float& score = scores[j][2 * half + i];
                    score = key >= low && key < end ? (Codes ? score : score * a.scale) : -INFINITY;
                    highest = fmaxf(highest, score);
                }
            }
            highest = group_max<4>(highest);
            const float base = highest == -INFINITY ? 0.0f : highest;  // no key was seen yet
            const float rescale = expf(row_max[half] - base);
            row_max[half] = highest;
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& score = scores[j][2 * half + i];
                    score = expf(score - base);
                    sum += score;
                }
            }
            row_sum[half] = row_sum[half] * rescale + group_sum<4>(sum);
#pragma unroll
            for (int n = 0; n < value_chunks * 8; ++n) out[n][2 * half] *= rescale, out[n][2 * half + 1] *= rescale;
        }
        if constexpr (!Tall) {
#pragma unroll
            for (int j = 0; j < 4; ++j) scores[j][2] = scores[j][3] = 0.0f;
        }
    }
};

/// What the warps of a block found of a part.
template <int D, bool Tall>
struct PartShared {
    static constexpr int rows = Tall ? mma_heads : mma_heads / 2;
    float maxima[mma_warps][rows], sums[mma_warps][rows];
    float outs[mma_warps][rows][D + 1];  // heads in other banks
    uint4 q[Tall ? 2 : 1][D / 32][warp_size];
};

/// Joins what the warps found of a part.
template <class T, int D, bool Tall, bool Codes>
__device__ __forceinline__ void store_part(const PageWorker<T, D, Tall, Codes>& worker, PartShared<D, Tall>& s, int row,
                                           int split, int warp) {
    const PagedAttention& a = worker.a;
    const int g = worker.g, t = worker.t;
#pragma unroll
    for (int half = 0; half < (Tall ? 2 : 1); ++half) {
        const int head = g + 8 * half;
        if (t == 0) s.maxima[warp][head] = worker.row_max[half], s.sums[warp][head] = worker.row_sum[half];
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 2; ++i)  // column 2 t + i of the product was that lane group's dimension
                s.outs[warp][head][dimension_of<Codes>(n / 8, 2 * t + i, 8, D / 64) + n % 8] =
                    worker.out[n][2 * half + i];
        }
    }
    __syncthreads();
    const int heads = a.heads / a.kv_heads, first_head = worker.kv_head * heads;
    for (int at = static_cast<int>(threadIdx.x); at < heads * D; at += mma_warps * warp_size) {
        const int h = at / D, c = at % D;
        float highest = -INFINITY, sum = 0.0f, x = 0.0f;
#pragma unroll
        for (int w = 0; w < mma_warps; ++w) highest = fmaxf(highest, s.maxima[w][h]);
        const float base = highest == -INFINITY ? 0.0f : highest;
#pragma unroll
        for (int w = 0; w < mma_warps; ++w) {
            const float share = expf(s.maxima[w][h] - base);
            sum += s.sums[w][h] * share;
            x += s.outs[w][h][c] * share;
        }
        float* part =
            a.parts + ((static_cast<int64_t>(row) * a.heads + first_head + h) * a.splits + split) * (a.head_dim + 2);
        part[c] = Codes ? x * power_of_two(result_shift + 127) : x;
        if (c == 0) part[a.head_dim] = highest, part[a.head_dim + 1] = sum;
    }
}

template <class T, int D, bool Tall, bool Codes>
__global__ void __launch_bounds__(mma_warps* warp_size, Tall&& D > 64 ? 2 : mma_blocks)
    mma_split_kernel(PagedAttention a) {
    begin_after_previous(gridDim.z);
    __shared__ PartShared<D, Tall> shared;
    const int split = blockIdx.x, kv_head = blockIdx.y, row = blockIdx.z;
    const int lane = threadIdx.x % warp_size;
    const int warp = __shfl_sync(all_lanes, static_cast<int>(threadIdx.x / warp_size), 0);  // known to be uniform
    const int length = a.lengths[row], low = a.window > 0 ? max(0, length - a.window) : 0;
    const int keys = keys_of_split(length);
    const int begin = max(split * keys, low / page_tokens * page_tokens), end = min((split + 1) * keys, length);
    if (split * keys >= length) return;
    const int32_t* pages = a.pages + static_cast<int64_t>(row) * a.most_pages;

    if (warp == 0) PageWorker<T, D, Tall, Codes>::load_queries(a, shared.q, row, kv_head, lane);
    __syncthreads();
    PageWorker<T, D, Tall, Codes> worker(a, shared.q, kv_head, lane);
#pragma unroll 1
    for (int first = begin + warp * page_tokens; first < end; first += mma_warps * page_tokens)
        worker.take(first, pages[first / page_tokens], low, end);
    store_part(worker, shared, row, split, warp);
}

}  // namespace unsloth::kernels::paged
