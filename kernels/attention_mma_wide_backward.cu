// Attention by tensor cores, backward, for heads of 129 to 256 columns. As attention_mma_backward.cu, but the
// values that a block keeps are in shared memory, since a lane's sums alone take 128 registers. So dk and dv have a
// kernel each: eight products where one kernel would take five.
//
// Ceiling: shared memory, from where both operands of every product come. A block takes 97 KB: every card from sm_80 on
// grants that.
#include "kernels/attention_mma.cuh"
#include "kernels/attention_mma_wide.h"

namespace unsloth::kernels {
namespace {

using namespace mma_attention;

constexpr int head_columns = 256;
using HeadTile = Rows<head_columns>;
constexpr int threads = 128, warp_rows = 16, block_rows = threads / 32 * warp_rows, other_rows = 16;
constexpr uint32_t kept_bytes = block_rows * HeadTile::bytes, tile_bytes = other_rows * HeadTile::bytes;
/// Two tiles that a block keeps, two stages of two tiles, statistics of the queries.
constexpr std::size_t shared_bytes = 2 * kept_bytes + 4 * tile_bytes + 2 * other_rows * sizeof(float2);
static_assert(shared_bytes <= 99 * 1024);

/// s = kept x^T: a warp's 16 rows by the tile's 16.
template <class T>
__device__ __forceinline__ void multiply(uint32_t kept, uint32_t x, uint32_t by_rows, uint32_t by_columns,
                                         float (&s)[2][4]) {
#pragma unroll
    for (int j = 0; j < 2; ++j) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
#pragma unroll
    for (int step = 0; step < HeadTile::steps; ++step) {
        uint32_t left[4], right[4];
        ldmatrix_x4(left, HeadTile::at(kept, by_rows, 0, step));
        ldmatrix_x4(right, HeadTile::at(x, by_columns, 0, step));
        mma_m16n8k16<T>(s[0], left, right[0], right[1]);
        mma_m16n8k16<T>(s[1], left, right[2], right[3]);
    }
}

/// A block: 64 keys of one kv head, 16 a warp, against all queries that see them, of all heads that share it: dv
/// (`Values`) or dk.
template <class T, bool Values>
__global__ void __launch_bounds__(threads)
    keys_kernel(PortableAttention a, HeadRows dout, HeadRows target, const float* delta) {
    extern __shared__ __align__(256) unsigned char shared[];
    const uint32_t k_kept = shared_address(shared), v_kept = k_kept + kept_bytes, tiles = v_kept + kept_bytes;
    auto* statistics = reinterpret_cast<float2*>(shared + 2 * kept_bytes + 4 * tile_bytes);
    TileRows t;
    const int kv_head = blockIdx.x % a.kv_heads, group = a.heads / a.kv_heads;
    // Early tiles are seen by the most queries: they start first.
    if (!find_tile<block_rows>(a, a.k_offsets, blockIdx.x / a.kv_heads, t)) return;
    const int lane = threadIdx.x % 32, warp_row = static_cast<int>(threadIdx.x) / 32 * warp_rows,
              first = t.first + warp_row;
    const uint32_t by_rows = HeadTile::by_rows(lane), by_columns = HeadTile::by_columns(lane);
    copy_rows<T, head_columns, block_rows, threads>(k_kept, Source<T>(a.k, kv_head, t.k_begin, t.k_count, a.head_dim),
                                                    t.first);
    if (!Values)
        copy_rows<T, head_columns, block_rows, threads>(
            v_kept, Source<T>(a.v, kv_head, t.k_begin, t.k_count, a.head_dim), t.first);

    QueryTiles<other_rows> next{visible_queries(a, t, t.first, block_rows, other_rows), kv_head * group, 0};
    next.first = next.range.low;
    const auto copy = [&](int stage) {
        const Source<T> q(a.q, next.head, t.q_begin, t.q_count, a.head_dim),
            go(dout, next.head, t.q_begin, t.q_count, a.head_dim);
        copy_rows<T, head_columns, other_rows, threads>(tiles + 2 * stage * tile_bytes, q, next.first);
        copy_rows<T, head_columns, other_rows, threads>(tiles + (2 * stage + 1) * tile_bytes, go, next.first);
        copy_statistics(a, t, delta, next, statistics + stage * other_rows);
        cp_async_commit_group();
    };
    float sums[head_columns / 8][4] = {};
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
        const Sight seen = sight(a, t, query, other_rows, first, warp_rows);
        if (!seen.some) continue;
        float s[2][4], dp[2][4] = {};
        multiply<T>(k_kept + warp_row * HeadTile::bytes, q_tile, by_rows, by_columns, s);
        if (!Values) multiply<T>(v_kept + warp_row * HeadTile::bytes, go_tile, by_rows, by_columns, dp);
        const int position = query + 2 * (lane % 4) + t.k_count - t.q_count - first - lane / 4;
        weigh_keys(s, dp, statistics + stage * other_rows, position, seen.all, span(a), a.scale * log2_e);
        uint32_t left[4];
        Values ? pack_results<T>(s[0], s[1], left) : pack_results<T>(dp[0], dp[1], left);
        add_rows<T, head_columns>(sums, left, Values ? go_tile : q_tile, by_rows, 0);
    }
    const float factor = Values ? 1.0f : a.scale;
    store_rows<T, head_columns>(target, kv_head, t.k_begin, first, t.k_count, a.head_dim, lane, sums, {factor, factor});
}

/// A block: 64 queries of one head, 16 a warp, against all keys they see.
template <class T>
__global__ void __launch_bounds__(threads)
    queries_kernel(PortableAttention a, HeadRows dout, HeadRows dq, const float* delta) {
    extern __shared__ __align__(256) unsigned char shared[];
    const uint32_t q_kept = shared_address(shared), go_kept = q_kept + kept_bytes, tiles = go_kept + kept_bytes;
    TileRows t;
    const int head = blockIdx.x % a.heads, kv_head = head / (a.heads / a.kv_heads);
    if (!find_tile<block_rows>(a, a.q_offsets, (gridDim.x - 1 - blockIdx.x) / a.heads, t)) return;
    const int lane = threadIdx.x % 32, warp_row = static_cast<int>(threadIdx.x) / 32 * warp_rows,
              first = t.first + warp_row;
    const uint32_t by_rows = HeadTile::by_rows(lane), by_columns = HeadTile::by_columns(lane);
    copy_rows<T, head_columns, block_rows, threads>(q_kept, Source<T>(a.q, head, t.q_begin, t.q_count, a.head_dim),
                                                    t.first);
    copy_rows<T, head_columns, block_rows, threads>(go_kept, Source<T>(dout, head, t.q_begin, t.q_count, a.head_dim),
                                                    t.first);
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
        copy_rows<T, head_columns, other_rows, threads>(tiles + 2 * stage * tile_bytes, k, key);
        copy_rows<T, head_columns, other_rows, threads>(tiles + (2 * stage + 1) * tile_bytes, v, key);
        cp_async_commit_group();
    };
    float sums[head_columns / 8][4] = {};
    const Range keys = visible_keys(a, t, t.first, block_rows, other_rows);
    copy(0, keys.low);
#pragma unroll 1
    for (int key = keys.low, stage = 0; key < keys.high; key += other_rows, stage ^= 1) {
        cp_async_wait_group<0>();
        __syncthreads();
        if (key + other_rows < keys.high) copy(stage ^ 1, key + other_rows);
        const uint32_t k_tile = tiles + 2 * stage * tile_bytes;
        const Sight seen = sight(a, t, first, warp_rows, key, other_rows);
        if (!seen.some) continue;
        float s[2][4], dp[2][4];
        multiply<T>(q_kept + warp_row * HeadTile::bytes, k_tile, by_rows, by_columns, s);
        multiply<T>(go_kept + warp_row * HeadTile::bytes, k_tile + tile_bytes, by_rows, by_columns, dp);
        const int position = first + lane / 4 + t.k_count - t.q_count - key - 2 * (lane % 4);
        weigh_queries(s, dp, lse, d, position, seen.all, span(a), a.scale * log2_e);
        uint32_t ds[4];
        pack_results<T>(dp[0], dp[1], ds);
        add_rows<T, head_columns>(sums, ds, k_tile, by_rows, 0);
    }
    store_rows<T, head_columns>(dq, head, t.q_begin, first, t.q_count, a.head_dim, lane, sums, {a.scale, a.scale});
}

template <class T>
void backward(const PortableAttention& a, const PortableAttentionGradients& g, cudaStream_t stream) {
    Launch how{.threads = threads, .shared_bytes = shared_bytes, .stream = stream};
    how.grid = dim3(slots(a.q_tokens, a.segments, block_rows) * a.heads);
    launch_kernel(queries_kernel<T>, how, a, g.dout, g.dq, g.delta);
    how.grid = dim3(slots(a.k_tokens, a.segments, block_rows) * a.kv_heads);
    launch_kernel(keys_kernel<T, false>, how, a, g.dout, g.dk, g.delta);
    launch_kernel(keys_kernel<T, true>, how, a, g.dout, g.dv, g.delta);
}

}  // namespace

void attention_mma_wide_backward(const PortableAttention& args, const PortableAttentionGradients& gradients,
                                 cudaStream_t stream) {
    if (args.dtype == spec::DType::bf16)
        backward<__nv_bfloat16>(args, gradients, stream);
    else
        backward<__half>(args, gradients, stream);
}

}  // namespace unsloth::kernels
