// The delta rule's states from chunk to chunk, forward and backward: a block a segment, value head and block of value
// columns, whose state S [128, W] stays in registers in fp32. Products take bf16: S, and what is made of it, are
// rounded to it once for each product. With a chunk's keys K, queries Q, values V, T = (I + A)^-1 diag(beta) and P
// (delta_prepare.cu), l_i = exp(c_i), e_i = exp(c_64 - c_i), S0 and S1 the states around it:
//   U = T (V - l K S0), O = l Q S0 + P U, S1 = l_64 S0 + (e K)^T U
//   dV = T^T (P^T dO + e K dS1), dS0 = l_64 dS1 + (l Q)^T dO - (l K)^T dV
// Ceiling: tensor cores by mma, 10 MFLOP a chunk and value head forward, 9 backward. Two blocks of 256 threads a
// multiprocessor wait for each other's copies and barriers. Few long segments take narrower blocks.
#include "kernels/delta_tiles.cuh"

namespace unsloth::kernels {
namespace delta {
namespace {

template <int W>
struct Spread {
    static constexpr int columns = W < 64 ? W : 64;      ///< of a warp
    static constexpr int threads = 128 * (W / columns);  ///< four warps a group of columns
    static constexpr int tiles = columns / 8;
};

template <int W>
struct ScanShared {
    bf16 keys[tile_elements(chunk, dim)], queries[tile_elements(chunk, dim)];
    bf16 solve[tile_elements(chunk, chunk)], scores[tile_elements(chunk, chunk)];
    bf16 values[tile_elements(chunk, W)];  ///< or gradients of outputs
    bf16 state[tile_elements(dim, W)];     ///< between uses two tiles of 64 rows
    Weights weights;
};

/// Where a block is.
template <int W>
struct Place {
    int segment, head, first;  ///< its first value column
    int row, column;           ///< of a warp in results of 64 rows; in states at twice that row
    __device__ __forceinline__ explicit Place(const DeltaRule& p) {
        constexpr int blocks = dim / W;
        const int block = static_cast<int>(blockIdx.x), warp = static_cast<int>(threadIdx.x) / 32;
        first = block % blocks * W;
        head = block / blocks % p.shape.value_heads;
        segment = p.turn.segment(block / blocks / p.shape.value_heads);
        row = warp % 4 * 16;
        column = warp / 4 * Spread<W>::columns;
    }
};

template <int W, class T>
__device__ __forceinline__ void load_keys(ScanShared<W>& s, const DeltaRule& p, int head, const Chunk& c) {
    const int key_head = head / p.shape.served();
    load_tile<chunk, dim, Spread<W>::threads>(s.keys, row_of<T>(p.in.mixed, c.begin, p.shape.keys() + key_head * dim),
                                              p.in.mixed.stride, c.count);
}
template <int W, class T>
__device__ __forceinline__ void load_queries(ScanShared<W>& s, const DeltaRule& p, int head, const Chunk& c) {
    load_tile<chunk, dim, Spread<W>::threads>(s.queries, row_of<T>(p.in.mixed, c.begin, head / p.shape.served() * dim),
                                              p.in.mixed.stride, c.count);
}
template <int W>
__device__ __forceinline__ void load_square(bf16* to, const bf16* from, const DeltaRule& p, int slot, int head) {
    load_tile<chunk, chunk, Spread<W>::threads>(to, from + (int64_t{slot} * p.shape.value_heads + head) * chunk * chunk,
                                                chunk, chunk);
}

template <int W>
__device__ __forceinline__ void write_state(ScanShared<W>& s, float (&S)[2][Spread<W>::tiles][4], const Place<W>& at) {
    each_pair(S, 2 * at.row, at.column,
              [&](int i, int j, float x, float y, int) { write_pair(s.state + i * pitch(W) + j, x, y); });
}
template <int W>
__device__ __forceinline__ bf16* border(bf16* states, const DeltaRule& p, int slot, const Place<W>& at) {
    return states + (int64_t{slot} * p.shape.value_heads + at.head) * dim * dim + at.first;
}

/// The state a segment begins from or leaves, or its gradient.
template <int W>
__device__ __forceinline__ float* kept_state(const DeltaKept& kept, const DeltaRule& p, const Place<W>& at) {
    return kept.data + (int64_t{kept.rows[at.segment]} * p.shape.value_heads + at.head) * dim * dim + at.first;
}
/// x = that state; zeros where nothing is kept.
template <int W>
__device__ __forceinline__ void begin_from(const DeltaKept& kept, const DeltaRule& p, const Place<W>& at,
                                           float (&x)[2][Spread<W>::tiles][4]) {
    clear(x);
    if (!kept.keeps(at.segment)) return;
    const float* const from = kept_state(kept, p, at);
    each_pair(x, 2 * at.row, at.column, [&](int i, int j, float& a, float& b, int) {
        a = from[i * dim + j];
        b = from[i * dim + j + 1];
    });
}
template <int W>
__device__ __forceinline__ void leave(const DeltaKept& kept, const DeltaRule& p, const Place<W>& at,
                                      float (&x)[2][Spread<W>::tiles][4]) {
    if (!kept.keeps(at.segment) || kept.read_only) return;
    float* const to = kept_state(kept, p, at);
    each_pair(x, 2 * at.row, at.column,
              [&](int i, int j, float a, float b, int) { *reinterpret_cast<float2*>(to + i * dim + j) = {a, b}; });
}

/// kOutput: writes o and kept states; otherwise S where chunks begin.
template <class T, int W, bool kOutput>
__global__ void __launch_bounds__(Spread<W>::threads, W == 128 ? 2 : 3) scan_kernel(const DeltaRule p) {
    constexpr int threads = Spread<W>::threads, tiles = Spread<W>::tiles;
    extern __shared__ __align__(16) unsigned char delta_shared[];
    ScanShared<W>& s = *reinterpret_cast<ScanShared<W>*>(delta_shared);
    const Place<W> at(p);
    const int begin = p.segments.offsets[at.segment], end = p.segments.offsets[at.segment + 1],
              slot0 = first_slot(p.segments.offsets, at.segment), chunks = (end - begin + chunk - 1) / chunk;
    float S[2][tiles][4];
    begin_from(p.kept, p, at, S);
    for (int n = 0; n < chunks; ++n) {
        const Chunk c{at.segment, begin + n * chunk, min(chunk, end - begin - n * chunk)};
        const int slot = slot0 + n;
        load_keys<W, T>(s, p, at.head, c);
        load_tile<chunk, W, threads>(s.values, row_of<T>(p.in.mixed, c.begin, p.shape.value_column(at.head) + at.first),
                                     p.in.mixed.stride, c.count);
        load_square<W>(s.solve, p.scratch.solve, p, slot, at.head);
        if constexpr (kOutput) {
            load_queries<W, T>(s, p, at.head, c);
            load_square<W>(s.scores, p.scratch.scores, p, slot, at.head);
        }
        cp_async_commit_group();
        s.weights.set(factors_of(p, slot, at.head));
        write_state(s, S, at);
        cp_async_wait_group<0>();
        __syncthreads();
        if constexpr (!kOutput) store_tile<dim, W, threads>(border<W>(p.scratch.S, p, slot, at), dim, s.state);
        float x[1][tiles][4];
        clear(x);
        multiply<As::is, pitch(dim), As::is, pitch(W), dim>(x, s.keys, at.row, s.state, at.column);
        each_pair(x, at.row, at.column, [&](int i, int j, float a, float b, int) {
            bf16* const value = s.values + i * pitch(W) + j;
            const float2 v = read_pair(value);
            write_pair(value, v.x - s.weights.from_key[i] * a, v.y - s.weights.from_key[i] * b);
        });
        __syncthreads();
        clear(x);
        multiply<As::is, pitch(chunk), As::is, pitch(W), chunk>(x, s.solve, at.row, s.values, at.column);
        __syncthreads();
        if constexpr (kOutput) {
            each_pair(x, at.row, at.column,
                      [&](int i, int j, float a, float b, int) { write_pair(s.values + i * pitch(W) + j, a, b); });
            clear(x);
            multiply<As::is, pitch(dim), As::is, pitch(W), dim>(x, s.queries, at.row, s.state, at.column);
            each_pair(x, at.row, at.column, [&](int i, int, float& a, float& b, int) {
                a *= s.weights.from_query[i];
                b *= s.weights.from_query[i];
            });
            __syncthreads();
            multiply<As::is, pitch(chunk), As::is, pitch(W), chunk>(x, s.scores, at.row, s.values, at.column);
            each_pair(x, at.row, at.column, [&](int i, int j, float a, float b, int) {
                if (i >= c.count) return;
                *reinterpret_cast<uint32_t*>(row_of<T>(p.o, c.begin + i, at.head) + at.first + j) = pack_two<T>(a, b);
            });
            __syncthreads();
            each_pair(x, at.row, at.column, [&](int i, int j, float, float, int) {
                bf16* const u = s.values + i * pitch(W) + j;
                const float2 value = read_pair(u);
                write_pair(u, s.weights.to_end[i] * value.x, s.weights.to_end[i] * value.y);
            });
        } else {
            each_pair(x, at.row, at.column, [&](int i, int j, float a, float b, int) {
                write_pair(s.values + i * pitch(W) + j, s.weights.to_end[i] * a, s.weights.to_end[i] * b);
            });
        }
        each_pair(S, 0, 0, [&](int, int, float& a, float& b, int) {
            a *= s.weights.all;
            b *= s.weights.all;
        });
        __syncthreads();
        multiply<As::transposed, pitch(dim), As::is, pitch(W), chunk>(S, s.keys, 2 * at.row, s.values, at.column);
        __syncthreads();
    }
    leave(p.kept, p, Place<W>(p), S);  // made again: no registers in the loop
}

template <class T, int W>
__global__ void __launch_bounds__(Spread<W>::threads, W == 128 ? 2 : 3) scan_back_kernel(const DeltaRule p) {
    constexpr int threads = Spread<W>::threads, tiles = Spread<W>::tiles;
    extern __shared__ __align__(16) unsigned char delta_shared[];
    ScanShared<W>& s = *reinterpret_cast<ScanShared<W>*>(delta_shared);
    const Place<W> at(p);
    const int begin = p.segments.offsets[at.segment], end = p.segments.offsets[at.segment + 1],
              slot0 = first_slot(p.segments.offsets, at.segment), chunks = (end - begin + chunk - 1) / chunk;
    bf16 *const gradient = s.state, *const weighed = s.state + tile_elements(chunk, W);
    float dS[2][tiles][4];
    begin_from(p.dkept, p, at, dS);
    for (int n = chunks - 1; n >= 0; --n) {
        const Chunk c{at.segment, begin + n * chunk, min(chunk, end - begin - n * chunk)};
        const int slot = slot0 + n;
        load_keys<W, T>(s, p, at.head, c);
        load_queries<W, T>(s, p, at.head, c);
        load_tile<chunk, W, threads>(s.values, row_of<T>(p.dout, c.begin, at.head) + at.first, p.dout.token_stride,
                                     c.count);
        load_square<W>(s.solve, p.scratch.solve, p, slot, at.head);
        load_square<W>(s.scores, p.scratch.scores, p, slot, at.head);
        cp_async_commit_group();
        s.weights.set(factors_of(p, slot, at.head));
        write_state(s, dS, at);
        cp_async_wait_group<0>();
        __syncthreads();
        store_tile<dim, W, threads>(border<W>(p.scratch.dS, p, slot, at), dim, s.state);
        float x[1][tiles][4];
        clear(x);
        multiply<As::is, pitch(dim), As::is, pitch(W), dim>(x, s.keys, at.row, s.state, at.column);
        each_pair(x, at.row, at.column, [&](int i, int, float& a, float& b, int) {
            a *= s.weights.to_end[i];
            b *= s.weights.to_end[i];
        });
        multiply<As::transposed, pitch(chunk), As::is, pitch(W), chunk>(x, s.scores, at.row, s.values, at.column);
        __syncthreads();
        each_pair(x, at.row, at.column, [&](int i, int j, float a, float b, int) {
            write_pair(gradient + i * pitch(W) + j, a, b);
            bf16* const dout = s.values + i * pitch(W) + j;
            const float2 value = read_pair(dout);
            write_pair(dout, s.weights.from_query[i] * value.x, s.weights.from_query[i] * value.y);
        });
        __syncthreads();
        clear(x);
        multiply<As::transposed, pitch(chunk), As::is, pitch(W), chunk>(x, s.solve, at.row, gradient, at.column);
        each_pair(x, at.row, at.column, [&](int i, int j, float a, float b, int) {
            write_pair(weighed + i * pitch(W) + j, -s.weights.from_key[i] * a, -s.weights.from_key[i] * b);
            if (i >= c.count) return;
            *reinterpret_cast<uint32_t*>(
                row_of<T>(p.out.mixed, c.begin + i, p.shape.value_column(at.head) + at.first + j)) = pack_two<T>(a, b);
        });
        each_pair(dS, 0, 0, [&](int, int, float& a, float& b, int) {
            a *= s.weights.all;
            b *= s.weights.all;
        });
        multiply<As::transposed, pitch(dim), As::is, pitch(W), chunk>(dS, s.queries, 2 * at.row, s.values, at.column);
        __syncthreads();
        multiply<As::transposed, pitch(dim), As::is, pitch(W), chunk>(dS, s.keys, 2 * at.row, weighed, at.column);
        __syncthreads();
    }
    leave(p.dkept, p, Place<W>(p), dS);
}

/// Columns a block, so that the card has a block for each multiprocessor, or two.
template <class F>
void with_columns(const DeltaRule& p, F f) {
    const int64_t states = int64_t{p.turn.count(p.segments)} * p.shape.value_heads, wanted = multiprocessor_count();
    if (states * 3 >= wanted * 2)
        f(std::integral_constant<int, 128>{}, states);
    else if (states * 3 >= wanted)
        f(std::integral_constant<int, 64>{}, states * 2);
    else
        f(std::integral_constant<int, 32>{}, states * 4);
}

template <int W, class Kernel>
void launch_scan(Kernel kernel, int64_t blocks, const DeltaRule& p, cudaStream_t stream) {
    launch_kernel(kernel,
                  {.grid = dim3(static_cast<unsigned>(blocks)),
                   .threads = dim3(Spread<W>::threads),
                   .shared_bytes = sizeof(ScanShared<W>),
                   .stream = stream},
                  p);
}

template <class T>
void scan(const DeltaRule& p, cudaStream_t stream) {
    with_columns(p, [&](auto width, int64_t blocks) {
        constexpr int W = decltype(width)::value;
        p.o.data != nullptr ? launch_scan<W>(scan_kernel<T, W, true>, blocks, p, stream)
                            : launch_scan<W>(scan_kernel<T, W, false>, blocks, p, stream);
    });
}
template <class T>
void scan_back(const DeltaRule& p, cudaStream_t stream) {
    with_columns(p, [&](auto width, int64_t blocks) {
        constexpr int W = decltype(width)::value;
        launch_scan<W>(scan_back_kernel<T, W>, blocks, p, stream);
    });
}

}  // namespace
}  // namespace delta

void delta_scan(const DeltaRule& p, cudaStream_t stream) {
    p.in.type == spec::DType::bf16 ? delta::scan<__nv_bfloat16>(p, stream) : delta::scan<__half>(p, stream);
}
void delta_scan_back(const DeltaRule& p, cudaStream_t stream) {
    p.in.type == spec::DType::bf16 ? delta::scan_back<__nv_bfloat16>(p, stream) : delta::scan_back<__half>(p, stream);
}

}  // namespace unsloth::kernels
