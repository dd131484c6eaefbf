// Attention by tensor cores, forward.
//
// Ceiling: mma.sync's rate, about 0.6 of wgmma's on Hopper. A warp takes 32 rows (16 of wide heads), so that an
// operand from shared memory is used in two products; two blocks to a multiprocessor work while the other waits.
#include "kernels/attention_mma.cuh"

namespace unsloth::kernels {
namespace {

using namespace mma_attention;

constexpr int threads = 128, block_keys = 32;
/// Of 16 rows that a warp takes: one for wide heads, whose sums would not fit its registers twice.
template <int D>
constexpr int row_tiles = D <= 128 ? 2 : 1;
template <int D>
constexpr int warp_rows = 16 * row_tiles<D>;
template <int D>
constexpr int block_rows = threads / 32 * warp_rows<D>;

/// A warp's rows against 32 keys at a time: the scores, and what they have come to so far.
template <class T, int D>
struct RowWorker {
    static constexpr int tiles = row_tiles<D>;
    const PortableAttention& a;
    const TileRows& t;
    const int lane, first;  ///< of the warp's rows
    const float scale;      ///< of scores to powers of 2
    const uint32_t by_rows, by_columns;
    float out[tiles][D / 8][4] = {}, row_max[tiles][2], row_sum[tiles][2] = {};
    float s[tiles][block_keys / 8][4];

    __device__ __forceinline__ RowWorker(const PortableAttention& args, const TileRows& tile)
        : a(args),
          t(tile),
          lane(threadIdx.x % 32),
          first(tile.first + static_cast<int>(threadIdx.x) / 32 * warp_rows<D>),
          scale(args.scale * log2_e),
          by_rows(Rows<D>::by_rows(lane)),
          by_columns(Rows<D>::by_columns(lane)) {
#pragma unroll
        for (int i = 0; i < 2 * tiles; ++i) row_max[i / 2][i % 2] = -INFINITY;
    }

    /// s = q k^T; q: of this warp.
    __device__ __forceinline__ void score(uint32_t q, uint32_t k) {
#pragma unroll
        for (int i = 0; i < tiles; ++i)
#pragma unroll
            for (int j = 0; j < block_keys / 8; ++j) s[i][j][0] = s[i][j][1] = s[i][j][2] = s[i][j][3] = 0.0f;
#pragma unroll
        for (int step = 0; step < Rows<D>::steps; ++step) {
            uint32_t left[tiles][4];
#pragma unroll
            for (int i = 0; i < tiles; ++i) ldmatrix_x4(left[i], Rows<D>::at(q, by_rows, 16 * i, step));
#pragma unroll
            for (int j = 0; j < block_keys / 16; ++j) {
                uint32_t right[4];
                ldmatrix_x4(right, Rows<D>::at(k, by_columns, 16 * j, step));
#pragma unroll
                for (int i = 0; i < tiles; ++i) {
                    mma_m16n8k16<T>(s[i][2 * j], left[i], right[0], right[1]);
                    mma_m16n8k16<T>(s[i][2 * j + 1], left[i], right[2], right[3]);
                }
            }
        }
    }

    __device__ __forceinline__ void hide(int key) {
#pragma unroll
        for (int i = 0; i < tiles; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                // The last column this lane's row sees, and the last one before those.
                const int last = first + 16 * i + 8 * half + lane / 4 + t.k_count - t.q_count - key - 2 * (lane % 4);
                const int before = a.window > 0 ? last - a.window : INT_MIN;
#pragma unroll
                for (int j = 0; j < block_keys / 8; ++j)
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        if (8 * j + e > last || 8 * j + e <= before) s[i][j][2 * half + e] = -INFINITY;
            }
    }

    /// s = exp(scores - maximum), and what was summed before is scaled to the new maximum.
    __device__ __forceinline__ void weigh() {
        float rescale[tiles][2];
        bool changed = false;
#pragma unroll
        for (int i = 0; i < tiles; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float highest = row_max[i][half];
#pragma unroll
                for (int j = 0; j < block_keys / 8; ++j)
                    highest = fmaxf(highest, fmaxf(s[i][j][2 * half], s[i][j][2 * half + 1]));
                highest = group_max<4>(highest);
                // Not fused: a maximum that stays leaves the sums exactly as they are.
                const float base = highest == -INFINITY ? 0.0f : __fmul_rn(highest, scale);  // no key was seen yet
                rescale[i][half] = ex2_approx(__fmul_rn(row_max[i][half], scale) - base);
                changed |= highest != row_max[i][half];
                row_max[i][half] = highest;
                row_sum[i][half] *= rescale[i][half];
#pragma unroll
                for (int j = 0; j < block_keys / 8; ++j)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; ++e) {
                        s[i][j][e] = ex2_approx(s[i][j][e] * scale - base);
                        row_sum[i][half] += s[i][j][e];
                    }
            }
        if (!__any_sync(all_lanes, changed)) return;  // as for most keys after a row's first ones
#pragma unroll
        for (int i = 0; i < tiles; ++i)
#pragma unroll
            for (int j = 0; j < D / 8; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) out[i][j][e] *= rescale[i][e / 2];
    }

    /// out += s v
    __device__ __forceinline__ void add_values(uint32_t v) {
#pragma unroll
        for (int row = 0; row < block_keys; row += 16) {
            uint32_t p[tiles][4];
#pragma unroll
            for (int i = 0; i < tiles; ++i) pack_results<T>(s[i][row / 8], s[i][row / 8 + 1], p[i]);
#pragma unroll
            for (int step = 0; step < Rows<D>::steps; ++step) {
                uint32_t b[4];
                ldmatrix_x4_trans(b, Rows<D>::at(v, by_rows, row, step));
#pragma unroll
                for (int i = 0; i < tiles; ++i) {
                    mma_m16n8k16<T>(out[i][2 * step], p[i], b[0], b[1]);
                    mma_m16n8k16<T>(out[i][2 * step + 1], p[i], b[2], b[3]);
                }
            }
        }
    }

    __device__ __forceinline__ void store(int head) {
#pragma unroll
        for (int i = 0; i < tiles; ++i) {
            float factors[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float sum = group_sum<4>(row_sum[i][half]);
                const int row = first + 16 * i + 8 * half + lane / 4;
                factors[half] = __fdividef(1.0f, sum);
                if (a.lse.data != nullptr && lane % 4 == 0 && row < t.q_count)
                    lse_at(a.lse, t, head, row) = row_max[i][half] * a.scale + logf(sum);
            }
            store_rows<T, D>(a.out, head, t.q_begin, first + 16 * i, t.q_count, a.head_dim, lane, out[i], factors);
        }
    }
};

/// A block: 128 queries of one head, 64 of a wide one, against all keys they see, which come in two stages.
template <class T, int D>
__global__ void __launch_bounds__(threads, D <= 64 ? 3 : 2) forward_kernel(PortableAttention a) {
    constexpr uint32_t tile_bytes = block_keys * Rows<D>::bytes;
    extern __shared__ __align__(256) unsigned char shared[];
    const uint32_t q_tile = shared_address(shared), tiles = q_tile + block_rows<D> * Rows<D>::bytes;
    TileRows t;
    const int head = blockIdx.x % a.heads, kv_head = head / (a.heads / a.kv_heads);
    // Late tiles see the most keys: they start first.
    if (!find_tile<block_rows<D>>(a, a.q_offsets, (gridDim.x - 1 - blockIdx.x) / a.heads, t)) return;
    const Source<T> k(a.k, kv_head, t.k_begin, t.k_count, a.head_dim),
        v(a.v, kv_head, t.k_begin, t.k_count, a.head_dim);
    const auto copy = [&](int stage, int key) {
        copy_rows<T, D, block_keys, threads>(tiles + 2 * stage * tile_bytes, k, key);
        copy_rows<T, D, block_keys, threads>(tiles + (2 * stage + 1) * tile_bytes, v, key);
        cp_async_commit_group();
    };
    const Range keys = visible_keys(a, t, t.first, block_rows<D>, block_keys);
    copy_rows<T, D, block_rows<D>, threads>(q_tile, Source<T>(a.q, head, t.q_begin, t.q_count, a.head_dim), t.first);
    copy(0, keys.low);

    RowWorker<T, D> worker(a, t);
    const uint32_t own_q = q_tile + threadIdx.x / 32 * warp_rows<D> * Rows<D>::bytes;
#pragma unroll 1
    for (int key = keys.low, stage = 0; key < keys.high; key += block_keys, stage ^= 1) {
        cp_async_wait_group<0>();
        __syncthreads();
        if (key + block_keys < keys.high) copy(stage ^ 1, key + block_keys);
        const Sight seen = sight(a, t, worker.first, warp_rows<D>, key, block_keys);
        if (!seen.some) continue;
        const uint32_t k_tile = tiles + 2 * stage * tile_bytes;
        worker.score(own_q, k_tile);
        if (!seen.all) worker.hide(key);
        worker.weigh();
        worker.add_values(k_tile + tile_bytes);
    }
    worker.store(head);
}

bool aligned(const HeadRows& x, spec::DType type) {
    return aligned_16(x.data, {x.row_stride, x.head_stride}, type);
}

}  // namespace

bool attention_mma_serves(spec::DType dtype, int head_dim) {
    return (dtype == spec::DType::bf16 || dtype == spec::DType::f16) && head_dim % 8 == 0 && head_dim <= 256;
}
bool attention_mma_serves(const PortableAttention& a) {
    return attention_mma_serves(a.dtype, a.head_dim) && aligned(a.q, a.dtype) && aligned(a.k, a.dtype) &&
           aligned(a.v, a.dtype) && aligned(a.out, a.dtype);
}
bool attention_mma_serves(const PortableAttention& a, const PortableAttentionGradients& g) {
    return attention_mma_serves(a) && aligned(g.dout, a.dtype) && aligned(g.dq, a.dtype) && aligned(g.dk, a.dtype) &&
           aligned(g.dv, a.dtype);
}

void attention_mma_forward(const PortableAttention& args, cudaStream_t stream) {
    dispatch(args, [&](auto type, auto size) {
        using T = typename decltype(type)::type;
        constexpr int d = decltype(size)::value;
        launch_kernel(forward_kernel<T, d>,
                      {.grid = dim3(slots(args.q_tokens, args.segments, block_rows<d>) * args.heads),
                       .threads = threads,
                       .shared_bytes = (block_rows<d> + 4 * block_keys) * Rows<d>::bytes,
                       .stream = stream},
                      args);
    });
}

}  // namespace unsloth::kernels
