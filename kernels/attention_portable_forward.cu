// Portable attention, forward: FlashAttention's tiles and online softmax (Dao, "FlashAttention-2", 2023) in fp32
// without tensor cores, so that every card and fp32 inputs are served.
//
// Ceiling: the fp32 rate outside the tensor cores; a thread reads 8 values from shared memory for 16 multiply-adds.
#include "kernels/attention_mma.h"
#include "kernels/attention_portable.cuh"

namespace unsloth::kernels {
namespace {

using namespace portable_attention;

/// One tile of scores into the running softmax: leaves exp(s - max) in p_tile, and rescales what was summed before.
template <int D, int N, int I, int J>
__device__ __forceinline__ void online_softmax(const PortableAttention& a, const TileRows& t, int first, int tx, int ty,
                                               float (&s)[I][J], float* p_tile, float (&row_max)[I],
                                               float (&row_sum)[I], float (&out)[I][D / 16]) {
#pragma unroll
    for (int i = 0; i < I; ++i) {
        const int row = t.first + ty + 16 * i;
        float tile_max = -INFINITY;
#pragma unroll
        for (int j = 0; j < J; ++j) {
            if (!is_visible(a, t, row, first + tx + 16 * j)) s[i][j] = -INFINITY;
            tile_max = fmaxf(tile_max, s[i][j]);
        }
        const float new_max = fmaxf(row_max[i], group_max<16>(tile_max));
        const float base = new_max == -INFINITY ? 0.0f : new_max;  // a row that has seen no key yet
        const float rescale = expf(row_max[i] - base);
        float tile_sum = 0.0f;
#pragma unroll
        for (int j = 0; j < J; ++j) {
            const float p = expf(s[i][j] - base);
            p_tile[(ty + 16 * i) * (N + pad) + tx + 16 * j] = p;
            tile_sum += p;
        }
        row_sum[i] = row_sum[i] * rescale + group_sum<16>(tile_sum);
        row_max[i] = new_max;
#pragma unroll
        for (int c = 0; c < D / 16; ++c) out[i][c] *= rescale;
    }
}

/// A block: M queries of one head against all keys they see, N at a time. 16 x 16 threads; thread (ty, tx)
/// holds the scores of rows ty + 16 i and keys tx + 16 j, and of the output the same rows and columns 64 g +
/// 4 tx + e.
template <class T, int D, int M, int N>
__global__ void __launch_bounds__(threads, 2) forward_kernel(PortableAttention a) {
    constexpr int I = M / 16, J = N / 16;
    extern __shared__ float shared[];
    float* q_tile = shared;                   // [M][D + pad]
    float* kv_tile = q_tile + M * (D + pad);  // [N][D + pad], keys then values
    float* p_tile = kv_tile + N * (D + pad);  // [M][N + pad], rows private to their 16 lanes
    TileRows t;
    // Late tiles see the most keys: they start first.
    if (!find_tile<M>(a, a.q_offsets, gridDim.x - 1 - blockIdx.x, t)) return;
    const int head = blockIdx.y, kv_head = head / (a.heads / a.kv_heads);
    const int thread = threadIdx.x, tx = thread % 16, ty = thread / 16;

    load_tile<T, M, D, threads>(q_tile, a.q, head, t.q_begin, t.first, t.q_count, a.head_dim, thread, a.scale);
    float out[I][D / 16] = {}, row_max[I], row_sum[I];
#pragma unroll
    for (int i = 0; i < I; ++i) row_max[i] = -INFINITY, row_sum[i] = 0.0f;

    const Range keys = visible_keys(a, t, t.first, M, N);
    for (int first = keys.low; first < keys.high; first += N) {
        __syncthreads();
        load_tile<T, N, D, threads>(kv_tile, a.k, kv_head, t.k_begin, first, t.k_count, a.head_dim, thread);
        __syncthreads();
        float s[I][J];
        multiply_abt<D>(q_tile, ty, 16, kv_tile, tx, 16, s);
        online_softmax<D, N>(a, t, first, tx, ty, s, p_tile, row_max, row_sum, out);
        __syncthreads();
        load_tile<T, N, D, threads>(kv_tile, a.v, kv_head, t.k_begin, first, t.k_count, a.head_dim, thread);
        __syncthreads();
        multiply_ab<D, N>(p_tile, ty, 16, kv_tile, tx, out);
    }
#pragma unroll
    for (int i = 0; i < I; ++i) {
        const int row = t.first + ty + 16 * i;
        if (row >= t.q_count) continue;
        store_row<T, D>(a.out, head, t.q_begin + row, a.head_dim, tx, out[i], 1.0f / row_sum[i]);
        if (a.lse.data != nullptr && tx == 0) lse_at(a.lse, t, head, row) = row_max[i] + logf(row_sum[i]);
    }
}

/// Tile sizes by the padded head_dim: as large as 99 KiB of shared memory (the least that cards from sm_80 on grant a
/// block) allow.
template <int D>
struct ForwardTile {
    static constexpr int m = D <= 128 ? 64 : 32, n = m;
    static constexpr int bytes = static_cast<int>(sizeof(float)) * ((m + n) * (D + pad) + m * (n + pad));
};
static_assert(ForwardTile<128>::bytes <= 99 * 1024 && ForwardTile<256>::bytes <= 99 * 1024);

template <class T, int D>
void forward(const PortableAttention& a, cudaStream_t stream) {
    using Tile = ForwardTile<D>;
    launch_kernel(forward_kernel<T, D, Tile::m, Tile::n>,
                  {.grid = dim3(slots(a.q_tokens, a.segments, Tile::m), static_cast<unsigned>(a.heads)),
                   .threads = threads,
                   .shared_bytes = Tile::bytes,
                   .stream = stream},
                  a);
}

}  // namespace

void attention_portable_forward(const PortableAttention& args, cudaStream_t stream) {
    if (attention_mma_serves(args)) return attention_mma_forward(args, stream);
    dispatch(args, [&](auto type, auto size) {
        forward<typename decltype(type)::type, decltype(size)::value>(args, stream);
    });
}

}  // namespace unsloth::kernels
