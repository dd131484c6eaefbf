// Attention with sinks from attention without: out *= exp(lse - lse'), lse' = log(exp(lse) + exp(sink)).
//
// Ceiling: the memory's rate, each value of out read and written once. A warp takes a token's head.
#include "kernels/attention_sinks.h"
#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"

namespace unsloth::kernels {
namespace {

constexpr int sink_threads = 256;

template <class T, int N>
__global__ void __launch_bounds__(sink_threads) sinks_kernel(AttentionSinks a) {
    const int64_t row = (static_cast<int64_t>(blockIdx.x) * sink_threads + threadIdx.x) / warp_size;
    if (row >= a.tokens * a.heads) return;
    const int64_t token = row / a.heads, first = token / a.length * a.length;
    const int head = static_cast<int>(row % a.heads), lane = threadIdx.x % warp_size;
    float* statistic =
        a.lse.data + first * a.lse.token_stride + head * a.lse.head_stride + (token - first) * a.lse.row_stride;
    const float lse = *statistic, sink = a.sinks[head], high = fmaxf(lse, sink);
    const float of_keys = expf(lse - high), sum = of_keys + expf(sink - high);
    __syncwarp();  // all lanes have read what one writes
    if (lane == 0) *statistic = high + logf(sum);
    const float share = of_keys / sum;
    T* out = static_cast<T*>(a.out.data) + token * a.out.token_stride + head * a.out.head_stride;
    for (int column = lane * N; column < a.head_dim; column += warp_size * N) {
        Pack<T, N> values = load_pack<N>(out + column);
#pragma unroll
        for (int i = 0; i < N; ++i) values.v[i] = from_float<T>(to_float(values.v[i]) * share);
        store_pack(out + column, values);
    }
}

template <class T>
void by_alignment(const AttentionSinks& a, cudaStream_t stream) {
    constexpr std::size_t bytes = 2 * sizeof(T);
    const bool pairs = a.head_dim % 2 == 0 && a.out.token_stride % 2 == 0 && a.out.head_stride % 2 == 0 &&
                       reinterpret_cast<std::uintptr_t>(a.out.data) % bytes == 0;
    const int64_t threads = a.tokens * a.heads * warp_size;
    const dim3 grid(static_cast<unsigned>((threads + sink_threads - 1) / sink_threads));
    launch_kernel(pairs ? sinks_kernel<T, 2> : sinks_kernel<T, 1>,
                  {.grid = grid, .threads = sink_threads, .stream = stream}, a);
}

}  // namespace

void attention_sinks(const AttentionSinks& a, cudaStream_t stream) {
    if (a.tokens == 0) return;
    switch (a.dtype) {
        case spec::DType::f32:
            return by_alignment<float>(a, stream);
        case spec::DType::bf16:
            return by_alignment<__nv_bfloat16>(a, stream);
        case spec::DType::f16:
            return by_alignment<__half>(a, stream);
        default:
            unsupported_dtype(a.dtype);
    }
}

}  // namespace unsloth::kernels
