#include <type_traits>

#include "kernels/attention_portable.h"
#include "kernels/common.h"
#include "kernels/common/device.cuh"
#include "unsloth/core/error.h"

namespace unsloth::kernels {
namespace {

constexpr int threads = 256;
/// Columns of padding after a tile's row: rows then start in different banks for 16-byte reads.
constexpr int pad = 4;

__device__ float4 load4(const float* x) {
    return *reinterpret_cast<const float4*>(x);
}

/// N consecutive floats, aligned to N * 4 bytes (N = 1, 2, 4).
template <int N>
__device__ void load_vector(const float* x, float (&y)[N]) {
    if constexpr (N == 4) {
        const float4 v = load4(x);
        y[0] = v.x, y[1] = v.y, y[2] = v.z, y[3] = v.w;
    } else if constexpr (N == 2) {
        const float2 v = *reinterpret_cast<const float2*>(x);
        y[0] = v.x, y[1] = v.y;
    } else {
        static_assert(N == 1);
        y[0] = *x;
    }
}

/// A block's place: `tile` rows of one segment. Segment s owns the slots from offsets[s] / rows + s on, at
/// least as many as it has tiles, so a slot finds its segment by bisection and no list of tiles is needed.
struct Place {
    int segment, first;  ///< first row within the segment
    int q_begin, q_count, k_begin, k_count;
};

template <int Rows>
__device__ bool find_place(const PortableAttention& a, const int32_t* offsets, int slot, Place& place) {
    int low = 0, high = a.segments - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (offsets[middle] / Rows + middle <= slot)
            low = middle;
        else
            high = middle - 1;
    }
    place.segment = low;
    place.first = (slot - (offsets[low] / Rows + low)) * Rows;
    place.q_begin = a.q_offsets[low];
    place.q_count = a.q_offsets[low + 1] - place.q_begin;
    place.k_begin = a.k_offsets[low];
    place.k_count = a.k_offsets[low + 1] - place.k_begin;
    return place.first < offsets[low + 1] - offsets[low];
}

/// The keys [low, high) that some query of rows [first, first + rows) sees, low a multiple of `step`.
struct Range {
    int low, high;
};
__device__ Range visible_keys(const PortableAttention& a, const Place& p, int first, int rows, int step) {
    const int shift = p.k_count - p.q_count;
    const int last = min(first + rows, p.q_count) - 1;
    const int low = a.window > 0 ? max(0, first + shift - a.window + 1) : 0;
    return {low / step * step, min(p.k_count, last + shift + 1)};
}
/// The queries that see some key of [first, first + keys).
__device__ Range visible_queries(const PortableAttention& a, const Place& p, int first, int keys, int step) {
    const int shift = p.k_count - p.q_count;
    const int last = min(first + keys, p.k_count) - 1;
    const int high = a.window > 0 ? min(p.q_count, last - shift + a.window) : p.q_count;
    return {max(0, first - shift) / step * step, high};
}
__device__ bool sees(const PortableAttention& a, const Place& p, int row, int key) {
    const int position = row + p.k_count - p.q_count;
    return row < p.q_count && key < p.k_count && key <= position && (a.window == 0 || key > position - a.window);
}

/// tile[r][c] = rows [first, first + Rows) of one head, times factor, zero outside the segment and beyond d.
template <class T, int Rows, int D, int Threads>
__device__ void load_tile(float* tile, const HeadRows& x, int head, int64_t begin, int first, int count, int d,
                          int thread, float factor = 1.0f) {
    const T* source = static_cast<const T*>(x.data) + begin * x.row_stride + head * x.head_stride;
#pragma unroll 2
    for (int i = thread; i < Rows * D; i += Threads) {
        const int r = i / D, c = i % D, row = first + r;
        tile[r * (D + pad) + c] = row < count && c < d ? factor * to_float(source[row * x.row_stride + c]) : 0.0f;
    }
}

/// acc[i][j] = sum over D of left[row0 + i * row_step][.] * right[col0 + j * col_step][.].
template <int D, int I, int J>
__device__ void rows_times_rows(const float* left, int row0, int row_step, const float* right, int col0, int col_step,
                                float (&acc)[I][J]) {
#pragma unroll
    for (int i = 0; i < I; ++i)
#pragma unroll
        for (int j = 0; j < J; ++j) acc[i][j] = 0.0f;
#pragma unroll 2
    for (int c = 0; c < D; c += 4) {
        float4 l[I], r[J];
#pragma unroll
        for (int i = 0; i < I; ++i) l[i] = load4(left + (row0 + i * row_step) * (D + pad) + c);
#pragma unroll
        for (int j = 0; j < J; ++j) r[j] = load4(right + (col0 + j * col_step) * (D + pad) + c);
#pragma unroll
        for (int i = 0; i < I; ++i)
#pragma unroll
            for (int j = 0; j < J; ++j)
                acc[i][j] += l[i].x * r[j].x + l[i].y * r[j].y + l[i].z * r[j].z + l[i].w * r[j].w;
    }
}

/// acc[i][4 g + e] += sum over n of weights[row(i)][n] * tile[n][64 g + 4 tx + e], row(i) = row0 + i *
/// row_step.
template <int D, int N, int I>
__device__ void weights_times_tile(const float* weights, int row0, int row_step, const float* tile, int tx,
                                   float (&acc)[I][D / 16]) {
#pragma unroll 2
    for (int n = 0; n < N; n += 4) {
        float w[I][4];
#pragma unroll
        for (int i = 0; i < I; ++i) load_vector(weights + (row0 + i * row_step) * (N + pad) + n, w[i]);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
#pragma unroll
            for (int g = 0; g < D / 64; ++g) {
                const float4 t = load4(tile + (n + e) * (D + pad) + 64 * g + 4 * tx);
#pragma unroll
                for (int i = 0; i < I; ++i) {
                    acc[i][4 * g + 0] += w[i][e] * t.x;
                    acc[i][4 * g + 1] += w[i][e] * t.y;
                    acc[i][4 * g + 2] += w[i][e] * t.z;
                    acc[i][4 * g + 3] += w[i][e] * t.w;
                }
            }
        }
    }
}

/// acc[i][4 g + e] += sum over m of weights[m][col0 + i] * tile[m][64 g + 4 tx + e]: the transposed weights.
template <int D, int M, int N, int I>
__device__ void transposed_times_tile(const float* weights, int col0, const float* tile, int tx,
                                      float (&acc)[I][D / 16]) {
#pragma unroll 2
    for (int m = 0; m < M; ++m) {
        float w[I];
        load_vector(weights + m * (N + pad) + col0, w);
#pragma unroll
        for (int g = 0; g < D / 64; ++g) {
            const float4 t = load4(tile + m * (D + pad) + 64 * g + 4 * tx);
#pragma unroll
            for (int i = 0; i < I; ++i) {
                acc[i][4 * g + 0] += w[i] * t.x;
                acc[i][4 * g + 1] += w[i] * t.y;
                acc[i][4 * g + 2] += w[i] * t.z;
                acc[i][4 * g + 3] += w[i] * t.w;
            }
        }
    }
}

/// x[row][...] = factor * acc, for one row of a thread's columns 64 g + 4 tx + e.
template <class T, int D>
__device__ void store_row(const HeadRows& x, int head, int64_t token, int d, int tx, const float (&acc)[D / 16],
                          float factor) {
    T* target = static_cast<T*>(x.data) + token * x.row_stride + head * x.head_stride;
#pragma unroll
    for (int g = 0; g < D / 64; ++g)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int c = 64 * g + 4 * tx + e;
            if (c < d) target[c] = from_float<T>(factor * acc[4 * g + e]);
        }
}

/// Over the 16 lanes that share a row.
__device__ float max_of_16(float x) {
    for (int step = 8; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}
__device__ float& statistic(const RowStatistics& s, const Place& p, int head, int row) {
    return s.data[p.q_begin * s.token_stride + head * s.head_stride + row * s.row_stride];
}

// ----------------------------------------------------------------------------------------------------------------
// forward

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
    Place p;
    // Late tiles see the most keys: they start first.
    if (!find_place<M>(a, a.q_offsets, gridDim.x - 1 - blockIdx.x, p)) return;
    const int head = blockIdx.y, kv_head = head / (a.heads / a.kv_heads);
    const int thread = threadIdx.x, tx = thread % 16, ty = thread / 16;

    load_tile<T, M, D, threads>(q_tile, a.q, head, p.q_begin, p.first, p.q_count, a.head_dim, thread, a.scale);
    float out[I][D / 16] = {}, top[I], sum[I];
#pragma unroll
    for (int i = 0; i < I; ++i) top[i] = -INFINITY, sum[i] = 0.0f;

    const Range keys = visible_keys(a, p, p.first, M, N);
    for (int first = keys.low; first < keys.high; first += N) {
        __syncthreads();
        load_tile<T, N, D, threads>(kv_tile, a.k, kv_head, p.k_begin, first, p.k_count, a.head_dim, thread);
        __syncthreads();
        float s[I][J];
        rows_times_rows<D>(q_tile, ty, 16, kv_tile, tx, 16, s);
#pragma unroll
        for (int i = 0; i < I; ++i) {
            const int row = p.first + ty + 16 * i;
            float largest = -INFINITY;
#pragma unroll
            for (int j = 0; j < J; ++j) {
                if (!sees(a, p, row, first + tx + 16 * j)) s[i][j] = -INFINITY;
                largest = fmaxf(largest, s[i][j]);
            }
            const float now = fmaxf(top[i], max_of_16(largest));
            const float base = now == -INFINITY ? 0.0f : now;  // a row that has seen no key yet
            const float fade = expf(top[i] - base);
            float part = 0.0f;
#pragma unroll
            for (int j = 0; j < J; ++j) {
                const float weight = expf(s[i][j] - base);
                p_tile[(ty + 16 * i) * (N + pad) + tx + 16 * j] = weight;
                part += weight;
            }
            sum[i] = sum[i] * fade + group_sum<16>(part);
            top[i] = now;
#pragma unroll
            for (int c = 0; c < D / 16; ++c) out[i][c] *= fade;
        }
        __syncthreads();
        load_tile<T, N, D, threads>(kv_tile, a.v, kv_head, p.k_begin, first, p.k_count, a.head_dim, thread);
        __syncthreads();
        weights_times_tile<D, N>(p_tile, ty, 16, kv_tile, tx, out);
    }
#pragma unroll
    for (int i = 0; i < I; ++i) {
        const int row = p.first + ty + 16 * i;
        if (row >= p.q_count) continue;
        store_row<T, D>(a.out, head, p.q_begin + row, a.head_dim, tx, out[i], 1.0f / sum[i]);
        if (a.lse.data != nullptr && tx == 0) statistic(a.lse, p, head, row) = top[i] + logf(sum[i]);
    }
}

/// One query a segment (generation with a KV cache): a block a head, its warps take the keys in turn and join
/// at the end.
template <class T, int D>
__global__ void __launch_bounds__(threads) decode_kernel(PortableAttention a) {
    constexpr int warps = threads / 32, columns = D / 32;
    __shared__ float tops[warps], sums[warps], outs[warps][D];
    const int head = blockIdx.y, kv_head = head / (a.heads / a.kv_heads);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, segment = blockIdx.x;
    const int64_t q_token = a.q_offsets[segment];
    const int64_t k_begin = a.k_offsets[segment];
    const int k_count = static_cast<int>(a.k_offsets[segment + 1] - k_begin);
    const T* q = static_cast<const T*>(a.q.data) + q_token * a.q.row_stride + head * a.q.head_stride;
    const T* k = static_cast<const T*>(a.k.data) + k_begin * a.k.row_stride + kv_head * a.k.head_stride;
    const T* v = static_cast<const T*>(a.v.data) + k_begin * a.v.row_stride + kv_head * a.v.head_stride;
    float query[columns], out[columns] = {}, top = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < columns; ++i) {
        const int c = lane + 32 * i;
        query[i] = c < a.head_dim ? a.scale * to_float(q[c]) : 0.0f;
    }
    const int low = a.window > 0 ? max(0, k_count - a.window) : 0;
#pragma unroll 4
    for (int key = low + warp; key < k_count; key += warps) {
        float score = 0.0f, value[columns];
#pragma unroll
        for (int i = 0; i < columns; ++i) {
            const int c = lane + 32 * i;
            score += c < a.head_dim ? query[i] * to_float(k[key * a.k.row_stride + c]) : 0.0f;
            value[i] = c < a.head_dim ? to_float(v[key * a.v.row_stride + c]) : 0.0f;
        }
        score = group_sum(score);
        const float now = fmaxf(top, score), fade = expf(top - now), weight = expf(score - now);
        sum = sum * fade + weight;
        top = now;
#pragma unroll
        for (int i = 0; i < columns; ++i) out[i] = out[i] * fade + weight * value[i];
    }
    if (lane == 0) tops[warp] = top, sums[warp] = sum;
#pragma unroll
    for (int i = 0; i < columns; ++i) outs[warp][lane + 32 * i] = out[i];
    __syncthreads();
    float most = tops[0], total = 0.0f;
    for (int w = 1; w < warps; ++w) most = fmaxf(most, tops[w]);
    for (int w = 0; w < warps; ++w) total += sums[w] * expf(tops[w] - most);
    T* target = static_cast<T*>(a.out.data) + q_token * a.out.row_stride + head * a.out.head_stride;
    for (int c = threadIdx.x; c < a.head_dim; c += threads) {
        float x = 0.0f;
        for (int w = 0; w < warps; ++w) x += outs[w][c] * expf(tops[w] - most);
        target[c] = from_float<T>(x / total);
    }
    if (a.lse.data != nullptr && threadIdx.x == 0)
        a.lse.data[q_token * a.lse.token_stride + head * a.lse.head_stride] = most + logf(total);
}

// ---------------------------------------------------------------------------------------------------------------
// backward

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
__device__ void score_gradients(const PortableAttention& a, const Place& p, const BackwardTiles<D, M, N>& tiles,
                                int head, const float* delta, int q_first, int k_first) {
    constexpr int I = M / 8, J = N / 16;
    const bool scores = threadIdx.x < threads / 2;
    const int thread = threadIdx.x % (threads / 2), tx = thread % 16, ty = thread / 16;
    float acc[I][J];
    rows_times_rows<D>(scores ? tiles.q : tiles.dout, ty, 8, scores ? tiles.k : tiles.v, tx, 16, acc);
    if (scores) {
#pragma unroll
        for (int i = 0; i < I; ++i) {
            const int row = q_first + ty + 8 * i;
            const float lse = row < p.q_count ? statistic(a.lse, p, head, row) : 0.0f;
#pragma unroll
            for (int j = 0; j < J; ++j)
                tiles.p[(ty + 8 * i) * (N + pad) + tx + 16 * j] =
                    sees(a, p, row, k_first + tx + 16 * j) ? expf(a.scale * acc[i][j] - lse) : 0.0f;
        }
    }
    __syncthreads();
    if (!scores) {
#pragma unroll
        for (int i = 0; i < I; ++i) {
            const int row = q_first + ty + 8 * i;
            const float d = row < p.q_count ? delta[head * a.q_tokens + p.q_begin + row] : 0.0f;
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
    Place p;
    if (!find_place<N>(a, a.k_offsets, blockIdx.x, p)) return;
    const int kv_head = blockIdx.y, group = a.heads / a.kv_heads, d = a.head_dim;
    const bool values = threadIdx.x < half;
    const int thread = threadIdx.x % half, tx = thread % 16, ty = thread / 16;
    load_tile<T, N, D, threads>(tiles.k, a.k, kv_head, p.k_begin, p.first, p.k_count, d, threadIdx.x);
    load_tile<T, N, D, threads>(tiles.v, a.v, kv_head, p.k_begin, p.first, p.k_count, d, threadIdx.x);
    float acc[I][D / 16] = {};
    const Range queries = visible_queries(a, p, p.first, N, M);
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        for (int first = queries.low; first < queries.high; first += M) {
            __syncthreads();
            load_tile<T, M, D, threads>(tiles.q, a.q, head, p.q_begin, first, p.q_count, d, threadIdx.x);
            load_tile<T, M, D, threads>(tiles.dout, dout, head, p.q_begin, first, p.q_count, d, threadIdx.x);
            __syncthreads();
            score_gradients<D, M, N>(a, p, tiles, head, delta, first, p.first);
            transposed_times_tile<D, M, N>(values ? tiles.p : tiles.ds, ty * I, values ? tiles.dout : tiles.q, tx, acc);
        }
    }
#pragma unroll
    for (int i = 0; i < I; ++i) {
        const int row = p.first + ty * I + i;
        if (row < p.k_count)
            store_row<T, D>(values ? dv : dk, kv_head, p.k_begin + row, d, tx, acc[i], values ? 1.0f : a.scale);
    }
}

/// A block: M queries of one head against all keys they see; all threads sum dq = ds k.
template <class T, int D, int M, int N>
__global__ void __launch_bounds__(threads, 2)
    dq_kernel(PortableAttention a, HeadRows dout, HeadRows dq, const float* delta) {
    constexpr int I = M / 16;
    extern __shared__ float shared[];
    const BackwardTiles<D, M, N> tiles(shared);
    Place p;
    if (!find_place<M>(a, a.q_offsets, gridDim.x - 1 - blockIdx.x, p)) return;
    const int head = blockIdx.y, kv_head = head / (a.heads / a.kv_heads), d = a.head_dim;
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    load_tile<T, M, D, threads>(tiles.q, a.q, head, p.q_begin, p.first, p.q_count, d, threadIdx.x);
    load_tile<T, M, D, threads>(tiles.dout, dout, head, p.q_begin, p.first, p.q_count, d, threadIdx.x);
    float acc[I][D / 16] = {};
    const Range keys = visible_keys(a, p, p.first, M, N);
    for (int first = keys.low; first < keys.high; first += N) {
        __syncthreads();
        load_tile<T, N, D, threads>(tiles.k, a.k, kv_head, p.k_begin, first, p.k_count, d, threadIdx.x);
        load_tile<T, N, D, threads>(tiles.v, a.v, kv_head, p.k_begin, first, p.k_count, d, threadIdx.x);
        __syncthreads();
        score_gradients<D, M, N>(a, p, tiles, head, delta, p.first, first);
        weights_times_tile<D, N>(tiles.ds, ty, 16, tiles.k, tx, acc);
    }
#pragma unroll
    for (int i = 0; i < I; ++i) {
        const int row = p.first + ty + 16 * i;
        if (row < p.q_count) store_row<T, D>(dq, head, p.q_begin + row, d, tx, acc[i], a.scale);
    }
}

// ---------------------------------------------------------------------------------------------------------------
// launchers

/// Tile sizes by the padded head_dim: as large as 99 KiB of shared memory (the least that cards from sm_80 on
/// grant a block) allow.
template <int D>
struct ForwardTile {
    static constexpr int m = D <= 128 ? 64 : 32, n = m;
    static constexpr int bytes = static_cast<int>(sizeof(float)) * ((m + n) * (D + pad) + m * (n + pad));
};
template <int D>
struct BackwardTile {
    static constexpr int m = D <= 128 ? 32 : 16, n = m;
    static constexpr int bytes = static_cast<int>(sizeof(float)) * BackwardTiles<D, m, n>::floats;
};
static_assert(ForwardTile<128>::bytes <= 99 * 1024 && ForwardTile<256>::bytes <= 99 * 1024);
static_assert(BackwardTile<128>::bytes <= 99 * 1024 && BackwardTile<256>::bytes <= 99 * 1024);

/// Slots for tiles of `rows` rows: see Place.
unsigned slots(int64_t tokens, int segments, int rows) {
    return static_cast<unsigned>(tokens / rows + segments);
}

/// Grants a kernel more shared memory than the 48 KiB that need no asking.
template <class Kernel>
void grant_shared(Kernel kernel, int bytes) {
    if (bytes > 48 * 1024)
        UNSLOTH_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

template <class T, int D>
void forward(const PortableAttention& a, cudaStream_t stream) {
    const unsigned heads = static_cast<unsigned>(a.heads);
    if (a.longest_q == 1) {
        UNSLOTH_LAUNCH((decode_kernel<T, D>), dim3(static_cast<unsigned>(a.segments), heads), threads, 0, stream, a);
        return;
    }
    using Tile = ForwardTile<D>;
    const auto kernel = forward_kernel<T, D, Tile::m, Tile::n>;
    grant_shared(kernel, Tile::bytes);
    UNSLOTH_LAUNCH(kernel, dim3(slots(a.q_tokens, a.segments, Tile::m), heads), threads, Tile::bytes, stream, a);
}

template <class T, int D>
void backward(const PortableAttention& a, const PortableAttentionGradients& g, cudaStream_t stream) {
    using Tile = BackwardTile<D>;
    const unsigned heads = static_cast<unsigned>(a.heads), kv_heads = static_cast<unsigned>(a.kv_heads);
    const dim3 rows(static_cast<unsigned>(ceil_div(a.q_tokens, threads / 32)), heads);
    UNSLOTH_LAUNCH(delta_kernel<T>, rows, threads, 0, stream, a.out, g.dout, a.q_tokens, a.head_dim, g.delta);
    const auto dkdv = dkdv_kernel<T, D, Tile::m, Tile::n>;
    grant_shared(dkdv, Tile::bytes);
    UNSLOTH_LAUNCH(dkdv, dim3(slots(a.k_tokens, a.segments, Tile::n), kv_heads), threads, Tile::bytes, stream, a,
                   g.dout, g.dk, g.dv, g.delta);
    const auto dq = dq_kernel<T, D, Tile::m, Tile::n>;
    grant_shared(dq, Tile::bytes);
    UNSLOTH_LAUNCH(dq, dim3(slots(a.q_tokens, a.segments, Tile::m), heads), threads, Tile::bytes, stream, a, g.dout,
                   g.dq, g.delta);
}

/// Calls f(TypeTag<T>, padded head_dim as an integral constant).
template <class F>
void dispatch(const PortableAttention& a, F f) {
    UNSLOTH_CHECK(a.head_dim > 0 && a.head_dim <= portable_most_head_dim, "portable attention: head_dim ", a.head_dim);
    dispatch_floating(a.dtype, [&](auto type) {
        if (a.head_dim <= 64)
            f(type, std::integral_constant<int, 64>{});
        else if (a.head_dim <= 128)
            f(type, std::integral_constant<int, 128>{});
        else
            f(type, std::integral_constant<int, 256>{});
    });
}

}  // namespace

void attention_portable_forward(const PortableAttention& args, cudaStream_t stream) {
    dispatch(args, [&](auto type, auto size) {
        forward<typename decltype(type)::type, decltype(size)::value>(args, stream);
    });
}

void attention_portable_backward(const PortableAttention& args, const PortableAttentionGradients& gradients,
                                 cudaStream_t stream) {
    dispatch(args, [&](auto type, auto size) {
        backward<typename decltype(type)::type, decltype(size)::value>(args, gradients, stream);
    });
}

}  // namespace unsloth::kernels
