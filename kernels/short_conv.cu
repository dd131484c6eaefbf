// A short causal convolution of each channel over its segment's tokens, and SiLU. A thread has a pack of channels for a
// run of tokens, whose last rows it keeps in registers. Ceiling: memory, 4 bytes an element of bf16 forward, 6
// backward; runs begin again with the rows before them, from the L2. The weight's gradient is a pass of its own.
#include "kernels/common/launch.h"
#include "kernels/common/ptx.cuh"
#include "kernels/delta_gates.cuh"
#include "kernels/gated_delta.h"

namespace unsloth::kernels {

namespace {

constexpr int conv_threads = 128;
constexpr int run_tokens = 32, few_run_tokens = 1;  ///< of a block; few tokens would keep few multiprocessors busy
constexpr int sum_channels = 32, sum_rows = 8;      ///< of a block of the weight's gradient

/// The last segment that begins at or before a token.
__device__ __forceinline__ int segment_of(const DeltaSegments& s, int token) {
    int low = 0, high = s.count - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (s.offsets[middle] <= token)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/// Of the rows before a segment, in kept's data, the one that precedes it by `back`.
__device__ __forceinline__ int64_t kept_row(const ShortConv& p, int segment, int back) {
    return (int64_t{p.kept.rows[segment]} * (p.width - 1) + p.width - 1 - back) * p.channels;
}

/// A row's pack of channels as fp32.
template <class T, int N>
__device__ __forceinline__ void load_floats(const void* data, int64_t offset, float (&to)[N]) {
    const Pack<T, N> pack = load_pack<N>(static_cast<const T*>(data) + offset);
#pragma unroll
    for (int k = 0; k < N; ++k) to[k] = to_float(pack.v[k]);
}
template <class T, int N>
__device__ __forceinline__ void store_floats(void* data, int64_t offset, const float (&from)[N]) {
    Pack<T, N> pack;
#pragma unroll
    for (int k = 0; k < N; ++k) pack.v[k] = from_float<T>(from[k]);
    store_pack(static_cast<T*>(data) + offset, pack);
}

/// The last `Width` rows of a pack of channels, and their taps.
template <class T, int N, int Width>
struct Window {
    float taps[Width][N], rows[Width][N];

    __device__ __forceinline__ Window(const ShortConv& p, int64_t channel) {
#pragma unroll
        for (int k = 0; k < N; ++k)
#pragma unroll
            for (int w = 0; w < Width; ++w) taps[w][k] = p.weight[(channel + k) * Width + w];
    }
    __device__ __forceinline__ void push(const float (&row)[N]) {
#pragma unroll
        for (int k = 0; k < N; ++k) {
#pragma unroll
            for (int w = 0; w + 1 < Width; ++w) rows[w][k] = rows[w + 1][k];
            rows[Width - 1][k] = row[k];
        }
    }
    /// The rows before `token`, which is of this segment; kept ones before the segment's first.
    __device__ __forceinline__ void start(const ShortConv& p, int64_t channel, int segment, int token) {
        const int first = p.segments.offsets[segment];
#pragma unroll
        for (int back = Width - 1; back >= 1; --back) {
            float row[N] = {};
            if (token - back >= first)
                load_floats<T>(p.x.data, (token - back) * p.x.stride + channel, row);
            else if (p.kept.keeps(segment))
                load_floats<T>(p.kept.data, kept_row(p, segment, first - (token - back)) + channel, row);
            push(row);
        }
    }
    __device__ __forceinline__ float sum(int k) const {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < Width; ++w) sum += taps[w][k] * rows[w][k];
        return sum;
    }
};

template <class T, int N, int Width>
__global__ void __launch_bounds__(conv_threads) conv_forward_kernel(const ShortConv p, int run) {
    begin_after_previous(static_cast<uint32_t>(p.segments.tokens));
    const int64_t channel = (int64_t{blockIdx.x} * conv_threads + threadIdx.x) * N;
    if (channel >= p.channels) return;
    const int begin = static_cast<int>(blockIdx.y) * run, end = min(begin + run, static_cast<int>(p.segments.tokens));
    Window<T, N, Width> window(p, channel);
    int segment = segment_of(p.segments, begin);
    window.start(p, channel, segment, begin);
    for (int token = begin; token < end; ++token) {
        if (token == p.segments.offsets[segment + 1])
            window.start(p, channel, segment = segment_of(p.segments, token), token);
        float row[N], out[N];
        load_floats<T>(p.x.data, token * p.x.stride + channel, row);
        window.push(row);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const float sum = window.sum(k);
            out[k] = sum * delta::sigmoid(sum);
        }
        store_floats<T>(p.y.data, token * p.y.stride + channel, out);
    }
}

/// The segments' last rows, after the convolution has read the ones before: a thread a channel.
template <class T>
__global__ void __launch_bounds__(conv_threads) conv_keep_kernel(const ShortConv p) {
    begin_after_previous(static_cast<uint32_t>(p.segments.tokens));
    const int64_t channel = int64_t{blockIdx.x} * conv_threads + threadIdx.x;
    const int segment = static_cast<int>(blockIdx.y), kept = p.width - 1;
    if (channel >= p.channels || !p.kept.keeps(segment)) return;
    const int first = p.segments.offsets[segment], end = p.segments.offsets[segment + 1];
    T* const to = static_cast<T*>(p.kept.data) + int64_t{p.kept.rows[segment]} * kept * p.channels + channel;
    for (int i = 0; i < kept; ++i) {  // in this order a row is read before it is written
        const int token = end - kept + i;
        to[i * p.channels] = token >= first ? static_cast<const T*>(p.x.data)[token * p.x.stride + channel]
                                            : to[(i + end - first) * p.channels];
    }
}

/// The gradient of a sum before SiLU.
__device__ __forceinline__ float before_silu(float dy, float sum) {
    const float s = delta::sigmoid(sum);
    return dy * s * (1.0f + sum * (1.0f - s));
}

template <class T, int N, int Width>
__global__ void __launch_bounds__(conv_threads) conv_backward_kernel(const ShortConv p) {
    const int64_t channel = (int64_t{blockIdx.x} * conv_threads + threadIdx.x) * N;
    if (channel >= p.channels) return;
    const int tokens = static_cast<int>(p.segments.tokens), begin = static_cast<int>(blockIdx.y) * run_tokens,
              end = min(begin + run_tokens, tokens);
    Window<T, N, Width> window(p, channel);
    int segment = segment_of(p.segments, begin), first = p.segments.offsets[segment];
    window.start(p, channel, segment, begin);
    float dx[Width][N] = {};  // of the last tokens: the newest last
    for (int token = begin; token < end + Width - 1; ++token) {
        if (token < tokens && token == p.segments.offsets[segment + 1]) {
            window.start(p, channel, segment = segment_of(p.segments, token), token);
            first = token;
        }
#pragma unroll
        for (int k = 0; k < N; ++k) {
#pragma unroll
            for (int w = 0; w + 1 < Width; ++w) dx[w][k] = dx[w + 1][k];
            dx[Width - 1][k] = 0.0f;
        }
        if (token < tokens) {
            float row[N], dy[N];
            load_floats<T>(p.x.data, token * p.x.stride + channel, row);
            load_floats<T>(p.dy.data, token * p.dy.stride + channel, dy);
            window.push(row);
#pragma unroll
            for (int k = 0; k < N; ++k) {
                const float dsum = before_silu(dy[k], window.sum(k));
#pragma unroll
                for (int w = 0; w < Width; ++w)
                    if (token - (Width - 1 - w) >= first) dx[w][k] += window.taps[w][k] * dsum;
            }
        }
        const int ready = token - (Width - 1);
        if (ready >= begin) store_floats<T>(p.dx.data, ready * p.dx.stride + channel, dx[0]);
    }
}

/// The gradients of the rows before segments, which their first tokens read: a thread a channel.
template <class T>
__global__ void __launch_bounds__(conv_threads) conv_before_kernel(const ShortConv p) {
    const int64_t channel = int64_t{blockIdx.x} * conv_threads + threadIdx.x;
    const int segment = static_cast<int>(blockIdx.y), before = p.width - 1;
    if (channel >= p.channels || !p.kept.keeps(segment)) return;
    const int first = p.segments.offsets[segment], count = min(before, p.segments.offsets[segment + 1] - first);
    const T *const x = static_cast<const T*>(p.x.data) + channel, *const dy =
                                                                      static_cast<const T*>(p.dy.data) + channel;
    const T* const kept = static_cast<const T*>(p.kept.data) + channel;
    const float* const taps = p.weight + channel * p.width;
    float gradients[most_conv_width] = {};
    for (int i = 0; i < count; ++i) {
        float sum = 0.0f;
        for (int tap = 0; tap < p.width; ++tap) {
            const int token = i - before + tap;  // of the segment; negative: before it
            sum +=
                taps[tap] * to_float(token < 0 ? kept[kept_row(p, segment, -token)] : x[(first + token) * p.x.stride]);
        }
        const float dsum = before_silu(to_float(dy[(first + i) * p.dy.stride]), sum);
#pragma unroll
        for (int row = 0; row < most_conv_width; ++row)
            if (row >= i && row < before) gradients[row] += taps[row - i] * dsum;
    }
    T* const to = static_cast<T*>(p.dkept) + kept_row(p, segment, before) + channel;
#pragma unroll
    for (int row = 0; row < most_conv_width; ++row)
        if (row < before) to[row * p.channels] = from_float<T>(gradients[row]);
}

/// A block 32 channels: 8 threads each take every eighth token in order, and their sums are added in order.
template <class T>
__global__ void __launch_bounds__(sum_channels* sum_rows) conv_weight_kernel(const ShortConv p) {
    __shared__ float sums[sum_rows][sum_channels];
    const int64_t channel = int64_t{blockIdx.x} * sum_channels + threadIdx.x;
    const bool valid = channel < p.channels;
    const T *const x = static_cast<const T*>(p.x.data) + channel, *const dy =
                                                                      static_cast<const T*>(p.dy.data) + channel;
    float dweight[most_conv_width] = {};
    int segment = 0;
    for (int token = threadIdx.y; valid && token < p.segments.tokens; token += sum_rows) {
        while (token >= p.segments.offsets[segment + 1]) ++segment;
        const int seen = min(p.width - 1, token - p.segments.offsets[segment]);  // rows before this one
        float rows[most_conv_width], sum = 0.0f;
#pragma unroll
        for (int back = 0; back < most_conv_width; ++back) {
            rows[back] = back <= seen ? to_float(x[(token - back) * p.x.stride]) : 0.0f;
            if (back > seen && back < p.width && p.kept.keeps(segment))
                rows[back] = to_float(static_cast<const T*>(
                    p.kept.data)[kept_row(p, segment, back - (token - p.segments.offsets[segment])) + channel]);
            if (back < p.width) sum += p.weight[channel * p.width + p.width - 1 - back] * rows[back];
        }
        const float dsum = before_silu(to_float(dy[token * p.dy.stride]), sum);
#pragma unroll
        for (int back = 0; back < most_conv_width; ++back) dweight[back] += rows[back] * dsum;
    }
#pragma unroll
    for (int back = 0; back < most_conv_width; ++back) {
        sums[threadIdx.y][threadIdx.x] = dweight[back];
        __syncthreads();
        if (threadIdx.y == 0 && valid && back < p.width) {
            float sum = 0.0f;
            for (int row = 0; row < sum_rows; ++row) sum += sums[row][threadIdx.x];
            p.dweight[channel * p.width + p.width - 1 - back] += sum;
        }
        __syncthreads();
    }
}

/// Calls f(width) with a constant for the taps.
template <class F>
void with_width(int width, F f) {
    switch (width) {
        case 1:
            return f(std::integral_constant<int, 1>{});
        case 2:
            return f(std::integral_constant<int, 2>{});
        case 3:
            return f(std::integral_constant<int, 3>{});
        case 4:
            return f(std::integral_constant<int, 4>{});
        case 5:
            return f(std::integral_constant<int, 5>{});
        case 6:
            return f(std::integral_constant<int, 6>{});
        case 7:
            return f(std::integral_constant<int, 7>{});
        default:
            return f(std::integral_constant<int, most_conv_width>{});
    }
}

/// f(type, channels a thread, taps): packs of 4 channels where addresses allow them and there are 4 taps.
template <class F>
void with_packs(const ShortConv& p, const ConstMatrix& first, const ConstMatrix& second, F f) {
    dispatch_floating(p.type, [&](auto tag) {
        const bool vector = p.width == 4 && p.channels % 8 == 0 && aligned_16(first.data, {first.stride}, p.type) &&
                            aligned_16(second.data, {second.stride}, p.type) &&
                            aligned_16(p.x.data, {p.x.stride}, p.type) && aligned_16(p.kept.data, {}, p.type);
        if (vector) return f(tag, std::integral_constant<int, 4>{}, std::integral_constant<int, 4>{});
        with_width(p.width, [&](auto width) { f(tag, std::integral_constant<int, 1>{}, width); });
    });
}
Launch conv_launch(const ShortConv& p, int packs, int64_t rows, cudaStream_t stream, bool after_previous) {
    return {.grid = dim3(static_cast<unsigned>(ceil_div(p.channels, int64_t{conv_threads} * packs)),
                         static_cast<unsigned>(rows)),
            .threads = dim3(conv_threads),
            .stream = stream,
            .after_previous = after_previous};
}

}  // namespace

void short_conv_forward(const ShortConv& p, cudaStream_t stream) {
    if (p.segments.tokens == 0) return;
    const bool few = uses_programmatic_launch(p.segments.tokens);
    const int run = few ? few_run_tokens : run_tokens;
    with_packs(p, {p.y.data, p.y.stride}, p.x, [&](auto tag, auto packs, auto width) {
        using T = typename decltype(tag)::type;
        launch_kernel(conv_forward_kernel<T, decltype(packs)::value, decltype(width)::value>,
                      conv_launch(p, decltype(packs)::value, ceil_div(p.segments.tokens, run), stream, few), p, run);
        if (p.kept.data != nullptr && !p.kept.read_only)
            launch_kernel(conv_keep_kernel<T>, conv_launch(p, 1, p.segments.count, stream, few), p);
    });
}

void short_conv_backward(const ShortConv& p, cudaStream_t stream) {
    if (p.segments.tokens == 0) return;
    with_packs(p, {p.dx.data, p.dx.stride}, p.dy, [&](auto tag, auto packs, auto width) {
        using T = typename decltype(tag)::type;
        launch_kernel(conv_backward_kernel<T, decltype(packs)::value, decltype(width)::value>,
                      conv_launch(p, decltype(packs)::value, ceil_div(p.segments.tokens, run_tokens), stream, false),
                      p);
        if (p.kept.data != nullptr)
            launch_kernel(conv_before_kernel<T>, conv_launch(p, 1, p.segments.count, stream, false), p);
        if (p.dweight != nullptr)
            launch_kernel(conv_weight_kernel<T>,
                          {.grid = dim3(static_cast<unsigned>(ceil_div(p.channels, sum_channels))),
                           .threads = dim3(sum_channels, sum_rows),
                           .stream = stream},
                          p);
    });
}

}  // namespace unsloth::kernels
