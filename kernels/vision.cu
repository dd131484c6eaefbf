// Small operators of a tower over image patches: bytes to values, interpolated positions, LayerNorm (Ba et al., 2016),
// GELU (Hendrycks & Gimpel, 2016), the last two backward too. A block has a row and its threads walk the columns. They
// run once a micro-batch, next to products that are two orders larger. Ceiling: the bandwidth of memory.
#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/vision.h"

namespace unsloth::kernels {

namespace {

constexpr int vision_threads = 256;

template <class T>
__global__ void __launch_bounds__(vision_threads) patch_values_kernel(const PatchValues p) {
    const int64_t patch = blockIdx.x, in_frames = p.frames * p.area, columns = p.channels * in_frames;
    const uint8_t* const bytes = p.bytes + patch * p.channels * p.area;
    T* const out = static_cast<T*>(p.out) + patch * columns;
    for (int64_t i = threadIdx.x; i < columns; i += vision_threads) {
        const int64_t channel = i / in_frames;
        out[i] = from_float<T>(p.values[channel * 256 + bytes[channel * p.area + i % p.area]]);
    }
}

template <class T>
__global__ void __launch_bounds__(vision_threads) add_interpolated_kernel(const AddInterpolated p) {
    const int64_t patch = blockIdx.x;
    const T* const table = static_cast<const T*>(p.table);
    T* const x = static_cast<T*>(p.x.data) + patch * p.x.stride;
    for (int64_t c = threadIdx.x; c < p.columns; c += vision_threads) {
        float sum = 0;
        for (int64_t j = 4 * patch; j < 4 * patch + 4; ++j)
            sum += p.share[j] * to_float(table[p.index[j] * p.columns + c]);
        x[c] = from_float<T>(sum + to_float(x[c]));
    }
}

template <class T>
__global__ void __launch_bounds__(vision_threads) layer_norm_kernel(const LayerNorm p) {
    __shared__ float shared[32];
    const T* const x = static_cast<const T*>(p.x.data) + blockIdx.x * p.x.stride;
    T* const y = static_cast<T*>(p.y.data) + blockIdx.x * p.y.stride;
    const float count = static_cast<float>(p.columns);
    float sum = 0, squares = 0;
    for (int64_t c = threadIdx.x; c < p.columns; c += vision_threads) sum += to_float(x[c]);
    const float mean = block_sum(sum, shared) / count;
    for (int64_t c = threadIdx.x; c < p.columns; c += vision_threads) {
        const float off = to_float(x[c]) - mean;
        squares += off * off;
    }
    const float rstd = 1.0f / sqrtf(block_sum(squares, shared) / count + p.eps);
    for (int64_t c = threadIdx.x; c < p.columns; c += vision_threads)
        y[c] = from_float<T>((to_float(x[c]) - mean) * rstd * p.weight[c] + p.bias[c]);
}

template <class T>
__global__ void __launch_bounds__(vision_threads) layer_norm_backward_kernel(const LayerNormBackward p) {
    __shared__ float shared[32];
    const T* const x = static_cast<const T*>(p.x.data) + blockIdx.x * p.x.stride;
    const T* const dy = static_cast<const T*>(p.dy.data) + blockIdx.x * p.dy.stride;
    T* const dx = static_cast<T*>(p.dx.data) + blockIdx.x * p.dx.stride;
    const float count = static_cast<float>(p.columns);
    float sum = 0, squares = 0, gradients = 0, products = 0;
    for (int64_t c = threadIdx.x; c < p.columns; c += vision_threads) sum += to_float(x[c]);
    const float mean = block_sum(sum, shared) / count;
    for (int64_t c = threadIdx.x; c < p.columns; c += vision_threads) {
        const float off = to_float(x[c]) - mean, slope = to_float(dy[c]) * p.weight[c];
        squares += off * off;
        gradients += slope;
        products += slope * off;
    }
    const float rstd = 1.0f / sqrtf(block_sum(squares, shared) / count + p.eps);
    const float gradient = block_sum(gradients, shared) / count;
    const float along = block_sum(products, shared) / count * rstd * rstd;
    for (int64_t c = threadIdx.x; c < p.columns; c += vision_threads) {
        const float slope = to_float(dy[c]) * p.weight[c];
        dx[c] = from_float<T>(to_float(dx[c]) + rstd * (slope - gradient - (to_float(x[c]) - mean) * along));
    }
}

constexpr float gelu_slope = 0.7978845608028654f, gelu_cubic = 0.044715f, root_half = 0.7071067811865476f;

template <class T>
__global__ void __launch_bounds__(vision_threads) gelu_kernel(const GeluRows p) {
    T* const x = static_cast<T*>(p.x.data) + blockIdx.x * p.x.stride;
    for (int64_t c = threadIdx.x; c < p.columns; c += vision_threads) {
        const float v = to_float(x[c]);
        const float inner = p.tanh ? tanhf(gelu_slope * (v + gelu_cubic * v * v * v)) : erff(v * root_half);
        x[c] = from_float<T>(0.5f * v * (1.0f + inner));
    }
}

/// With tanh: d/dx of x/2 (1 + t) is (1 + t)/2 + x/2 (1 - t^2) t'; with erf x/2 times its slope, a Gaussian's density.
template <class T>
__global__ void __launch_bounds__(vision_threads) gelu_backward_kernel(const GeluBackward p) {
    constexpr float density = 0.3989422804014327f;  // 1 / sqrt(2 pi)
    const T* const x = static_cast<const T*>(p.x.data) + blockIdx.x * p.x.stride;
    T* const dy = static_cast<T*>(p.dy.data) + blockIdx.x * p.dy.stride;
    for (int64_t c = threadIdx.x; c < p.columns; c += vision_threads) {
        const float v = to_float(x[c]);
        const float t = p.tanh ? tanhf(gelu_slope * (v + gelu_cubic * v * v * v)) : erff(v * root_half);
        const float turn = p.tanh ? 0.5f * v * (1.0f - t * t) * gelu_slope * (1.0f + 3.0f * gelu_cubic * v * v)
                                  : v * density * expf(-0.5f * v * v);
        dy[c] = from_float<T>(to_float(dy[c]) * (0.5f * (1.0f + t) + turn));
    }
}

/// A block a row; kernel_of(tag) is the kernel for values of the tag's type.
template <class Params, class Choose>
void launch_rows(const Params& params, int64_t rows, cudaStream_t stream, const Choose& kernel_of) {
    if (rows == 0) return;
    dispatch_floating(params.type, [&](auto tag) {
        UNSLOTH_LAUNCH(kernel_of(tag), static_cast<unsigned>(rows), vision_threads, 0, stream, params);
    });
}

}  // namespace

void patch_values(const PatchValues& params, cudaStream_t stream) {
    launch_rows(params, params.patches, stream,
                [](auto tag) { return patch_values_kernel<typename decltype(tag)::type>; });
}

void add_interpolated(const AddInterpolated& params, cudaStream_t stream) {
    launch_rows(params, params.patches, stream,
                [](auto tag) { return add_interpolated_kernel<typename decltype(tag)::type>; });
}

void layer_norm_forward(const LayerNorm& params, cudaStream_t stream) {
    launch_rows(params, params.rows, stream, [](auto tag) { return layer_norm_kernel<typename decltype(tag)::type>; });
}

void layer_norm_backward(const LayerNormBackward& params, cudaStream_t stream) {
    launch_rows(params, params.rows, stream,
                [](auto tag) { return layer_norm_backward_kernel<typename decltype(tag)::type>; });
}

void gelu(const GeluRows& params, cudaStream_t stream) {
    launch_rows(params, params.rows, stream, [](auto tag) { return gelu_kernel<typename decltype(tag)::type>; });
}

void gelu_backward(const GeluBackward& params, cudaStream_t stream) {
    launch_rows(params, params.rows, stream,
                [](auto tag) { return gelu_backward_kernel<typename decltype(tag)::type>; });
}

}  // namespace unsloth::kernels
