// Rotary position embedding (Su et al., "RoFormer", 2021): a table of cosines and sines per token, and the rotation of
// all heads in place, halves of a head paired as transformers does. Ceiling: the bandwidth of memory, 4 bytes an
// element of bf16.
#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/ptx.cuh"
#include "kernels/rope.h"

namespace unsloth::kernels {

namespace {

constexpr int table_threads = 256;
constexpr int apply_threads = 256;
constexpr int heads_at_once = 2;  // of a thread

__global__ void __launch_bounds__(table_threads) rope_table_kernel(const RopeTable p) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * table_threads + threadIdx.x;
    if (i >= p.tokens * p.pairs) return;
    const int64_t token = i / p.pairs, pair = i - token * p.pairs;
    const int32_t position = p.positions[token * p.axes + (p.axis != nullptr ? p.axis[pair] : 0)];
    // Rounded to fp32 on its own, never fused into what follows.
    const float angle = __fmul_rn(static_cast<float>(position), p.inv_freq[pair]);
    p.cos[i] = cosf(angle) * p.scaling;
    p.sin[i] = sinf(angle) * p.scaling;
}

/// A block rotates one token. threadIdx.x chooses N pairs, whose cosines and sines stay in registers while threadIdx.y,
/// threadIdx.y + blockDim.y, ... walk the heads, heads_at_once of them loaded before any is stored.
template <class T, int N>
__global__ void __launch_bounds__(apply_threads) rope_apply_kernel(const RopeApply p) {
    begin_after_previous(gridDim.x);
    const int64_t token = blockIdx.x;
    T* x = static_cast<T*>(p.x.data) + token * p.x.token_stride;
    for (int64_t pair = threadIdx.x * N; pair < p.pairs; pair += blockDim.x * N) {
        Pack<float, N> cos = load_pack<N>(p.cos + token * p.pairs + pair);
        Pack<float, N> sin = load_pack<N>(p.sin + token * p.pairs + pair);
        if (p.backward) {
#pragma unroll
            for (int k = 0; k < N; ++k) sin.v[k] = -sin.v[k];
        }
        for (int64_t head = threadIdx.y; head < p.heads; head += heads_at_once * blockDim.y) {
            Pack<T, N> a[heads_at_once], b[heads_at_once];
#pragma unroll
            for (int i = 0; i < heads_at_once; ++i) {
                if (head + i * blockDim.y >= p.heads) break;
                const T* first_half = x + (head + i * blockDim.y) * p.x.head_stride + pair;
                a[i] = load_pack<N>(first_half);
                b[i] = load_pack<N>(first_half + p.pairs);
            }
#pragma unroll
            for (int i = 0; i < heads_at_once; ++i) {
                if (head + i * blockDim.y >= p.heads) break;
                T* first_half = x + (head + i * blockDim.y) * p.x.head_stride + pair;
#pragma unroll
                for (int k = 0; k < N; ++k) {
                    const float x1 = to_float(a[i].v[k]);
                    const float x2 = to_float(b[i].v[k]);
                    a[i].v[k] = from_float<T>(x1 * cos.v[k] - x2 * sin.v[k]);
                    b[i].v[k] = from_float<T>(x2 * cos.v[k] + x1 * sin.v[k]);
                }
                store_pack(first_half, a[i]);
                store_pack(first_half + p.pairs, b[i]);
            }
        }
    }
}

template <class T, int N>
void launch_apply(const RopeApply& params, cudaStream_t stream) {
    const int64_t lanes = std::min<int64_t>(ceil_div(params.pairs, N), 32);
    const int64_t turns = ceil_div(params.heads, apply_threads / lanes);  // heads that a thread walks
    const dim3 block(static_cast<unsigned>(lanes), static_cast<unsigned>(ceil_div(params.heads, turns)));
    launch_kernel(rope_apply_kernel<T, N>,
                  {.grid = dim3(static_cast<unsigned>(params.tokens)),
                   .threads = block,
                   .stream = stream,
                   .after_previous = uses_programmatic_launch(params.tokens)},
                  params);
}

bool is_vectorizable(const RopeApply& p, int width) {
    return p.pairs % width == 0 &&
           aligned_16(p.x.data, {p.x.token_stride, p.heads > 1 ? p.x.head_stride : 0}, p.type) &&
           aligned_16(p.cos, {}, spec::DType::f32) && aligned_16(p.sin, {}, spec::DType::f32);
}

}  // namespace

void rope_table(const RopeTable& params, cudaStream_t stream) {
    const int64_t elements = params.tokens * params.pairs;
    if (elements == 0) return;
    UNSLOTH_LAUNCH(rope_table_kernel, static_cast<unsigned>(ceil_div(elements, table_threads)), table_threads, 0,
                   stream, params);
}

void rope_apply(const RopeApply& params, cudaStream_t stream) {
    if (params.tokens == 0 || params.heads == 0 || params.pairs == 0) return;
    dispatch_floating(params.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        if (is_vectorizable(params, vector_width<T>)) {
            launch_apply<T, vector_width<T>>(params, stream);
        } else {
            launch_apply<T, 1>(params, stream);
        }
    });
}

}  // namespace unsloth::kernels
