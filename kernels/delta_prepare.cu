// The delta rule's chunks before their states are known (Yang et al., "Parallelizing Linear Transformers with the Delta
// Rule over Sequence Length", 2024, and "Gated Delta Networks", 2024): a block a chunk of a key head.
//
// With c the running sum of log decays in the chunk, D_ij = exp(c_i - c_j) and A = tril(beta_i (k_i k_j) D_ij, -1), it
// writes (I + A)^-1 diag(beta) and tril((q_i k_j) D_ij) of each value head. Products take queries and keys as they are
// in memory, without a rounding; their lengths are factors in fp32. The inverse is by substitution in fp32, a thread a
// column. Ceiling: memory, 32 bytes a token and value head to write; about a tenth of the scan's time.
#include "kernels/delta_gates.cuh"
#include "kernels/delta_tiles.cuh"

namespace unsloth::kernels {
namespace delta {
namespace {

constexpr int prepare_threads = 256;
constexpr int at_once = 2;  // value heads

struct PrepareShared {
    bf16 keys[tile_elements(chunk, dim)], queries[tile_elements(chunk, dim)];
    float A[at_once][chunk][chunk];
    float sums[at_once][chunk], beta[at_once][chunk];
    float query[chunk], key[chunk];
};

/// factors[row] = 1 / length, times `scale`.
__device__ __forceinline__ void measure_rows(const bf16* tile, float scale, float* factors) {
    const int lane = threadIdx.x % 32;
    for (int row = threadIdx.x / 32; row < chunk; row += prepare_threads / 32) {
        const Pack<bf16, 4> x = load_pack<4>(tile + row * pitch(dim) + 4 * lane);
        float squares = 0.0f;
#pragma unroll
        for (int k = 0; k < 4; ++k) squares += to_float(x.v[k]) * to_float(x.v[k]);
        squares = group_sum(squares);
        if (lane == 0) factors[row] = scale / sqrtf(squares + length_eps);
    }
}

/// The gates of 64 tokens by one warp; tokens that are not there change nothing.
template <class T>
__device__ __forceinline__ void read_gates(const DeltaRead& in, const Chunk& c, int head, float* sums, float* beta) {
    const int lane = threadIdx.x % 32;
    float log_decay[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int token = 2 * lane + i;
        Gates gates{};
        if (token < c.count) gates = gates_of<T>(in, c.begin + token, head);
        beta[token] = gates.beta;
        log_decay[i] = gates.log_decay;
    }
    const float both = log_decay[0] + log_decay[1];
    float before = both;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
        const float other = __shfl_up_sync(all_lanes, before, offset);
        if (lane >= offset) before += other;
    }
    sums[2 * lane] = before - log_decay[1];
    sums[2 * lane + 1] = before;
}

/// Column `column` of the inverse of a unit lower triangle, times a factor. A: below the diagonal, 0 elsewhere.
__device__ __forceinline__ void solve_column(const float (*A)[chunk], int column, float factor, bf16* to) {
    float x[chunk];
#pragma unroll
    for (int i = 0; i < chunk; ++i) {
        float sum = i == column ? 1.0f : 0.0f, other = 0.0f;
#pragma unroll
        for (int j = 0; j + 1 < i; j += 2) {
            sum -= A[i][j] * x[j];
            other -= A[i][j + 1] * x[j + 1];
        }
        if (i % 2 == 1) sum -= A[i][i - 1] * x[i - 1];
        x[i] = sum + other;
        to[i * chunk + column] = from_float<bf16>(x[i] * factor);
    }
}

template <class T>
__global__ void __launch_bounds__(prepare_threads, 1) prepare_kernel(const DeltaRule p) {
    extern __shared__ __align__(16) unsigned char delta_shared[];
    PrepareShared& s = *reinterpret_cast<PrepareShared*>(delta_shared);
    const int slot = static_cast<int>(blockIdx.x), key_head = static_cast<int>(blockIdx.y);
    const Chunk c = chunk_of(p.segments, slot);
    if (c.count == 0) return;
    load_tile<chunk, dim, prepare_threads>(s.queries, row_of<T>(p.in.mixed, c.begin, key_head * dim), p.in.mixed.stride,
                                           c.count);
    load_tile<chunk, dim, prepare_threads>(s.keys, row_of<T>(p.in.mixed, c.begin, p.shape.keys() + key_head * dim),
                                           p.in.mixed.stride, c.count);
    cp_async_commit_group();
    cp_async_wait_group<0>();
    __syncthreads();
    measure_rows(s.queries, rsqrtf(static_cast<float>(dim)), s.query);
    measure_rows(s.keys, 1.0f, s.key);
    const int warp = threadIdx.x / 32, row0 = warp % 4 * 16, column0 = warp / 4 * 32;
    float keys[1][4][4], queries[1][4][4];
    clear(keys);
    clear(queries);
    multiply<As::is, pitch(dim), As::transposed, pitch(dim), dim>(keys, s.keys, row0, s.keys, column0);
    multiply<As::is, pitch(dim), As::transposed, pitch(dim), dim>(queries, s.queries, row0, s.keys, column0);
    float* const lengths = p.scratch.lengths + (int64_t{slot} * p.shape.key_heads + key_head) * 2 * chunk;
    __syncthreads();
    if (threadIdx.x < 2 * chunk)
        lengths[threadIdx.x] = threadIdx.x < chunk ? s.query[threadIdx.x] : s.key[threadIdx.x - chunk];
    for (int first = 0; first < p.shape.served(); first += at_once) {
        const int heads = min(at_once, p.shape.served() - first), head0 = key_head * p.shape.served() + first;
        if (warp < heads) read_gates<T>(p.in, c, head0 + warp, s.sums[warp], s.beta[warp]);
        __syncthreads();
        for (int h = 0; h < heads; ++h) {
            const int64_t at = int64_t{slot} * p.shape.value_heads + head0 + h;
            const float *const sums = s.sums[h], *const beta = s.beta[h];
            if (threadIdx.x < 2 * chunk)
                p.scratch.gates[at * 2 * chunk + threadIdx.x] =
                    threadIdx.x < chunk ? sums[threadIdx.x] : beta[threadIdx.x - chunk];
            each_pair(keys, row0, column0, [&](int i, int j, float x, float y, int) {
                const float factor = beta[i] * s.key[i];
                s.A[h][i][j] = j < i ? factor * s.key[j] * x * expf(sums[i] - sums[j]) : 0.0f;
                s.A[h][i][j + 1] = j + 1 < i ? factor * s.key[j + 1] * y * expf(sums[i] - sums[j + 1]) : 0.0f;
            });
            bf16* const scores = p.scratch.scores + at * chunk * chunk;
            each_pair(queries, row0, column0, [&](int i, int j, float x, float y, int) {
                write_pair(scores + i * chunk + j, j <= i ? s.query[i] * s.key[j] * x * expf(sums[i] - sums[j]) : 0.0f,
                           j < i ? s.query[i] * s.key[j + 1] * y * expf(sums[i] - sums[j + 1]) : 0.0f);
            });
        }
        __syncthreads();
        const int h = static_cast<int>(threadIdx.x) / chunk, column = static_cast<int>(threadIdx.x) % chunk;
        if (h < heads)
            solve_column(s.A[h], column, s.beta[h][column],
                         p.scratch.solve + (int64_t{slot} * p.shape.value_heads + head0 + h) * chunk * chunk);
        __syncthreads();
    }
}

}  // namespace
}  // namespace delta

void delta_prepare(const DeltaRule& p, cudaStream_t stream) {
    const auto run = [&](auto kernel) {
        launch_kernel(kernel,
                      {.grid = dim3(static_cast<unsigned>(p.slots), static_cast<unsigned>(p.shape.key_heads)),
                       .threads = dim3(delta::prepare_threads),
                       .shared_bytes = sizeof(delta::PrepareShared),
                       .stream = stream},
                      p);
    };
    p.in.type == spec::DType::bf16 ? run(delta::prepare_kernel<__nv_bfloat16>) : run(delta::prepare_kernel<__half>);
}

}  // namespace unsloth::kernels
