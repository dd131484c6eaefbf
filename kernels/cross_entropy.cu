// Cross-entropy over long rows (V is 32,000 to 256,000): a block a row, one pass for maximum and sum, one for the
// gradient.
//
// A row of 128,256 bf16 logits is larger than shared memory, but the rows in work on all multiprocessors (a block of
// 1024 threads each) fit the L2 cache: the second pass reads from there, backwards, so that it begins with what was
// read last. Ceiling: the bandwidth of memory, 4 bytes a bf16 logit with its gradient.
#include <type_traits>

#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/online_softmax.cuh"
#include "kernels/cross_entropy.h"

namespace unsloth::kernels {

namespace {

constexpr int row_threads = 1024;
constexpr int packs_in_flight = 4;

template <class T, int N>
__device__ OnlineSoftmax row_online_softmax(const T* row, int packs, int columns) {
    OnlineSoftmax state;
    for (int first = threadIdx.x; first < packs; first += packs_in_flight * row_threads) {
        Pack<T, N> loaded[packs_in_flight];
#pragma unroll
        for (int i = 0; i < packs_in_flight; ++i) {
            const int pack = first + i * row_threads;
            if (pack < packs) loaded[i] = load_pack<N>(row + pack * N);
        }
#pragma unroll
        for (int i = 0; i < packs_in_flight; ++i) {
            if (first + i * row_threads < packs) state.add(loaded[i]);
        }
    }
    for (int c = packs * N + threadIdx.x; c < columns; c += row_threads) state.add(load_pack<1>(row + c));
    return merge_block<row_threads>(state);
}

/// (softmax - onehot) * scale in place.
template <class T, int N>
__device__ void write_gradient(T* row, int packs, int columns, int target, const OnlineSoftmax& total, float scale) {
    const float factor = scale / total.sum;
    const auto gradient = [&](T logit, int column) {
        const float p = __expf(to_float(logit) - total.maximum) * factor;
        return from_float<T>(column == target ? p - scale : p);
    };
    for (int c = packs * N + threadIdx.x; c < columns; c += row_threads) row[c] = gradient(row[c], c);
    for (int last = packs - 1 - static_cast<int>(threadIdx.x); last >= 0; last -= packs_in_flight * row_threads) {
        Pack<T, N> loaded[packs_in_flight];
#pragma unroll
        for (int i = 0; i < packs_in_flight; ++i) {
            const int pack = last - i * row_threads;
            if (pack >= 0) loaded[i] = load_pack<N>(row + pack * N);
        }
#pragma unroll
        for (int i = 0; i < packs_in_flight; ++i) {
            const int pack = last - i * row_threads;
            if (pack < 0) continue;
#pragma unroll
            for (int k = 0; k < N; ++k) loaded[i].v[k] = gradient(loaded[i].v[k], pack * N + k);
            store_pack(row + pack * N, loaded[i]);
        }
    }
}

template <class T>
__device__ __forceinline__ T* row_of(const Matrix& logits) {
    return static_cast<T*>(logits.data) + blockIdx.x * logits.stride;
}

/// Of the block's row.
__device__ __forceinline__ float gradient_scale(const CrossEntropy& p) {
    const float of_step = p.scalars->inv_loss_divisor * p.scalars->loss_scale;
    return p.weights != nullptr ? of_step * p.weights[blockIdx.x] : of_step;
}

template <class T, int N>
__global__ void __launch_bounds__(row_threads, 1) cross_entropy_kernel(const CrossEntropy p) {
    T* row = row_of<T>(p.logits);
    const int columns = static_cast<int>(p.columns);
    const int packs = columns / N;
    const int target = p.targets[blockIdx.x];
    const float target_logit = threadIdx.x == 0 ? to_float(row[target]) : 0.f;  // read before the gradient replaces it
    const OnlineSoftmax total = row_online_softmax<T, N>(row, packs, columns);
    if (threadIdx.x == 0) p.losses[blockIdx.x] = logf(total.sum) + (total.maximum - target_logit);
    if (p.gradient) {
        write_gradient<T, N>(row, packs, columns, target, total, gradient_scale(p));
    }
}

template <class T, int N>
__global__ void __launch_bounds__(row_threads, 1) cross_entropy_statistics_kernel(const CrossEntropyStatistics p) {
    const T* row = static_cast<const T*>(p.logits.data) + blockIdx.x * p.logits.stride;
    const int columns = static_cast<int>(p.columns);
    const OnlineSoftmax total = row_online_softmax<T, N>(row, columns / N, columns);
    if (threadIdx.x != 0) return;
    const int64_t target = p.targets[blockIdx.x] - p.first;
    p.statistics[blockIdx.x] = total.maximum;
    p.statistics[p.rows + blockIdx.x] = total.sum;
    p.statistics[2 * p.rows + blockIdx.x] = target >= 0 && target < columns ? to_float(row[target]) : 0.f;
}

/// Every thread combines the slices' statistics by itself: there are a few of them.
template <class T, int N>
__global__ void __launch_bounds__(row_threads, 1) cross_entropy_of_slice_kernel(const CrossEntropyOfSlice p) {
    const CrossEntropy& own = p.of_slice;
    const float* const of_row = p.statistics + blockIdx.x;
    OnlineSoftmax total;
    float target_logit = 0.f;
    for (int64_t s = 0; s < p.slices; ++s) {
        const float* const slice = of_row + s * 3 * own.rows;
        total.merge(slice[0], slice[own.rows]);
        target_logit += slice[2 * own.rows];
    }
    if (threadIdx.x == 0) own.losses[blockIdx.x] = logf(total.sum) + (total.maximum - target_logit);
    if (!own.gradient) return;
    const int columns = static_cast<int>(own.columns);
    const int target = static_cast<int>(own.targets[blockIdx.x] - p.first);  // no column of this slice matches others
    write_gradient<T, N>(row_of<T>(own.logits), columns / N, columns, target, total, gradient_scale(own));
}

__global__ void __launch_bounds__(row_threads) accumulate_loss_kernel(const AccumulateLoss p) {
    double sum = 0;
    for (int64_t i = threadIdx.x; i < p.count; i += row_threads) sum += p.losses[i];
    const double total = block_sum_f64<row_threads>(sum);
    if (threadIdx.x != 0) return;
    p.outcome->loss = static_cast<float>(p.outcome->loss + total * p.scalars->inv_loss_divisor);
    if (p.site != spec::all_finite && !isfinite(total)) atomicMin(&p.outcome->first_bad_site, p.site);
}

struct Best {
    float value;
    int index;

    __device__ __forceinline__ void offer(float other, int other_index) {
        if (other > value || (other == value && other_index < index)) {
            value = other;
            index = other_index;
        }
    }
    __device__ __forceinline__ void merge_warp() {
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            const float other = __shfl_xor_sync(all_lanes, value, offset);
            const int other_index = __shfl_xor_sync(all_lanes, index, offset);
            offer(other, other_index);
        }
    }
};

/// NaN is never the best; a row without any number above -inf gives 0.
template <class T, int N>
__global__ void __launch_bounds__(row_threads) argmax_rows_kernel(const ArgmaxRows p) {
    __shared__ float values[row_threads / 32];
    __shared__ int indices[row_threads / 32];
    const T* row = static_cast<const T*>(p.logits.data) + blockIdx.x * p.logits.stride;
    const int columns = static_cast<int>(p.columns);
    const int packs = columns / N;
    Best best{-INFINITY, 0};
#pragma unroll 4
    for (int pack = threadIdx.x; pack < packs; pack += row_threads) {
        const Pack<T, N> loaded = load_pack<N>(row + pack * N);
#pragma unroll
        for (int k = 0; k < N; ++k) best.offer(to_float(loaded.v[k]), pack * N + k);
    }
    for (int c = packs * N + threadIdx.x; c < columns; c += row_threads) best.offer(to_float(row[c]), c);
    best.merge_warp();
    if (threadIdx.x % 32 == 0) {
        values[threadIdx.x / 32] = best.value;
        indices[threadIdx.x / 32] = best.index;
    }
    __syncthreads();
    best = {values[threadIdx.x % 32], indices[threadIdx.x % 32]};
    best.merge_warp();
    if (threadIdx.x == 0) p.best[blockIdx.x] = best.index;
}

/// Calls launch(a T, elements that a thread takes at once, blocks) for rows of logits, if there are any.
template <class Launch>
void for_rows(const void* logits, int64_t stride, int64_t rows, spec::DType type, const Launch& launch) {
    if (rows == 0) return;
    dispatch_floating(type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        const auto blocks = static_cast<unsigned>(rows);
        if (aligned_16(logits, {rows > 1 ? stride : 0}, type)) {
            launch(tag, std::integral_constant<int, vector_width<T>>(), blocks);
        } else {
            launch(tag, std::integral_constant<int, 1>(), blocks);
        }
    });
}

}  // namespace

void cross_entropy(const CrossEntropy& p, cudaStream_t stream) {
    for_rows(p.logits.data, p.logits.stride, p.rows, p.type, [&](auto tag, auto width, unsigned rows) {
        using T = typename decltype(tag)::type;
        UNSLOTH_LAUNCH((cross_entropy_kernel<T, decltype(width)::value>), rows, row_threads, 0, stream, p);
    });
}

void cross_entropy_statistics(const CrossEntropyStatistics& p, cudaStream_t stream) {
    for_rows(p.logits.data, p.logits.stride, p.rows, p.type, [&](auto tag, auto width, unsigned rows) {
        using T = typename decltype(tag)::type;
        UNSLOTH_LAUNCH((cross_entropy_statistics_kernel<T, decltype(width)::value>), rows, row_threads, 0, stream, p);
    });
}

void cross_entropy_of_slice(const CrossEntropyOfSlice& p, cudaStream_t stream) {
    const CrossEntropy& own = p.of_slice;
    for_rows(own.logits.data, own.logits.stride, own.rows, own.type, [&](auto tag, auto width, unsigned rows) {
        using T = typename decltype(tag)::type;
        UNSLOTH_LAUNCH((cross_entropy_of_slice_kernel<T, decltype(width)::value>), rows, row_threads, 0, stream, p);
    });
}

void accumulate_loss(const AccumulateLoss& p, cudaStream_t stream) {
    if (p.count == 0) return;
    UNSLOTH_LAUNCH(accumulate_loss_kernel, 1, row_threads, 0, stream, p);
}

void argmax_rows(const ArgmaxRows& p, cudaStream_t stream) {
    for_rows(p.logits.data, p.logits.stride, p.rows, p.type, [&](auto tag, auto width, unsigned rows) {
        using T = typename decltype(tag)::type;
        UNSLOTH_LAUNCH((argmax_rows_kernel<T, decltype(width)::value>), rows, row_threads, 0, stream, p);
    });
}

}  // namespace unsloth::kernels
