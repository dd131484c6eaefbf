// Attention by tensor cores, backward: probabilities are recomputed tile by tile from the row statistics; dk with dv,
// and dq, have kernels of their own, so that no sum needs atomics. That is seven products where one kernel would take
// five.
//
// Ceiling: shared memory. A warp holds the operands of 16 keys (dk and dv) or 16 queries (dq) in registers and reads
// the other side's 256 bytes a product: 2 of mma.sync's 1.6 to 2 cycles. Scores are computed as s^T where keys are the
// rows: what the registers then hold is the left operand of the next product.
#include "kernels/attention_mma.cuh"
#include "kernels/attention_mma_wide.h"

namespace unsloth::kernels {
namespace {

using namespace mma_attention;

constexpr int threads = 256, warp_rows = 16, block_rows = threads / 32 * warp_rows, other_rows = 64;

/// A row's lanes, 16 bytes each.
constexpr int lanes_of_delta(int d) {
    return d <= 64 ? 8 : d <= 128 ? 16 : 32;
}
/// delta[h][t] = sum over d of out * dout.
template <class T, int D>
__global__ void __launch_bounds__(threads)
    delta_kernel(HeadRows out, HeadRows dout, int64_t tokens, int d, float* delta) {
    constexpr int lanes = lanes_of_delta(D);
    const int64_t token = int64_t{blockIdx.x} * (threads / lanes) + threadIdx.x / lanes;
    const int head = blockIdx.y, column = threadIdx.x % lanes * 8;
    float sum = 0.0f;
    if (token < tokens && column < d) {
        const auto x =
            load_pack<8>(static_cast<const T*>(out.data) + token * out.row_stride + head * out.head_stride + column);
        const auto y =
            load_pack<8>(static_cast<const T*>(dout.data) + token * dout.row_stride + head * dout.head_stride + column);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum += to_float(x.v[i]) * to_float(y.v[i]);
    }
    sum = group_sum<lanes>(sum);
    if (token < tokens && threadIdx.x % lanes == 0) delta[head * tokens + token] = sum;
}

/// The two tiles of 128 rows that a block keeps (one warp's 16 rows of each), by way of shared memory into registers.
template <class T, int D>
__device__ __forceinline__ void load_kept(uint32_t shared, const Source<T>& x, const Source<T>& y, int first,
                                          uint32_t (&x_rows)[D / 16][4], uint32_t (&y_rows)[D / 16][4]) {
    copy_rows<T, D, block_rows, threads>(shared, x, first);
    copy_rows<T, D, block_rows, threads>(shared + block_rows * Rows<D>::bytes, y, first);
    cp_async_commit_group();
    cp_async_wait_group<0>();
    __syncthreads();
    const uint32_t place = Rows<D>::by_rows(threadIdx.x % 32);
    const int row = threadIdx.x / 32 * warp_rows;
#pragma unroll
    for (int step = 0; step < Rows<D>::steps; ++step) {
        ldmatrix_x4(x_rows[step], Rows<D>::at(shared, place, row, step));
        ldmatrix_x4(y_rows[step], Rows<D>::at(shared + block_rows * Rows<D>::bytes, place, row, step));
    }
    __syncthreads();
}

/// s = kept x^T and dp = other_kept y^T, over 8 Columns rows of the tiles x and y from `row` on.
template <class T, int D, int Columns>
__device__ __forceinline__ void multiply_pair(const uint32_t (&kept)[D / 16][4],
                                              const uint32_t (&other_kept)[D / 16][4], uint32_t x, uint32_t y,
                                              uint32_t by_columns, int row, float (&s)[Columns][4],
                                              float (&dp)[Columns][4]) {
#pragma unroll
    for (int j = 0; j < Columns; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[j][e] = dp[j][e] = 0.0f;
    }
#pragma unroll
    for (int step = 0; step < Rows<D>::steps; ++step) {
#pragma unroll
        for (int j = 0; j < Columns; j += 2) {
            uint32_t b[4];
            ldmatrix_x4(b, Rows<D>::at(x, by_columns, row + 8 * j, step));
            mma_m16n8k16<T>(s[j], kept[step], b[0], b[1]);
            mma_m16n8k16<T>(s[j + 1], kept[step], b[2], b[3]);
            ldmatrix_x4(b, Rows<D>::at(y, by_columns, row + 8 * j, step));
            mma_m16n8k16<T>(dp[j], other_kept[step], b[0], b[1]);
            mma_m16n8k16<T>(dp[j + 1], other_kept[step], b[2], b[3]);
        }
    }
}

/// A block: 128 keys of one kv head, 16 a warp, against all queries that see them, of all heads that share it.
template <class T, int D>
__global__ void __launch_bounds__(threads)
    dkdv_kernel(PortableAttention a, HeadRows dout, HeadRows dk, HeadRows dv, const float* delta) {
    constexpr uint32_t tile_bytes = other_rows * Rows<D>::bytes;
    extern __shared__ __align__(256) unsigned char shared[];
    const uint32_t tiles = shared_address(shared);  // two stages of queries and their dout
    auto* statistics = reinterpret_cast<float2*>(shared + 4 * tile_bytes);
    TileRows t;
    const int kv_head = blockIdx.x % a.kv_heads, group = a.heads / a.kv_heads;
    // Early tiles are seen by the most queries: they start first.
    if (!find_tile<block_rows>(a, a.k_offsets, blockIdx.x / a.kv_heads, t)) return;
    const int lane = threadIdx.x % 32, first = t.first + static_cast<int>(threadIdx.x) / 32 * warp_rows;
    const uint32_t by_rows = Rows<D>::by_rows(lane), by_columns = Rows<D>::by_columns(lane);
    uint32_t k_rows[D / 16][4], v_rows[D / 16][4];
    load_kept<T, D>(tiles, Source<T>(a.k, kv_head, t.k_begin, t.k_count, a.head_dim),
                    Source<T>(a.v, kv_head, t.k_begin, t.k_count, a.head_dim), t.first, k_rows, v_rows);

    QueryTiles<other_rows> next{visible_queries(a, t, t.first, block_rows, other_rows), kv_head * group, 0};
    next.first = next.range.low;
    const auto copy = [&](int stage) {
        const Source<T> q(a.q, next.head, t.q_begin, t.q_count, a.head_dim),
            go(dout, next.head, t.q_begin, t.q_count, a.head_dim);
        copy_rows<T, D, other_rows, threads>(tiles + 2 * stage * tile_bytes, q, next.first);
        copy_rows<T, D, other_rows, threads>(tiles + (2 * stage + 1) * tile_bytes, go, next.first);
        copy_statistics(a, t, delta, next, statistics + stage * other_rows);
        cp_async_commit_group();
    };
    float dk_sums[D / 8][4] = {}, dv_sums[D / 8][4] = {};
    const float scale = a.scale * log2_e;
    const int last_head = (kv_head + 1) * group;
    copy(0);
#pragma unroll 1
    for (int stage = 0; next.head < last_head; stage ^= 1) {
        const int query = next.first;
        cp_async_wait_group<0>();
        __syncthreads();
        next.advance();
        if (next.head < last_head) copy(stage ^ 1);
        const uint32_t q_tile = tiles + 2 * stage * tile_bytes, go_tile = q_tile + tile_bytes;
#pragma unroll
        for (int row = 0; row < other_rows; row += 16) {
            const Sight seen = sight(a, t, query + row, 16, first, warp_rows);
            if (!seen.some) continue;
            float s[2][4], dp[2][4];
            multiply_pair<T, D, 2>(k_rows, v_rows, q_tile, go_tile, by_columns, row, s, dp);
            const int position = query + row + 2 * (lane % 4) + t.k_count - t.q_count - first - lane / 4;
            weigh_keys(s, dp, statistics + stage * other_rows + row, position, seen.all, span(a), scale);
            uint32_t p[4], ds[4];
            pack_results<T>(s[0], s[1], p);
            pack_results<T>(dp[0], dp[1], ds);
            add_rows<T, D>(dv_sums, p, go_tile, by_rows, row);
            add_rows<T, D>(dk_sums, ds, q_tile, by_rows, row);
        }
    }
    store_rows<T, D>(dk, kv_head, t.k_begin, first, t.k_count, a.head_dim, lane, dk_sums, {a.scale, a.scale});
    store_rows<T, D>(dv, kv_head, t.k_begin, first, t.k_count, a.head_dim, lane, dv_sums, {1.0f, 1.0f});
}

/// A block: 128 queries of one head, 16 a warp, against all keys they see.
template <class T, int D>
__global__ void __launch_bounds__(threads)
    dq_kernel(PortableAttention a, HeadRows dout, HeadRows dq, const float* delta) {
    constexpr uint32_t tile_bytes = other_rows * Rows<D>::bytes;
    constexpr int columns = 4;  // tiles of 8 keys that a warp multiplies at once
    extern __shared__ __align__(256) unsigned char shared[];
    const uint32_t tiles = shared_address(shared);  // two stages of keys and values
    TileRows t;
    const int head = blockIdx.x % a.heads, kv_head = head / (a.heads / a.kv_heads);
    if (!find_tile<block_rows>(a, a.q_offsets, (gridDim.x - 1 - blockIdx.x) / a.heads, t)) return;
    const int lane = threadIdx.x % 32, first = t.first + static_cast<int>(threadIdx.x) / 32 * warp_rows;
    const uint32_t by_rows = Rows<D>::by_rows(lane), by_columns = Rows<D>::by_columns(lane);
    uint32_t q_rows[D / 16][4], go_rows[D / 16][4];
    load_kept<T, D>(tiles, Source<T>(a.q, head, t.q_begin, t.q_count, a.head_dim),
                    Source<T>(dout, head, t.q_begin, t.q_count, a.head_dim), t.first, q_rows, go_rows);
    float lse[2], d[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = first + lane / 4 + 8 * half;
        lse[half] = row < t.q_count ? lse_at(a.lse, t, head, row) * log2_e : INFINITY;
        d[half] = row < t.q_count ? delta[head * a.q_tokens + t.q_begin + row] : 0.0f;
    }

    const Source<T> k(a.k, kv_head, t.k_begin, t.k_count, a.head_dim),
        v(a.v, kv_head, t.k_begin, t.k_count, a.head_dim);
    const auto copy = [&](int stage, int key) {
        copy_rows<T, D, other_rows, threads>(tiles + 2 * stage * tile_bytes, k, key);
        copy_rows<T, D, other_rows, threads>(tiles + (2 * stage + 1) * tile_bytes, v, key);
        cp_async_commit_group();
    };
    float sums[D / 8][4] = {};
    const float scale = a.scale * log2_e;
    const Range keys = visible_keys(a, t, t.first, block_rows, other_rows);
    copy(0, keys.low);
#pragma unroll 1
    for (int key = keys.low, stage = 0; key < keys.high; key += other_rows, stage ^= 1) {
        cp_async_wait_group<0>();
        __syncthreads();
        if (key + other_rows < keys.high) copy(stage ^ 1, key + other_rows);
        const uint32_t k_tile = tiles + 2 * stage * tile_bytes;
#pragma unroll 1
        for (int row = 0; row < other_rows; row += 8 * columns) {
            const Sight seen = sight(a, t, first, warp_rows, key + row, 8 * columns);
            if (!seen.some) continue;
            float s[columns][4], dp[columns][4];
            multiply_pair<T, D, columns>(q_rows, go_rows, k_tile, k_tile + tile_bytes, by_columns, row, s, dp);
            const int position = first + lane / 4 + t.k_count - t.q_count - key - row - 2 * (lane % 4);
            weigh_queries(s, dp, lse, d, position, seen.all, span(a), scale);
#pragma unroll
            for (int j = 0; j < columns; j += 2) {
                uint32_t ds[4];
                pack_results<T>(dp[j], dp[j + 1], ds);
                add_rows<T, D>(sums, ds, k_tile, by_rows, row + 8 * j);
            }
        }
    }
    store_rows<T, D>(dq, head, t.q_begin, first, t.q_count, a.head_dim, lane, sums, {a.scale, a.scale});
}

template <class T, int D>
void backward(const PortableAttention& a, const PortableAttentionGradients& g, cudaStream_t stream) {
    constexpr int rows_of_delta = threads / lanes_of_delta(D);
    UNSLOTH_LAUNCH((delta_kernel<T, D>), dim3(ceil_div(a.q_tokens, rows_of_delta), a.heads), threads, 0, stream, a.out,
                   g.dout, a.q_tokens, a.head_dim, g.delta);
    if constexpr (D > 128) {
        attention_mma_wide_backward(a, g, stream);
    } else {
        Launch how{.threads = threads, .shared_bytes = 4 * other_rows * Rows<D>::bytes, .stream = stream};
        how.grid = dim3(slots(a.q_tokens, a.segments, block_rows) * a.heads);
        launch_kernel(dq_kernel<T, D>, how, a, g.dout, g.dq, g.delta);
        how.shared_bytes += 2 * other_rows * sizeof(float2);
        how.grid = dim3(slots(a.k_tokens, a.segments, block_rows) * a.kv_heads);
        launch_kernel(dkdv_kernel<T, D>, how, a, g.dout, g.dk, g.dv, g.delta);
    }
}

}  // namespace

void attention_mma_backward(const PortableAttention& args, const PortableAttentionGradients& gradients,
                            cudaStream_t stream) {
    dispatch(args, [&](auto type, auto size) {
        backward<typename decltype(type)::type, decltype(size)::value>(args, gradients, stream);
    });
}

}  // namespace unsloth::kernels
