// Gradients of the delta rule but for values', when the states around each chunk are known: a block a chunk of a key
// head, one value head that it serves after the other, whose gradients of queries and keys stay in registers.
//
// With the names of delta_scan.cu, Y = V - l K S0, U = T Y, D_ij = exp(c_i - c_j), and dV the gradient of values:
//   dP = tril(dO U^T), E = -tril(dV U^T, -1), W = dP P, X = E (K K^T) D
//   dQ = l dO S0^T + (dP D) K, dK = (dP D)^T Q + (E D + (E D)^T) K - l dV S0^T + e U dS1^T
//   the gradient of b = (1 - beta) (the sums of dV Y over columns + the row sums of X)
//   the gradient of c = dQ's first term times Q + the third of dK's times K - the last times K + W's and X's row sums
//   - their column sums; c_64 also has the sum of the last terms, and l_64 times the sum of S0 dS1
// Ceiling: tensor cores by mma, 16 MFLOP a chunk and value head. One block of 16 warps a multiprocessor.
#include "kernels/delta_gates.cuh"
#include "kernels/delta_tiles.cuh"

namespace unsloth::kernels {
namespace delta {
namespace {

constexpr int gradient_threads = 512;
constexpr int groups = gradient_threads / 128;  ///< of columns

struct GradientShared {
    bf16 keys[tile_elements(chunk, dim)], queries[tile_elements(chunk, dim)];
    bf16 values[tile_elements(chunk, dim)];  ///< then Y, then U
    bf16 dout[tile_elements(chunk, dim)], dvalues[tile_elements(chunk, dim)];
    bf16 state[tile_elements(dim, dim)];       ///< S0, then dS1
    bf16 solve[tile_elements(chunk, chunk)];   ///< then E D + (E D)^T
    bf16 scores[tile_elements(chunk, chunk)];  ///< then dP D
    Weights weights;
    float sums[chunk], query[chunk], key[chunk];
    float by_row[3][groups][chunk];  ///< parts of sums over columns
    float by_column[4][chunk];       ///< parts of sums over rows
    float dc[chunk];
    float reduce[32];
};

/// What a thread adds up of its two rows.
struct RowSums {
    float dc[2] = {}, beta[2] = {}, end[2] = {};
};

/// parts[part of this thread's columns][row] = a thread's sum over its columns.
__device__ __forceinline__ void write_row_sums(float (*parts)[chunk], const float (&sums)[2], int row, int group) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float sum = group_sum<4>(sums[half]);
        if (lane % 4 == 0) parts[group][row + 8 * half + lane / 4] = sum;
    }
}
__device__ __forceinline__ float sum_of(const float (*parts)[chunk], int row) {
    return (parts[0][row] + parts[1][row]) + (parts[2][row] + parts[3][row]);
}

template <int Columns>
__device__ __forceinline__ void multiply_rows(float (&x)[1][Columns][4], const float* factors, float sign, int row) {
    each_pair(x, row, 0, [&](int i, int, float& a, float& b, int) {
        a *= sign * factors[i];
        b *= sign * factors[i];
    });
}
/// sums += sign * x times the tile, over columns; all += x.
template <int Columns>
__device__ __forceinline__ void add_with_dots(float (&all)[1][Columns][4], float (&x)[1][Columns][4], const bf16* tile,
                                              float (&sums)[2], int row, int column) {
    each_pair(x, row, column, [&](int i, int j, float a, float b, int half) {
        const float2 with = read_pair(tile + i * pitch(dim) + j);
        sums[half] += a * with.x + b * with.y;
    });
#pragma unroll
    for (int n = 0; n < Columns; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) all[0][n][e] += x[0][n][e];
}

/// The products between tokens: `scores` and `solve` become what multiplies keys and queries.
__device__ __forceinline__ void between_tokens(GradientShared& s, RowSums& sums, int row, int group) {
    const int column = 16 * group, lane = static_cast<int>(threadIdx.x) % 32;
    float dP[1][2][4], E[1][2][4], with[1][2][4];
    clear(dP);
    clear(E);
    clear(with);
    multiply<As::is, pitch(dim), As::transposed, pitch(dim), dim>(dP, s.dout, row, s.values, column);
    multiply<As::is, pitch(dim), As::transposed, pitch(dim), dim>(E, s.dvalues, row, s.values, column);
    multiply<As::is, pitch(dim), As::transposed, pitch(dim), dim>(with, s.keys, row, s.keys, column);
    float columns[2][2] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                const int i = row + 8 * half + lane / 4, j = column + 8 * n + 2 * (lane % 4) + k, e = 2 * half + k;
                const float decay = i >= j ? expf(s.sums[i] - s.sums[j]) : 0.0f, both = s.key[i] * s.key[j] * decay;
                const float W = i >= j ? dP[0][n][e] * to_float(s.scores[i * pitch(chunk) + j]) : 0.0f;
                const float product = i > j ? -E[0][n][e] * both : 0.0f, X = product * with[0][n][e];
                sums.dc[half] += W + X;
                sums.beta[half] += X;
                columns[n][k] += W + X;
                s.scores[i * pitch(chunk) + j] = from_float<bf16>(dP[0][n][e] * s.query[i] * s.key[j] * decay);
                if (i >= j) {
                    s.solve[i * pitch(chunk) + j] = from_float<bf16>(product);
                    s.solve[j * pitch(chunk) + i] = from_float<bf16>(product);
                }
            }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            float sum = columns[n][k];
#pragma unroll
            for (int offset = 4; offset < 32; offset *= 2) sum += __shfl_xor_sync(all_lanes, sum, offset);
            if (lane < 4) s.by_column[row / 16][column + 8 * n + 2 * lane + k] = sum;
        }
}

/// Replaces S0 by dS1; this thread's part of the sum of their products.
__device__ __forceinline__ float next_state(bf16* tile, const bf16* dS) {
    float dot = 0.0f;
    for (int i = threadIdx.x; i < dim * (dim / 8); i += gradient_threads) {
        bf16* const at = tile + i / (dim / 8) * pitch(dim) + i % (dim / 8) * 8;
        const Pack<bf16, 8> before = load_pack<8>(at), after = load_pack<8>(dS + 8 * i);
#pragma unroll
        for (int k = 0; k < 8; ++k) dot += to_float(before.v[k]) * to_float(after.v[k]);
        store_pack(at, after);
    }
    return dot;
}

/// The gradients of a token's b and a, by 64 threads, after the sums are in shared memory.
template <class T>
__device__ __forceinline__ void write_gates(GradientShared& s, const DeltaRule& p, const Chunk& c, int head,
                                            float dot) {
    const int i = static_cast<int>(threadIdx.x);
    if (i >= chunk || i >= c.count) return;
    float end = dot * s.weights.all;
    for (int row = 0; row < chunk; ++row) end += sum_of(s.by_row[2], row);
    float dlog_decay = end;
    for (int row = i; row < chunk; ++row) dlog_decay += s.dc[row];
    const Gates gates = gates_of<T>(p.in, c.begin + i, head);
    const float da = dlog_decay * gates.slope, db = (1.0f - gates.beta) * sum_of(s.by_row[1], i);
    *row_of<T>(p.out.b, c.begin + i, head) = from_float<T>(db);
    *row_of<T>(p.out.a, c.begin + i, head) = from_float<T>(da);
    const int64_t at = int64_t{c.begin + i} * p.shape.value_heads + head;
    p.scratch.per_token[at] = da;
    p.scratch.per_token[p.segments.tokens * p.shape.value_heads + at] = dlog_decay * gates.log_decay;
}

template <class T>
__device__ __forceinline__ void load_head(GradientShared& s, const DeltaRule& p, const Chunk& c, int slot, int head) {
    const int64_t at = int64_t{slot} * p.shape.value_heads + head;
    const int column = p.shape.value_column(head);
    load_tile<chunk, dim, gradient_threads>(s.values, row_of<T>(p.in.mixed, c.begin, column), p.in.mixed.stride,
                                            c.count);
    load_tile<dim, dim, gradient_threads>(s.state, p.scratch.S + at * dim * dim, dim, dim);
    load_tile<chunk, dim, gradient_threads>(
        s.dvalues, row_of<T>(ConstMatrix{p.out.mixed.data, p.out.mixed.stride}, c.begin, column), p.out.mixed.stride,
        c.count);
    load_tile<chunk, chunk, gradient_threads>(s.solve, p.scratch.solve + at * chunk * chunk, chunk, chunk);
    load_tile<chunk, dim, gradient_threads>(s.dout, row_of<T>(p.dout, c.begin, head), p.dout.token_stride, c.count);
    load_tile<chunk, chunk, gradient_threads>(s.scores, p.scratch.scores + at * chunk * chunk, chunk, chunk);
    cp_async_commit_group();
    const Factors f = factors_of(p, slot, head);
    s.weights.set(f);
    const int i = static_cast<int>(threadIdx.x);
    if (i < chunk) s.sums[i] = f.sums[i], s.query[i] = f.query[i], s.key[i] = f.key[i];
    cp_async_wait_group<0>();
    __syncthreads();
}

/// Of a query or key as it was before it was divided by its length: dx = d - (d x) x / length^2, d times its factor.
template <class T>
__device__ __forceinline__ void write_directions(GradientShared& s, float (&d)[1][4][4], const bf16* tile,
                                                 const float* factors, float scale, const Matrix& to, int first_column,
                                                 const Chunk& c, int row, int group) {
    float dots[2] = {}, none[1][4][4];
    clear(none);
    add_with_dots(none, d, tile, dots, row, 32 * group);
    __syncthreads();
    write_row_sums(s.by_row[0], dots, row, group);
    __syncthreads();
    each_pair(d, row, 32 * group, [&](int i, int j, float a, float b, int) {
        if (i >= c.count) return;
        const float2 x = read_pair(tile + i * pitch(dim) + j);
        const float along = sum_of(s.by_row[0], i) * factors[i] * factors[i] * scale;
        *reinterpret_cast<uint32_t*>(row_of<T>(to, c.begin + i, first_column + j)) =
            pack_two<T>(a - along * x.x, b - along * x.y);
    });
}

template <class T>
__global__ void __launch_bounds__(gradient_threads) gradient_kernel(const DeltaRule p) {
    extern __shared__ __align__(16) unsigned char delta_shared[];
    GradientShared& s = *reinterpret_cast<GradientShared*>(delta_shared);
    const int slot = static_cast<int>(blockIdx.x), key_head = static_cast<int>(blockIdx.y);
    const Chunk c = chunk_of(p.segments, slot);
    if (c.count == 0) return;
    load_tile<chunk, dim, gradient_threads>(s.queries, row_of<T>(p.in.mixed, c.begin, key_head * dim),
                                            p.in.mixed.stride, c.count);
    load_tile<chunk, dim, gradient_threads>(s.keys, row_of<T>(p.in.mixed, c.begin, p.shape.keys() + key_head * dim),
                                            p.in.mixed.stride, c.count);
    const int warp = static_cast<int>(threadIdx.x) / 32, row = warp % 4 * 16, group = warp / 4, column = 32 * group;
    float dq[1][4][4], dk[1][4][4], x[1][4][4];
    clear(dq);
    clear(dk);
    for (int served = 0; served < p.shape.served(); ++served) {
        const int head = key_head * p.shape.served() + served;
        load_head<T>(s, p, c, slot, head);
        RowSums sums;
        clear(x);
        multiply<As::is, pitch(dim), As::is, pitch(dim), dim>(x, s.keys, row, s.state, column);
        each_pair(x, row, column, [&](int i, int j, float a, float b, int half) {
            bf16* const value = s.values + i * pitch(dim) + j;
            const float2 v = read_pair(value), dv = read_pair(s.dvalues + i * pitch(dim) + j);
            const float y0 = v.x - s.weights.from_key[i] * a, y1 = v.y - s.weights.from_key[i] * b;
            sums.beta[half] += dv.x * y0 + dv.y * y1;
            write_pair(value, y0, y1);
        });
        __syncthreads();
        clear(x);
        multiply<As::is, pitch(chunk), As::is, pitch(dim), chunk>(x, s.solve, row, s.values, column);
        __syncthreads();
        each_pair(x, row, column,
                  [&](int i, int j, float a, float b, int) { write_pair(s.values + i * pitch(dim) + j, a, b); });
        __syncthreads();
        between_tokens(s, sums, row, group);
        clear(x);
        multiply<As::is, pitch(dim), As::transposed, pitch(dim), dim>(x, s.dout, row, s.state, column);
        multiply_rows(x, s.weights.from_query, 1.0f, row);
        add_with_dots(dq, x, s.queries, sums.dc, row, column);
        clear(x);
        multiply<As::is, pitch(dim), As::transposed, pitch(dim), dim>(x, s.dvalues, row, s.state, column);
        multiply_rows(x, s.weights.from_key, -1.0f, row);
        add_with_dots(dk, x, s.keys, sums.dc, row, column);
        __syncthreads();
        const float own = next_state(s.state, p.scratch.dS + (int64_t{slot} * p.shape.value_heads + head) * dim * dim);
        const float dot = block_sum(own, s.reduce);
        clear(x);
        multiply<As::is, pitch(dim), As::transposed, pitch(dim), dim>(x, s.values, row, s.state, column);
        multiply_rows(x, s.weights.to_end, 1.0f, row);
        add_with_dots(dk, x, s.keys, sums.end, row, column);
        multiply<As::is, pitch(chunk), As::is, pitch(dim), chunk>(dq, s.scores, row, s.keys, column);
        multiply<As::transposed, pitch(chunk), As::is, pitch(dim), chunk>(dk, s.scores, row, s.queries, column);
        multiply<As::is, pitch(chunk), As::is, pitch(dim), chunk>(dk, s.solve, row, s.keys, column);
        write_row_sums(s.by_row[0], sums.dc, row, group);
        write_row_sums(s.by_row[1], sums.beta, row, group);
        write_row_sums(s.by_row[2], sums.end, row, group);
        __syncthreads();
        const int i = static_cast<int>(threadIdx.x);
        if (i < chunk) s.dc[i] = sum_of(s.by_row[0], i) - sum_of(s.by_column, i) - sum_of(s.by_row[2], i);
        __syncthreads();
        write_gates<T>(s, p, c, head, dot);
        __syncthreads();
    }
    write_directions<T>(s, dq, s.queries, s.query, dim, p.out.mixed, key_head * dim, c, row, group);
    write_directions<T>(s, dk, s.keys, s.key, 1.0f, p.out.mixed, p.shape.keys() + key_head * dim, c, row, group);
}

}  // namespace
}  // namespace delta

void delta_gradient(const DeltaRule& p, cudaStream_t stream) {
    const auto run = [&](auto kernel) {
        launch_kernel(kernel,
                      {.grid = dim3(static_cast<unsigned>(p.slots), static_cast<unsigned>(p.shape.key_heads)),
                       .threads = dim3(delta::gradient_threads),
                       .shared_bytes = sizeof(delta::GradientShared),
                       .stream = stream},
                      p);
    };
    p.in.type == spec::DType::bf16 ? run(delta::gradient_kernel<__nv_bfloat16>) : run(delta::gradient_kernel<__half>);
}

}  // namespace unsloth::kernels
