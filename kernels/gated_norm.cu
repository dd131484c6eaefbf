// RMSNorm of each head's values, times weight and silu(z), and attention's gate: a warp a row (token, head), which it
// reads twice, the second time from the L1. Ceiling: memory, 6 bytes an element of bf16 forward, 10 backward.
#include "kernels/common/launch.h"
#include "kernels/common/ptx.cuh"
#include "kernels/delta_gates.cuh"
#include "kernels/gated_delta.h"

namespace unsloth::kernels {

namespace {

constexpr int gate_threads = 256, gate_warps = gate_threads / 32;
constexpr int weight_blocks = 256;  // fixed, so that the order of summation does not depend on the card

template <class View>
__device__ __forceinline__ int64_t gate_offset(const View& x, int64_t row, int64_t heads) {
    return row / heads * x.token_stride + row % heads * x.head_stride;
}
template <class T, int N>
__device__ __forceinline__ Pack<T, N> gate_load(const void* data, int64_t offset) {
    return load_pack<N>(static_cast<const T*>(data) + offset);
}

template <class T, int N>
__global__ void __launch_bounds__(gate_threads) gated_norm_forward_kernel(const GatedNorm p) {
    begin_after_previous(static_cast<uint32_t>(p.tokens));
    const int64_t row = int64_t{blockIdx.x} * gate_warps + threadIdx.x / 32;
    if (row >= p.tokens * p.heads) return;
    const int64_t x = gate_offset(p.x, row, p.heads), z = gate_offset(p.z, row, p.heads),
                  y = gate_offset(p.y, row, p.heads), first = threadIdx.x % 32 * N;
    float squares = 0.0f;
    for (int64_t c = first; c < p.columns; c += 32 * N) {
        const Pack<T, N> own = gate_load<T, N>(p.x.data, x + c);
#pragma unroll
        for (int k = 0; k < N; ++k) squares += to_float(own.v[k]) * to_float(own.v[k]);
    }
    const float rstd = 1.0f / sqrtf(group_sum(squares) / static_cast<float>(p.columns) + p.eps);
    for (int64_t c = first; c < p.columns; c += 32 * N) {
        const Pack<T, N> own = gate_load<T, N>(p.x.data, x + c), gate = gate_load<T, N>(p.z.data, z + c);
        Pack<T, N> out;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const float g = to_float(gate.v[k]);
            out.v[k] = from_float<T>(to_float(own.v[k]) * rstd * p.weight[c + k] * g * delta::sigmoid(g));
        }
        store_pack(static_cast<T*>(p.y.data) + y + c, out);
    }
}

/// What one element contributes.
struct NormTerm {
    float dnormed, dz, dweight;
};
__device__ __forceinline__ NormTerm norm_term(float dy, float x, float z, float weight, float rstd) {
    const float s = delta::sigmoid(z), gate = z * s, normed = x * rstd;
    return {dy * weight * gate, dy * weight * normed * s * (1.0f + z * (1.0f - s)), dy * normed * gate};
}

/// kWeight: a block's warps add their rows' terms of the weight's gradient in shared memory.
template <class T, int N, bool kWeight>
__global__ void __launch_bounds__(gate_threads, 1) gated_norm_backward_kernel(const GatedNorm p) {
    extern __shared__ float of_warps[];  // [warps, columns]
    const int warp = threadIdx.x / 32, first = threadIdx.x % 32 * N;
    float* const own_sums = of_warps + warp * p.columns;
    if constexpr (kWeight)
        for (int64_t c = first; c < p.columns; c += 32 * N)
            for (int k = 0; k < N; ++k) own_sums[c + k] = 0.0f;
    const int64_t rows = p.tokens * p.heads;
    for (int64_t row = int64_t{blockIdx.x} * gate_warps + warp; row < rows; row += int64_t{gridDim.x} * gate_warps) {
        const int64_t x = gate_offset(p.x, row, p.heads), z = gate_offset(p.z, row, p.heads),
                      dy = gate_offset(p.dy, row, p.heads);
        float squares = 0.0f, dot = 0.0f;
        for (int64_t c = first; c < p.columns; c += 32 * N) {
            const Pack<T, N> px = gate_load<T, N>(p.x.data, x + c), pz = gate_load<T, N>(p.z.data, z + c),
                             pdy = gate_load<T, N>(p.dy.data, dy + c);
#pragma unroll
            for (int k = 0; k < N; ++k) {
                const float value = to_float(px.v[k]), gate = to_float(pz.v[k]);
                squares += value * value;
                dot += to_float(pdy.v[k]) * p.weight[c + k] * gate * delta::sigmoid(gate) * value;
            }
        }
        const float columns = static_cast<float>(p.columns), rstd = 1.0f / sqrtf(group_sum(squares) / columns + p.eps);
        const float along = group_sum(dot) * rstd * rstd / columns;
        const int64_t dx = gate_offset(p.dx, row, p.heads), dz = gate_offset(p.dz, row, p.heads);
        for (int64_t c = first; c < p.columns; c += 32 * N) {
            const Pack<T, N> px = gate_load<T, N>(p.x.data, x + c), pz = gate_load<T, N>(p.z.data, z + c),
                             pdy = gate_load<T, N>(p.dy.data, dy + c);
            Pack<T, N> to_x, to_z;
#pragma unroll
            for (int k = 0; k < N; ++k) {
                const float value = to_float(px.v[k]);
                const NormTerm term = norm_term(to_float(pdy.v[k]), value, to_float(pz.v[k]), p.weight[c + k], rstd);
                to_x.v[k] = from_float<T>(rstd * (term.dnormed - along * value));
                to_z.v[k] = from_float<T>(term.dz);
                if constexpr (kWeight) own_sums[c + k] += term.dweight;
            }
            store_pack(static_cast<T*>(p.dx.data) + dx + c, to_x);
            store_pack(static_cast<T*>(p.dz.data) + dz + c, to_z);
        }
    }
    if constexpr (!kWeight) return;
    __syncthreads();
    for (int64_t c = threadIdx.x; c < p.columns; c += gate_threads) {
        float sum = 0.0f;
        for (int w = 0; w < gate_warps; ++w) sum += of_warps[w * p.columns + c];
        p.partials[blockIdx.x * p.columns + c] = sum;
    }
}

__global__ void __launch_bounds__(gate_threads)
    gated_norm_weight_kernel(const float* partials, int64_t columns, float* dweight) {
    const int64_t c = int64_t{blockIdx.x} * gate_threads + threadIdx.x;
    if (c >= columns) return;
    float sum = 0.0f;
    for (int block = 0; block < weight_blocks; ++block) sum += partials[block * columns + c];
    dweight[c] += sum;
}

template <class T, int N>
__global__ void __launch_bounds__(gate_threads) sigmoid_gate_kernel(const SigmoidGate p, bool backward) {
    begin_after_previous(static_cast<uint32_t>(p.tokens));
    const int64_t packs = p.columns / N, at = int64_t{blockIdx.x} * gate_threads + threadIdx.x, row = at / packs,
                  c = at % packs * N;
    if (row >= p.tokens * p.heads) return;
    const Pack<T, N> px = gate_load<T, N>(p.x.data, gate_offset(p.x, row, p.heads) + c),
                     pg = gate_load<T, N>(p.gate.data, gate_offset(p.gate, row, p.heads) + c);
    Pack<T, N> first, second;
    if (!backward) {
#pragma unroll
        for (int k = 0; k < N; ++k) first.v[k] = from_float<T>(to_float(px.v[k]) * delta::sigmoid(to_float(pg.v[k])));
        store_pack(static_cast<T*>(p.y.data) + gate_offset(p.y, row, p.heads) + c, first);
        return;
    }
    const Pack<T, N> pd = gate_load<T, N>(p.dy.data, gate_offset(p.dy, row, p.heads) + c);
#pragma unroll
    for (int k = 0; k < N; ++k) {
        const float s = delta::sigmoid(to_float(pg.v[k])), d = to_float(pd.v[k]);
        first.v[k] = from_float<T>(d * s);
        second.v[k] = from_float<T>(d * to_float(px.v[k]) * s * (1.0f - s));
    }
    store_pack(static_cast<T*>(p.dx.data) + gate_offset(p.dx, row, p.heads) + c, first);
    store_pack(static_cast<T*>(p.dgate.data) + gate_offset(p.dgate, row, p.heads) + c, second);
}

/// f(type, elements of a pack): of 8 bytes where addresses allow them.
template <class F>
void with_gate_packs(spec::DType type, int64_t columns, std::initializer_list<ConstHeads> views, F f) {
    dispatch_floating(type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        constexpr int width = vector_width<T>;
        bool vector = columns % width == 0;
        for (const ConstHeads& x : views) vector = vector && aligned_16(x.data, {x.token_stride, x.head_stride}, type);
        vector ? f(tag, std::integral_constant<int, 4>{}) : f(tag, std::integral_constant<int, 1>{});
    });
}
ConstHeads as_const(const Heads& x) {
    return {x.data, x.token_stride, x.head_stride};
}
unsigned gate_blocks(int64_t items, int64_t each) {
    return static_cast<unsigned>(ceil_div(items, each));
}

}  // namespace

void gated_norm_forward(const GatedNorm& p, cudaStream_t stream) {
    if (p.tokens * p.heads == 0) return;
    with_gate_packs(p.type, p.columns, {p.x, p.z, as_const(p.y)}, [&](auto tag, auto packs) {
        launch_kernel(gated_norm_forward_kernel<typename decltype(tag)::type, decltype(packs)::value>,
                      {.grid = dim3(gate_blocks(p.tokens * p.heads, gate_warps)),
                       .threads = dim3(gate_threads),
                       .stream = stream,
                       .after_previous = uses_programmatic_launch(p.tokens)},
                      p);
    });
}

int64_t gated_norm_scratch_bytes(int64_t columns) {
    return weight_blocks * columns * static_cast<int64_t>(sizeof(float));
}

void gated_norm_backward(const GatedNorm& p, cudaStream_t stream) {
    if (p.tokens * p.heads == 0) return;
    with_gate_packs(p.type, p.columns, {p.x, p.z, p.dy, as_const(p.dx), as_const(p.dz)}, [&](auto tag, auto packs) {
        using T = typename decltype(tag)::type;
        constexpr int N = decltype(packs)::value;
        if (p.dweight == nullptr) {
            launch_kernel(gated_norm_backward_kernel<T, N, false>,
                          {.grid = dim3(gate_blocks(p.tokens * p.heads, gate_warps)),
                           .threads = dim3(gate_threads),
                           .stream = stream},
                          p);
            return;
        }
        launch_kernel(gated_norm_backward_kernel<T, N, true>,
                      {.grid = dim3(weight_blocks),
                       .threads = dim3(gate_threads),
                       .shared_bytes = static_cast<std::size_t>(gate_warps * p.columns) * sizeof(float),
                       .stream = stream},
                      p);
        launch_kernel(
            gated_norm_weight_kernel,
            {.grid = dim3(gate_blocks(p.columns, gate_threads)), .threads = dim3(gate_threads), .stream = stream},
            p.partials, p.columns, p.dweight);
    });
}

namespace {

void launch_sigmoid_gate(const SigmoidGate& p, bool backward, std::initializer_list<ConstHeads> views,
                         cudaStream_t stream) {
    if (p.tokens * p.heads == 0) return;
    with_gate_packs(p.type, p.columns, views, [&](auto tag, auto packs) {
        constexpr int N = decltype(packs)::value;
        launch_kernel(sigmoid_gate_kernel<typename decltype(tag)::type, N>,
                      {.grid = dim3(gate_blocks(p.tokens * p.heads * (p.columns / N), gate_threads)),
                       .threads = dim3(gate_threads),
                       .stream = stream,
                       .after_previous = uses_programmatic_launch(p.tokens)},
                      p, backward);
    });
}

}  // namespace

void sigmoid_gate_forward(const SigmoidGate& p, cudaStream_t stream) {
    launch_sigmoid_gate(p, false, {p.x, p.gate, as_const(p.y)}, stream);
}
void sigmoid_gate_backward(const SigmoidGate& p, cudaStream_t stream) {
    launch_sigmoid_gate(p, true, {p.x, p.gate, p.dy, as_const(p.dx), as_const(p.dgate)}, stream);
}

}  // namespace unsloth::kernels
