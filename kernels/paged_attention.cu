// Attention for decoding: one query a row, split over keys (Dao et al., "Flash-Decoding for long-context inference",
// 2023), with pages of keys as in Kwon et al., "PagedAttention" (2023).
//
// Ceiling: the memory's rate, each key and value read once for all heads that share it.
//
// Where tensor cores serve, paged_attention_mma.cuh makes the parts. Else: a block takes split_keys keys of one row for
// up to G of the heads that share a kv head. D / 8 lanes read a key, 16 bytes each (of 16-bit values); the groups of
// lanes take the keys of a page in turn, and join at the end. A second kernel joins the blocks of a row.
#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/ptx.cuh"
#include "kernels/paged_attention.h"
#include "kernels/paged_attention_mma.cuh"
#include "unsloth/core/check.h"

namespace unsloth::kernels {
namespace {

constexpr int join_threads = 128;

/// `count` of the eight are there; the others are 0.
template <class T, bool Vectors>
__device__ __forceinline__ void load_eight(const T* from, int count, float (&to)[8]) {
    if (Vectors && count == 8) {
        const Pack<T, 8> pack = load_pack<8>(from);
#pragma unroll
        for (int i = 0; i < 8; ++i) to[i] = to_float(pack.v[i]);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) to[i] = !Vectors && i < count ? to_float(from[i]) : 0.0f;
    }
}

/// More threads for longer heads: each holds 8 values of a few keys in registers.
template <int D>
constexpr int threads_of = D <= 128 ? 128 : 256;

/// Who a thread is, and what its block makes.
struct SplitPlace {
    int lane, group, split, row, first_head, heads;
};

/// Joins the groups of lanes, in their order, to the block's part. `maxima`, `sums` and `outs` are in shared memory.
template <int D, int G, int groups>
__device__ __forceinline__ void write_part(const PagedAttention& a, float (&maxima)[groups][G],
                                           float (&sums)[groups][G], float (&outs)[groups][G][D],
                                           const float (&row_max)[G], const float (&row_sum)[G],
                                           const float (&out)[G][8], const SplitPlace& here) {
    const int lane = here.lane, group = here.group, column = lane * 8;
#pragma unroll
    for (int g = 0; g < G; ++g) {
        if (lane == 0) maxima[group][g] = row_max[g], sums[group][g] = row_sum[g];
#pragma unroll
        for (int i = 0; i < 8; ++i) outs[group][g][column + i] = out[g][i];
    }
    __syncthreads();
    for (int at = threadIdx.x; at < here.heads * D; at += threads_of<D>) {
        const int g = at / D, c = at % D;
        if (c >= a.head_dim) continue;
        float highest = -INFINITY, sum = 0.0f, x = 0.0f;
        for (int other = 0; other < groups; ++other) highest = fmaxf(highest, maxima[other][g]);
        const float base = highest == -INFINITY ? 0.0f : highest;
        for (int other = 0; other < groups; ++other) {
            const float share = expf(maxima[other][g] - base);
            sum += sums[other][g] * share;
            x += outs[other][g][c] * share;
        }
        float* part =
            a.parts + ((static_cast<int64_t>(here.row) * a.heads + here.first_head + g) * a.splits + here.split) *
                          (a.head_dim + 2);
        part[c] = x;
        if (c == 0) part[a.head_dim] = highest, part[a.head_dim + 1] = sum;
    }
}

template <class T, int D, int G, bool Vectors>
__global__ void __launch_bounds__(threads_of<D>) split_kernel(PagedAttention a) {
    constexpr int threads = threads_of<D>, lanes = D / 8, groups = threads / lanes, keys_at_once = page_tokens / groups;
    static_assert(groups * keys_at_once == page_tokens && lanes <= warp_size);
    begin_after_previous(gridDim.z);
    __shared__ float maxima[groups][G], sums[groups][G];
    __shared__ float outs[groups][G][D];
    const int split = blockIdx.x, row = blockIdx.z;
    const int heads_a_kv = a.heads / a.kv_heads, head_groups = (heads_a_kv + G - 1) / G;
    const int kv_head = blockIdx.y / head_groups, head_begin = blockIdx.y % head_groups * G;
    const int heads = min(G, heads_a_kv - head_begin), first_head = kv_head * heads_a_kv + head_begin;
    const int length = a.lengths[row], low = a.window > 0 ? max(0, length - a.window) : 0;
    const int keys = keys_of_split(length);
    const int begin = max(split * keys, low / page_tokens * page_tokens), end = min((split + 1) * keys, length);
    if (split * keys >= length) return;
    const int lane = threadIdx.x % lanes, group = threadIdx.x / lanes, column = lane * 8;
    const int inside = min(8, max(0, a.head_dim - column));

    float q[G][8], out[G][8], row_max[G], row_sum[G];
#pragma unroll
    for (int g = 0; g < G; ++g) {
        const T* from = static_cast<const T*>(a.q.data) + row * a.q.token_stride +
                        (first_head + min(g, heads - 1)) * a.q.head_stride + column;
        load_eight<T, Vectors>(from, inside, q[g]);
#pragma unroll
        for (int i = 0; i < 8; ++i) q[g][i] *= a.scale, out[g][i] = 0.0f;
        row_max[g] = -INFINITY;
        row_sum[g] = 0.0f;
    }
    const int32_t* pages = a.pages + static_cast<int64_t>(row) * a.most_pages;
#pragma unroll 1  // more would spill registers; a page has loads enough in flight
    for (int first = begin; first < end; first += page_tokens) {
        const int64_t place = static_cast<int64_t>(pages[first / page_tokens]) * page_tokens;
        float k[keys_at_once][8], v[keys_at_once][8], scores[keys_at_once][G];
#pragma unroll
        for (int u = 0; u < keys_at_once; ++u) {
            const int at = group + groups * u;
            const int there = first + at < end ? inside : 0;
            const int64_t offset = kv_head * a.head_dim + column;
            load_eight<T, Vectors>(static_cast<const T*>(a.k.data) + (place + at) * a.k.stride + offset, there, k[u]);
            load_eight<T, Vectors>(static_cast<const T*>(a.v.data) + (place + at) * a.v.stride + offset, there, v[u]);
        }
#pragma unroll
        for (int u = 0; u < keys_at_once; ++u) {
            const int key = first + group + groups * u;
            const bool seen = key >= low && key < end;
#pragma unroll
            for (int g = 0; g < G; ++g) {
                float dot = 0.0f;
#pragma unroll
                for (int i = 0; i < 8; ++i) dot += q[g][i] * k[u][i];
                scores[u][g] = group_sum<lanes>(dot);
                if (!seen) scores[u][g] = -INFINITY;
            }
        }
#pragma unroll
        for (int g = 0; g < G; ++g) {
            float new_max = row_max[g];
#pragma unroll
            for (int u = 0; u < keys_at_once; ++u) new_max = fmaxf(new_max, scores[u][g]);
            const float base = new_max == -INFINITY ? 0.0f : new_max;  // a group that has seen no key yet
            const float rescale = expf(row_max[g] - base);
            row_max[g] = new_max;
            row_sum[g] *= rescale;
#pragma unroll
            for (int i = 0; i < 8; ++i) out[g][i] *= rescale;
#pragma unroll
            for (int u = 0; u < keys_at_once; ++u) {
                const float p = expf(scores[u][g] - base);
                row_sum[g] += p;
#pragma unroll
                for (int i = 0; i < 8; ++i) out[g][i] += p * v[u][i];
            }
        }
    }
    write_part<D, G>(a, maxima, sums, outs, row_max, row_sum, out, {lane, group, split, row, first_head, heads});
}

/// A block a row and head: the parts of its keys, in their order.
template <class T>
__global__ void __launch_bounds__(join_threads) join_kernel(PagedAttention a) {
    begin_after_previous(gridDim.y);
    const int head = blockIdx.x, row = blockIdx.y, stride = a.head_dim + 2;
    const int length = a.lengths[row], keys = keys_of_split(length), splits = (length + keys - 1) / keys;
    const float* parts = a.parts + (static_cast<int64_t>(row) * a.heads + head) * a.splits * stride;
    const float sink = a.sinks != nullptr ? a.sinks[head] : -INFINITY;
    float highest = sink;
    for (int s = 0; s < splits; ++s) highest = fmaxf(highest, parts[s * stride + a.head_dim]);
    for (int c = threadIdx.x; c < a.head_dim; c += join_threads) {
        float x = 0.0f, sum = a.sinks != nullptr ? expf(sink - highest) : 0.0f;
        for (int s = 0; s < splits; ++s) {
            const float share = expf(parts[s * stride + a.head_dim] - highest);
            x += parts[s * stride + c] * share;
            sum += parts[s * stride + a.head_dim + 1] * share;
        }
        T* out = static_cast<T*>(a.out.data) + row * a.out.token_stride + head * a.out.head_stride;
        out[c] = from_float<T>(x / sum);
    }
}

template <class T>
bool reads_vectors(const PagedAttention& a) {
    const auto aligned = [](const void* data, int64_t row_stride, int64_t head_stride) {
        return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && row_stride * sizeof(T) % 16 == 0 &&
               head_stride * sizeof(T) % 16 == 0;
    };
    return a.head_dim % 8 == 0 && aligned(a.q.data, a.q.token_stride, a.q.head_stride) &&
           aligned(a.k.data, a.k.stride, a.head_dim) && aligned(a.v.data, a.v.stride, a.head_dim);
}

/// Rows of q and of codes start at multiples of 16 bytes.
bool reads_codes(const PagedAttention& a) {
    PagedAttention keys = a;
    keys.k.stride /= 2, keys.v.stride /= 2;  // as of 16-bit values
    return (a.k.stride | a.v.stride) % 16 == 0 && reads_vectors<__nv_bfloat16>(keys);
}

void launch(void (*kernel)(PagedAttention), dim3 grid, int threads, const PagedAttention& a, cudaStream_t stream) {
    launch_kernel(
        kernel,
        {.grid = grid, .threads = threads, .stream = stream, .after_previous = uses_programmatic_launch(a.rows)}, a);
}

template <class T>
void join(const PagedAttention& a, cudaStream_t stream) {
    const dim3 joined(static_cast<unsigned>(a.heads), static_cast<unsigned>(a.rows));
    launch(join_kernel<T>, joined, join_threads, a, stream);
}

template <class T, int D, bool Codes = false>
void issue_mma(const PagedAttention& a, cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(a.splits), static_cast<unsigned>(a.kv_heads), static_cast<unsigned>(a.rows));
    constexpr int threads = paged::mma_warps * warp_size;
    if (2 * a.heads / a.kv_heads <= paged::mma_heads) {
        launch(paged::mma_split_kernel<T, D, false, Codes>, grid, threads, a, stream);
    } else {
        launch(paged::mma_split_kernel<T, D, true, Codes>, grid, threads, a, stream);
    }
    join<T>(a, stream);
}

template <class T, int D, int G, bool Vectors = true>
void issue(const PagedAttention& a, cudaStream_t stream) {
    const int head_groups = (a.heads / a.kv_heads + G - 1) / G;
    const dim3 grid(static_cast<unsigned>(a.splits), static_cast<unsigned>(a.kv_heads * head_groups),
                    static_cast<unsigned>(a.rows));
    launch(split_kernel<T, D, G, Vectors>, grid, threads_of<D>, a, stream);
    join<T>(a, stream);
}

/// As many heads at once as registers and shared memory allow.
template <class T, int D>
void by_heads(const PagedAttention& a, cudaStream_t stream) {
    const int shared_by = a.heads / a.kv_heads;
    if constexpr (sizeof(T) == 2 && D <= 128)
        if (a.head_dim == D && shared_by <= paged::mma_heads && reads_vectors<T>(a)) return issue_mma<T, D>(a, stream);
    if (!reads_vectors<T>(a)) return issue<T, D, 1, false>(a, stream);
    if (shared_by == 1) return issue<T, D, 1>(a, stream);
    if (shared_by == 2) return issue<T, D, 2>(a, stream);
    issue<T, D, 4>(a, stream);
}

template <class T>
void by_size(const PagedAttention& a, cudaStream_t stream) {
    if (a.head_dim <= 64) return by_heads<T, 64>(a, stream);
    if (a.head_dim <= 128) return by_heads<T, 128>(a, stream);
    by_heads<T, 256>(a, stream);
}

}  // namespace

bool paged_attention_reads_codes(spec::DType dtype, int64_t heads, int64_t kv_heads, int64_t head_dim) {
    return dtype == spec::DType::bf16 && (head_dim == 64 || head_dim == 128) && heads / kv_heads <= paged::mma_heads;
}

void paged_attention(const PagedAttention& a, cudaStream_t stream) {
    if (a.rows == 0) return;
    UNSLOTH_CHECK(a.head_dim <= 256, "paged attention: head_dim ", a.head_dim);
    if (a.exponents != nullptr) {
        UNSLOTH_CHECK(paged_attention_reads_codes(a.dtype, a.heads, a.kv_heads, a.head_dim) && reads_codes(a),
                      "paged attention: 8-bit keys for heads of ", a.head_dim);
        if (a.head_dim == 64) return issue_mma<__nv_bfloat16, 64, true>(a, stream);
        return issue_mma<__nv_bfloat16, 128, true>(a, stream);
    }
    switch (a.dtype) {
        case spec::DType::f32:
            return by_size<float>(a, stream);
        case spec::DType::bf16:
            return by_size<__nv_bfloat16>(a, stream);
        case spec::DType::f16:
            return by_size<__half>(a, stream);
        default:
            unsupported_dtype(a.dtype);
    }
}

}  // namespace unsloth::kernels
