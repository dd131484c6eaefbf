// DoRA's scales on the outputs of products. Ceiling: the bandwidth of memory; a backward pass reads dy and z once and
// sums over tokens on the way, in a fixed order without atomics.
#include "kernels/dora.h"
#include "kernels/map_rows.cuh"
#include "kernels/swiglu_math.cuh"

namespace unsloth::kernels {

namespace {

constexpr int norm_threads = 256;
constexpr int warps_per_block = 4;

template <class T>
__global__ void __launch_bounds__(norm_threads) row_square_sums_kernel(const RowSquareSums p) {
    __shared__ float shared[32];
    const T* row = static_cast<const T*>(p.w.data) + static_cast<int64_t>(blockIdx.x) * p.w.stride;
    float sum = 0.f;
    for (int64_t k = threadIdx.x; k < p.columns; k += norm_threads) {
        const float value = to_float(row[k]);
        sum += value * value;
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) p.out[blockIdx.x] = sum;
}

/// A warp takes a row; its lanes share the rank.
template <class T>
__global__ void __launch_bounds__(warp_size* warps_per_block) dora_norms_kernel(const DoraNorms p) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * warps_per_block + threadIdx.y;
    if (row >= p.rows) return;
    const T* b = static_cast<const T*>(p.b.data) + row * p.b.stride;
    const float* wa = static_cast<const float*>(p.wa.data);
    const float* gram = static_cast<const float*>(p.gram.data);
    float sum = 0.f;
    for (int64_t j = threadIdx.x; j < p.rank; j += warp_size) {
        float inner = 2.f * wa[j * p.wa.stride + row];
        for (int64_t k = 0; k < p.rank; ++k) inner += gram[k * p.gram.stride + j] * to_float(b[k]);
        sum += to_float(b[j]) * inner;
    }
    sum = group_sum(sum) + p.base[row];
    if (threadIdx.x != 0) return;
    const float inverse = sum > 0.f ? 1.f / sqrtf(sum) : 0.f;
    p.inverse[row] = inverse;
    p.scale[row] = p.magnitude[row] * inverse;
}

/// Column `column` of a product's outputs, scaled.
template <class T>
__device__ __forceinline__ float scaled(float z, const float* scale, const T* bias, int64_t column) {
    return scale[column] * z + (bias != nullptr ? to_float(bias[column]) : 0.f);
}

template <class T, int N>
struct ForwardOperation {
    const T* z;
    int64_t z_stride;
    const float* scale;
    const T* bias;
    const T* residual;
    int64_t residual_stride;
    T* y;
    int64_t y_stride;

    struct State {
        Pack<T, N> z, residual;
    };
    __device__ State load(uint32_t row, int64_t column) const {
        State state;
        state.z = load_pack<N>(z + row * z_stride + column);
        if (residual != nullptr) state.residual = load_pack<N>(residual + row * residual_stride + column);
        return state;
    }
    __device__ void store(uint32_t row, int64_t column, const State& in) const {
        Pack<T, N> out;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            float value = scaled(to_float(in.z.v[k]), scale, bias, column + k);
            if (residual != nullptr) value += to_float(in.residual.v[k]);
            out.v[k] = from_float<T>(value);
        }
        store_pack(y + row * y_stride + column, out);
    }
};

template <class T, int N, spec::GateActivation kGate>
struct SwigluOperation {
    const T* z;
    int64_t z_stride, columns;
    const float* scale;
    const T* bias;
    T* act;
    int64_t act_stride;

    struct State {
        Pack<T, N> gate, up;
    };
    __device__ State load(uint32_t row, int64_t column) const {
        const T* gate = z + row * z_stride + column;
        return {load_pack<N>(gate), load_pack<N>(gate + columns)};
    }
    __device__ void store(uint32_t row, int64_t column, const State& in) const {
        Pack<T, N> out;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            out.v[k] = from_float<T>(Glu<kGate>::of(scaled(to_float(in.gate.v[k]), scale, bias, column + k),
                                                    scaled(to_float(in.up.v[k]), scale, bias, columns + column + k)));
        }
        store_pack(act + row * act_stride + column, out);
    }
};

// Backward: a block takes pack_lanes packs of columns and a chunk of the tokens, one token a row of threads at a time.
constexpr int pack_lanes = 8;
constexpr int token_lanes = 32;
constexpr int chunk_tokens = 128;
constexpr int64_t most_chunks = 32;

template <class T, int N>
struct BackwardOperation {
    static constexpr int sums = 1;
    const T* dy;
    int64_t dy_stride;
    const T* z;
    int64_t z_stride;
    const float* scale;
    T* dz;
    int64_t dz_stride;

    __device__ void run(int64_t row, int64_t column, float (&sum)[1][N]) const {
        const Pack<T, N> dy_pack = load_pack<N>(dy + row * dy_stride + column);
        const Pack<T, N> z_pack = load_pack<N>(z + row * z_stride + column);
        Pack<T, N> out;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const float gradient = to_float(dy_pack.v[k]);
            sum[0][k] += gradient * to_float(z_pack.v[k]);
            out.v[k] = from_float<T>(scale[column + k] * gradient);
        }
        store_pack(dz + row * dz_stride + column, out);
    }
};

template <class T, int N, spec::GateActivation kGate>
struct SwigluBackwardOperation {
    static constexpr int sums = 2;
    const T* dact;
    int64_t dact_stride;
    T* z;
    int64_t z_stride, columns;
    const float* scale;
    const T* bias;
    T* act;
    int64_t act_stride;

    __device__ void run(int64_t row, int64_t column, float (&sum)[2][N]) const {
        T* gate = z + row * z_stride + column;
        const Pack<T, N> gate_pack = load_pack<N>(gate), up_pack = load_pack<N>(gate + columns);
        const Pack<T, N> dact_pack = load_pack<N>(dact + row * dact_stride + column);
        Pack<T, N> dgate, dup, rebuilt;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const float z_gate = to_float(gate_pack.v[k]), z_up = to_float(up_pack.v[k]);
            const int64_t at_gate = column + k, at_up = columns + column + k;
            const SwigluGradients made = Glu<kGate>::gradients(
                to_float(dact_pack.v[k]), scaled(z_gate, scale, bias, at_gate), scaled(z_up, scale, bias, at_up));
            sum[0][k] += made.gate * z_gate;
            sum[1][k] += made.up * z_up;
            dgate.v[k] = from_float<T>(scale[at_gate] * made.gate);
            dup.v[k] = from_float<T>(scale[at_up] * made.up);
            rebuilt.v[k] = from_float<T>(made.act);
        }
        store_pack(gate, dgate);
        store_pack(gate + columns, dup);
        store_pack(act + row * act_stride + column, rebuilt);
    }
};

/// partial[chunk, s * columns + column] = what the operation's s-th sum came to over the chunk's tokens.
template <int N, class Operation>
__global__ void __launch_bounds__(pack_lanes* token_lanes)
    backward_kernel(const Operation operation, int64_t tokens, int64_t columns, float* partial) {
    constexpr int width = pack_lanes * N;
    __shared__ float parts[token_lanes][width + 1];
    const int64_t first = static_cast<int64_t>(blockIdx.x) * width;
    const int64_t column = first + threadIdx.x * N;
    float sum[Operation::sums][N] = {};
    if (column < columns) {
        const int64_t begin = tokens * blockIdx.y / gridDim.y, end = tokens * (blockIdx.y + 1) / gridDim.y;
#pragma unroll 2
        for (int64_t row = begin + threadIdx.y; row < end; row += token_lanes) operation.run(row, column, sum);
    }
    float* const out = partial + static_cast<int64_t>(blockIdx.y) * Operation::sums * columns;
    const int thread = threadIdx.y * pack_lanes + threadIdx.x;
#pragma unroll
    for (int s = 0; s < Operation::sums; ++s) {
        __syncthreads();
#pragma unroll
        for (int k = 0; k < N; ++k) parts[threadIdx.y][threadIdx.x * N + k] = sum[s][k];
        __syncthreads();
        if (thread < width && first + thread < columns) {
            float total = 0.f;
            for (int lane = 0; lane < token_lanes; ++lane) total += parts[lane][thread];
            out[s * columns + first + thread] = total;
        }
    }
}

__global__ void __launch_bounds__(norm_threads)
    magnitude_gradients_kernel(const MagnitudeSums p, int64_t chunks, int64_t columns) {
    const int64_t column = static_cast<int64_t>(blockIdx.x) * norm_threads + threadIdx.x;
    if (column >= columns) return;
    float total = 0.f;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) total += p.partial[chunk * columns + column];
    for (int i = 0; i < p.slices; ++i) {
        const MagnitudeSlice& slice = p.slice[i];
        if (column >= slice.begin && column < slice.begin + slice.count)
            slice.out[column - slice.begin] += p.inverse[column] * total;
    }
}

/// `columns` of each of the operation's sums.
template <int N, class Operation>
void run_backward(const Operation& operation, int64_t tokens, int64_t columns, const MagnitudeSums& sums,
                  cudaStream_t stream) {
    if (tokens == 0 || columns == 0) return;
    const int64_t chunks = dora_chunks(tokens), all = Operation::sums * columns;
    UNSLOTH_LAUNCH((backward_kernel<N, Operation>),
                   dim3(static_cast<unsigned>(ceil_div(columns, pack_lanes * N)), static_cast<unsigned>(chunks)),
                   dim3(pack_lanes, token_lanes), 0, stream, operation, tokens, columns, sums.partial);
    UNSLOTH_LAUNCH(magnitude_gradients_kernel, static_cast<unsigned>(ceil_div(all, norm_threads)), norm_threads, 0,
                   stream, sums, chunks, all);
}

}  // namespace

int64_t dora_chunks(int64_t tokens) {
    return std::min(most_chunks, std::max<int64_t>(1, ceil_div(tokens, chunk_tokens)));
}

void row_square_sums(const RowSquareSums& p, cudaStream_t stream) {
    if (p.rows == 0) return;
    dispatch_floating(p.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        UNSLOTH_LAUNCH(row_square_sums_kernel<T>, static_cast<unsigned>(p.rows), norm_threads, 0, stream, p);
    });
}

void dora_norms(const DoraNorms& p, cudaStream_t stream) {
    if (p.rows == 0) return;
    dispatch_floating(p.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        UNSLOTH_LAUNCH(dora_norms_kernel<T>, static_cast<unsigned>(ceil_div(p.rows, warps_per_block)),
                       dim3(warp_size, warps_per_block), 0, stream, p);
    });
}

void dora_forward(const DoraForward& p, cudaStream_t stream) {
    dispatch_floating(p.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        constexpr int width = vector_width<T>;
        const auto run = [&](auto count) {
            constexpr int n = decltype(count)::value;
            const ForwardOperation<T, n> operation{static_cast<const T*>(p.z.data),
                                                   p.z.stride,
                                                   p.scale,
                                                   static_cast<const T*>(p.bias),
                                                   static_cast<const T*>(p.residual.data),
                                                   p.residual.stride,
                                                   static_cast<T*>(p.y.data),
                                                   p.y.stride};
            map_rows<n>(operation, p.tokens, p.columns, stream);
        };
        const bool vector = p.columns % width == 0 && aligned_16(p.z.data, {p.z.stride}, p.type) &&
                            aligned_16(p.y.data, {p.y.stride}, p.type) &&
                            aligned_16(p.residual.data, {p.residual.stride}, p.type);
        vector ? run(std::integral_constant<int, width>{}) : run(std::integral_constant<int, 1>{});
    });
}

void dora_swiglu_forward(const DoraSwigluForward& p, cudaStream_t stream) {
    dispatch_floating(p.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        constexpr int width = vector_width<T>;
        const auto run = [&](auto count) {
            constexpr int n = decltype(count)::value;
            with_gate(p.activation, [&](auto gate) {
                const SwigluOperation<T, n, gate()> operation{
                    static_cast<const T*>(p.z.data), p.z.stride,  p.columns, p.scale, static_cast<const T*>(p.bias),
                    static_cast<T*>(p.act.data),     p.act.stride};
                map_rows<n>(operation, p.tokens, p.columns, stream);
            });
        };
        const bool vector = p.columns % width == 0 && aligned_16(p.z.data, {p.z.stride}, p.type) &&
                            aligned_16(p.act.data, {p.act.stride}, p.type);
        vector ? run(std::integral_constant<int, width>{}) : run(std::integral_constant<int, 1>{});
    });
}

void dora_backward(const DoraBackward& p, cudaStream_t stream) {
    dispatch_floating(p.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        constexpr int width = vector_width<T>;
        const auto run = [&](auto count) {
            constexpr int n = decltype(count)::value;
            const BackwardOperation<T, n> operation{
                static_cast<const T*>(p.dy.data), p.dy.stride, static_cast<const T*>(p.z.data), p.z.stride, p.scale,
                static_cast<T*>(p.dz.data),       p.dz.stride};
            run_backward<n>(operation, p.tokens, p.columns, p.sums, stream);
        };
        const bool vector = p.columns % width == 0 && aligned_16(p.dy.data, {p.dy.stride}, p.type) &&
                            aligned_16(p.z.data, {p.z.stride}, p.type) && aligned_16(p.dz.data, {p.dz.stride}, p.type);
        vector ? run(std::integral_constant<int, width>{}) : run(std::integral_constant<int, 1>{});
    });
}

void dora_swiglu_backward(const DoraSwigluBackward& p, cudaStream_t stream) {
    dispatch_floating(p.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        constexpr int width = vector_width<T>;
        const auto run = [&](auto count) {
            constexpr int n = decltype(count)::value;
            with_gate(p.activation, [&](auto gate) {
                const SwigluBackwardOperation<T, n, gate()> operation{static_cast<const T*>(p.dact.data),
                                                                      p.dact.stride,
                                                                      static_cast<T*>(p.z.data),
                                                                      p.z.stride,
                                                                      p.columns,
                                                                      p.scale,
                                                                      static_cast<const T*>(p.bias),
                                                                      static_cast<T*>(p.act.data),
                                                                      p.act.stride};
                run_backward<n>(operation, p.tokens, p.columns, p.sums, stream);
            });
        };
        const bool vector = p.columns % width == 0 && aligned_16(p.dact.data, {p.dact.stride}, p.type) &&
                            aligned_16(p.z.data, {p.z.stride}, p.type) &&
                            aligned_16(p.act.data, {p.act.stride}, p.type);
        vector ? run(std::integral_constant<int, width>{}) : run(std::integral_constant<int, 1>{});
    });
}

}  // namespace unsloth::kernels
