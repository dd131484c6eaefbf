// Portable attention, backward: probabilities are recomputed tile by tile from the row statistics (Dao,
// "FlashAttention-2", 2023); dk, dv and dq have kernels of their own, so that no sum needs atomics.
//
// Ceiling: the fp32 rate outside the tensor cores, as the forward.
#include "kernels/attention_mma.h"
#include "kernels/attention_portable.cuh"

namespace unsloth::kernels {
namespace {

using namespace portable_attention;

/// delta[h][t] = sum over d of out * dout: a warp a row.
template <class T>
__global__ void __launch_bounds__(threads)
    delta_kernel(HeadRows out, HeadRows dout, int64_t tokens, int d, float* delta) {
    const int64_t token = int64_t{blockIdx.x} * (threads / 32) + threadIdx.x / 32;
    const int head = blockIdx.y, lane = threadIdx.x % 32;
    if (token >= tokens) return;
    const T* x = static_cast<const T*>(out.data) + token * out.row_stride + head * out.head_stride;
    const T* y = static_cast<const T*>(dout.data) + token * dout.row_stride + head * dout.head_stride;
    float sum = 0.0f;
    for (int c = lane; c < d; c += 32) sum += to_float(x[c]) * to_float(y[c]);
    sum = group_sum(sum);
    if (lane == 0) delta[head * tokens + token] = sum;
}

/// The four tiles and two score tiles of a backward block.
template <int D, int M, int N>
struct BackwardTiles {
    float *q, *dout, *k, *v;  // [M][D + pad] twice, [N][D + pad] twice
    float *p, *ds;            // [M][N + pad]
    static constexpr int floats = 2 * (M + N) * (D + pad) + 2 * M * (N + pad);
    __device__ explicit BackwardTiles(float* shared)
        : q(shared),
          dout(q + M * (D + pad)),
          k(dout + M * (D + pad)),
          v(k + N * (D + pad)),
          p(v + N * (D + pad)),
          ds(p + M * (N + pad)) {}
};

/// p = exp(scale q k^T - lse) and ds = p (dout v^T - delta) of one pair of tiles. The first half of the block
/// makes p, the second dout v^T; 8 x 16 threads each hold rows ty + 8 i and keys tx + 16 j. Begins with tiles
/// loaded, ends with both visible to all.
template <int D, int M, int N>
__device__ void score_gradients(const PortableAttention& a, const TileRows& t, const BackwardTiles<D, M, N>& tiles,
                                int head, const float* delta, int q_first, int k_first) {
    constexpr int I = M / 8, J = N / 16;
    const bool scores = threadIdx.x < threads / 2;
    const int thread = threadIdx.x % (threads / 2), tx = thread % 16, ty = thread / 16;
    float acc[I][J];
    multiply_abt<D>(scores ? tiles.q : tiles.dout, ty, 8, scores ? tiles.k : tiles.v, tx, 16, acc);
    if (scores) {
#pragma unroll
        for (int i = 0; i < I; ++i) {
            const int row = q_first + ty + 8 * i;
            const float lse = row < t.q_count ? lse_at(a.lse, t, head, row) : 0.0f;
#pragma unroll
            for (int j = 0; j < J; ++j)
                tiles.p[(ty + 8 * i) * (N + pad) + tx + 16 * j] =
                    is_visible(a, t, row, k_first + tx + 16 * j) ? expf(a.scale * acc[i][j] - lse) : 0.0f;
        }
    }
    __syncthreads();
    if (!scores) {
#pragma unroll
        for (int i = 0; i < I; ++i) {
            const int row = q_first + ty + 8 * i;
            const float d = row < t.q_count ? delta[head * a.q_tokens + t.q_begin + row] : 0.0f;
#pragma unroll
            for (int j = 0; j < J; ++j) {
                const int at = (ty + 8 * i) * (N + pad) + tx + 16 * j;
                tiles.ds[at] = tiles.p[at] * (acc[i][j] - d);
            }
        }
    }
    __syncthreads();
}

/// A block: N keys of one kv head against all queries that see them, of all heads that share it. The first
/// half of the threads sums dv = p^T dout, the second dk = ds^T q.
template <class T, int D, int M, int N>
__global__ void __launch_bounds__(threads, 2)
    dkdv_kernel(PortableAttention a, HeadRows dout, HeadRows dk, HeadRows dv, const float* delta) {
    constexpr int I = N / 8, half = threads / 2;
    extern __shared__ float shared[];
    const BackwardTiles<D, M, N> tiles(shared);
    TileRows t;
    if (!find_tile<N>(a, a.k_offsets, blockIdx.x, t)) return;
    const int kv_head = blockIdx.y, group = a.heads / a.kv_heads, d = a.head_dim;
    const bool values = threadIdx.x < half;
    const int thread = threadIdx.x % half, tx = thread % 16, ty = thread / 16;
    load_tile<T, N, D, threads>(tiles.k, a.k, kv_head, t.k_begin, t.first, t.k_count, d, threadIdx.x);
    load_tile<T, N, D, threads>(tiles.v, a.v, kv_head, t.k_begin, t.first, t.k_count, d, threadIdx.x);
    float acc[I][D / 16] = {};
    const Range queries = visible_queries(a, t, t.first, N, M);
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        for (int first = queries.low; first < queries.high; first += M) {
            __syncthreads();
            load_tile<T, M, D, threads>(tiles.q, a.q, head, t.q_begin, first, t.q_count, d, threadIdx.x);
            load_tile<T, M, D, threads>(tiles.dout, dout, head, t.q_begin, first, t.q_count, d, threadIdx.x);
            __syncthreads();
            score_gradients<D, M, N>(a, t, tiles, head, delta, first, t.first);
            multiply_atb<D, M, N>(values ? tiles.p : tiles.ds, ty * I, values ? tiles.dout : tiles.q, tx, acc);
        }
    }
#pragma unroll
    for (int i = 0; i < I; ++i) {
        const int row = t.first + ty * I + i;
        if (row < t.k_count)
            store_row<T, D>(values ? dv : dk, kv_head, t.k_begin + row, d, tx, acc[i], values ? 1.0f : a.scale);
    }
}

/// A block: M queries of one head against all keys they see; all threads sum dq = ds k.
template <class T, int D, int M, int N>
__global__ void __launch_bounds__(threads, 2)
    dq_kernel(PortableAttention a, HeadRows dout, HeadRows dq, const float* delta) {
    constexpr int I = M / 16;
    extern __shared__ float shared[];
    const BackwardTiles<D, M, N> tiles(shared);
    TileRows t;
    if (!find_tile<M>(a, a.q_offsets, gridDim.x - 1 - blockIdx.x, t)) return;
    const int head = blockIdx.y, kv_head = head / (a.heads / a.kv_heads), d = a.head_dim;
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    load_tile<T, M, D, threads>(tiles.q, a.q, head, t.q_begin, t.first, t.q_count, d, threadIdx.x);
    load_tile<T, M, D, threads>(tiles.dout, dout, head, t.q_begin, t.first, t.q_count, d, threadIdx.x);
    float acc[I][D / 16] = {};
    const Range keys = visible_keys(a, t, t.first, M, N);
    for (int first = keys.low; first < keys.high; first += N) {
        __syncthreads();
        load_tile<T, N, D, threads>(tiles.k, a.k, kv_head, t.k_begin, first, t.k_count, d, threadIdx.x);
        load_tile<T, N, D, threads>(tiles.v, a.v, kv_head, t.k_begin, first, t.k_count, d, threadIdx.x);
        __syncthreads();
        score_gradients<D, M, N>(a, t, tiles, head, delta, t.first, first);
        multiply_ab<D, N>(tiles.ds, ty, 16, tiles.k, tx, acc);
    }
#pragma unroll
    for (int i = 0; i < I; ++i) {
        const int row = t.first + ty + 16 * i;
        if (row < t.q_count) store_row<T, D>(dq, head, t.q_begin + row, d, tx, acc[i], a.scale);
    }
}

/// Tile sizes as the forward's.
template <int D>
struct BackwardTile {
    static constexpr int m = D <= 128 ? 32 : 16, n = m;
    static constexpr int bytes = static_cast<int>(sizeof(float)) * BackwardTiles<D, m, n>::floats;
};
static_assert(BackwardTile<128>::bytes <= 99 * 1024 && BackwardTile<256>::bytes <= 99 * 1024);

template <class T, int D>
void backward(const PortableAttention& a, const PortableAttentionGradients& g, cudaStream_t stream) {
    using Tile = BackwardTile<D>;
    const unsigned heads = static_cast<unsigned>(a.heads), kv_heads = static_cast<unsigned>(a.kv_heads);
    const dim3 rows(static_cast<unsigned>(ceil_div(a.q_tokens, threads / 32)), heads);
    UNSLOTH_LAUNCH(delta_kernel<T>, rows, threads, 0, stream, a.out, g.dout, a.q_tokens, a.head_dim, g.delta);
    Launch how{.threads = threads, .shared_bytes = Tile::bytes, .stream = stream};
    how.grid = dim3(slots(a.k_tokens, a.segments, Tile::n), kv_heads);
    launch_kernel(dkdv_kernel<T, D, Tile::m, Tile::n>, how, a, g.dout, g.dk, g.dv, g.delta);
    how.grid = dim3(slots(a.q_tokens, a.segments, Tile::m), heads);
    launch_kernel(dq_kernel<T, D, Tile::m, Tile::n>, how, a, g.dout, g.dq, g.delta);
}

}  // namespace

void attention_portable_backward(const PortableAttention& args, const PortableAttentionGradients& gradients,
                                 cudaStream_t stream) {
    if (attention_mma_serves(args, gradients)) return attention_mma_backward(args, gradients, stream);
    dispatch(args, [&](auto type, auto size) {
        backward<typename decltype(type)::type, decltype(size)::value>(args, gradients, stream);
    });
}

}  // namespace unsloth::kernels
