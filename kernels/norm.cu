// RMSNorm, forward and backward, over rows that stay in registers between the reduction and the result.
//
// A row belongs to `blockDim.x` threads: up to 32 lanes of a warp (then blockDim.y rows share the block), or the whole
// block. Each thread owns the same columns of every row it meets, so weights are read once and the weight's gradient is
// summed in registers. Blocks loop over rows. Rows too long for registers, and rows that 16-byte packs do not fit, take
// the streaming kernels, which read a row twice (again from the L1 cache).
#include "kernels/common.h"
#include "kernels/device.cuh"
#include "kernels/norm.h"

namespace unsloth::kernels {

namespace {

constexpr int max_threads = 512;
constexpr int group_threads = 256;  // of a block whose warps hold several rows
constexpr int stream_threads = 256;
constexpr int dweight_blocks = 264;  // fixed, so that the order of summation does not depend on the card
constexpr int max_packs = 2;         // 16-byte packs of a row in one thread's registers

/// How a row of `columns` elements is spread over threads by packs of `width` elements.
struct Geometry {
    int packs = 0;  ///< per thread: 1 or 2; 0: the streaming kernels
    int threads = stream_threads;
    int rows = 1;  ///< per block
};

Geometry geometry_for(int64_t columns, int width) {
    if (width == 1 || columns % width != 0) return {};
    const int64_t packs = columns / width;
    if (packs <= 32) {
        const int lanes = next_power_of_two(packs);
        return {1, lanes, group_threads / lanes};
    }
    const int per_thread = packs <= 256 ? 1 : max_packs;
    const int64_t threads = round_up(ceil_div(packs, per_thread), 32);
    if (threads > max_threads) return {};
    return {per_thread, static_cast<int>(threads), 1};
}

template <class View>
__device__ __forceinline__ int64_t row_offset(const View& view, uint32_t row, uint32_t heads) {
    const uint32_t token = heads == 1 ? row : row / heads;
    return token * view.token_stride + (row - token * heads) * view.head_stride;
}

/// Sum over the threads of a row, the same in each of them.
template <bool kWithinWarp>
__device__ __forceinline__ float row_sum(float v, float* shared) {
    if constexpr (kWithinWarp) {
        for (int offset = blockDim.x / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, offset);
        return v;
    } else {
        return block_sum(v, shared);
    }
}

/// The columns of one row that a thread owns: pack i covers columns (i * blockDim.x + threadIdx.x) * V ...
template <class T, int N>
struct RowPart {
    static constexpr int V = vector_width<T>;
    Pack<T, V> pack[N];

    __device__ __forceinline__ void load(const T* row, int packs) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const int p = i * blockDim.x + threadIdx.x;
            if (p < packs) {
                pack[i] = load_pack<V>(row + p * V);
            } else {
#pragma unroll
                for (int k = 0; k < V; ++k) pack[i].v[k] = from_float<T>(0.f);
            }
        }
    }
    __device__ __forceinline__ void store(T* row, int packs) const {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const int p = i * blockDim.x + threadIdx.x;
            if (p < packs) store_pack(row + p * V, pack[i]);
        }
    }
    __device__ __forceinline__ float at(int i, int k) const {
        return to_float(pack[i].v[k]);
    }
};

/// V columns of the weight, in fp32.
template <class T, int V>
__device__ __forceinline__ void load_weight(const void* weight, DType type, int64_t column, float (&w)[V]) {
    if (type == DType::f32) {
        const auto loaded = load_pack<V>(static_cast<const float*>(weight) + column);
#pragma unroll
        for (int k = 0; k < V; ++k) w[k] = loaded.v[k];
    } else {
        const auto loaded = load_pack<V>(static_cast<const T*>(weight) + column);
#pragma unroll
        for (int k = 0; k < V; ++k) w[k] = to_float(loaded.v[k]);
    }
}

/// A thread's columns of the weight.
template <class T, int N>
struct WeightPart {
    static constexpr int V = vector_width<T>;
    float w[N][V] = {};

    __device__ __forceinline__ WeightPart(const void* weight, DType type, int packs) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const int p = i * blockDim.x + threadIdx.x;
            if (p < packs) load_weight<T>(weight, type, p * V, w[i]);
        }
    }
};

__device__ __forceinline__ void report(const BadSite& site) {
    if (site.first != nullptr) atomicMin(site.first, site.code);
}

template <class T, int N, bool kWithinWarp>
__global__ void __launch_bounds__(max_threads) norm_forward_kernel(const NormForward p, uint32_t rows, int packs) {
    constexpr int V = vector_width<T>;
    __shared__ float shared[32];
    const WeightPart<T, N> weight(p.weight, p.shape.weight_type, packs);
    const auto heads = static_cast<uint32_t>(p.shape.heads);
    const float inv_columns = 1.f / static_cast<float>(p.shape.columns);
    const T* x = static_cast<const T*>(p.x.data);
    T* y = static_cast<T*>(p.y.data);

    const uint32_t step = gridDim.x * blockDim.y;
    uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
    RowPart<T, N> part;
    part.load(x + row_offset(p.x, row, heads), row < rows ? packs : 0);
    // The block leaves the loop as one: its first row decides.
    for (uint32_t first = row - threadIdx.y; first < rows; first += step, row += step) {
        RowPart<T, N> next;  // in flight while this row is summed
        next.load(x + row_offset(p.x, row + step, heads), row + step < rows ? packs : 0);
        float squares = 0.f;
#pragma unroll
        for (int i = 0; i < N; ++i) {
#pragma unroll
            for (int k = 0; k < V; ++k) squares += part.at(i, k) * part.at(i, k);
        }
        squares = row_sum<kWithinWarp>(squares, shared);
        const float rstd = rsqrtf(squares * inv_columns + p.eps);
        if (row < rows) {
            RowPart<T, N> result;
#pragma unroll
            for (int i = 0; i < N; ++i) {
#pragma unroll
                for (int k = 0; k < V; ++k) {
                    result.pack[i].v[k] = from_float<T>(part.at(i, k) * rstd * weight.w[i][k]);
                }
            }
            result.store(y + row_offset(p.y, row, heads), packs);
            if (threadIdx.x == 0) {
                p.rstd[row] = rstd;
                if (!isfinite(squares)) report(p.site);
            }
        }
        part = next;
    }
}

/// dx (+)= rstd (g - x rstd^2 mean(g x)), g = dy weight; dweight += dy x rstd. kRebuild: y as the forward has it.
template <class T, int N, bool kWithinWarp, bool kWeightGradient, bool kRebuild>
__global__ void __launch_bounds__(max_threads) norm_backward_kernel(const NormBackward p, uint32_t rows, int packs) {
    constexpr int V = vector_width<T>;
    __shared__ float shared[32];
    const WeightPart<T, N> weight(p.weight, p.shape.weight_type, packs);
    float dweight[N][V] = {};
    const auto heads = static_cast<uint32_t>(p.shape.heads);
    const float inv_columns = 1.f / static_cast<float>(p.shape.columns);

    for (uint32_t first = blockIdx.x * blockDim.y; first < rows; first += gridDim.x * blockDim.y) {
        const uint32_t row = first + threadIdx.y;
        const int row_packs = row < rows ? packs : 0;
        T* dx_row = static_cast<T*>(p.dx.data) + row_offset(p.dx, row, heads);
        RowPart<T, N> dy, x, dx, y;
        dy.load(static_cast<const T*>(p.dy.data) + row_offset(p.dy, row, heads), row_packs);
        x.load(static_cast<const T*>(p.x.data) + row_offset(p.x, row, heads), row_packs);
        dx.load(dx_row, p.accumulate ? row_packs : 0);
        const float rstd = row < rows ? p.rstd[row] : 0.f;

        float dot = 0.f;
#pragma unroll
        for (int i = 0; i < N; ++i) {
#pragma unroll
            for (int k = 0; k < V; ++k) dot += dy.at(i, k) * weight.w[i][k] * x.at(i, k);
        }
        dot = row_sum<kWithinWarp>(dot, shared);
        const float projection = rstd * rstd * dot * inv_columns;
        float probe = 0.f;  // NaN as soon as a result is not finite
#pragma unroll
        for (int i = 0; i < N; ++i) {
#pragma unroll
            for (int k = 0; k < V; ++k) {
                const float g = dy.at(i, k) * weight.w[i][k];
                dx.pack[i].v[k] = from_float<T>(dx.at(i, k) + rstd * (g - x.at(i, k) * projection));
                probe += dx.at(i, k) * 0.f;
                if constexpr (kWeightGradient) dweight[i][k] += dy.at(i, k) * (x.at(i, k) * rstd);
                if constexpr (kRebuild) y.pack[i].v[k] = from_float<T>(x.at(i, k) * rstd * weight.w[i][k]);
            }
        }
        dx.store(dx_row, row_packs);
        if constexpr (kRebuild) y.store(static_cast<T*>(p.y.data) + row_offset(p.y, row, heads), row_packs);
        if (probe != 0.f) report(p.site);
    }
    if constexpr (kWeightGradient) {
        float* partial = p.partials + (blockIdx.x * blockDim.y + threadIdx.y) * p.shape.columns;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const int pack = i * blockDim.x + threadIdx.x;
            if (pack < packs) {
#pragma unroll
                for (int k = 0; k < V; ++k) partial[pack * V + k] = dweight[i][k];
            }
        }
    }
}

template <class T, int V>
__global__ void __launch_bounds__(stream_threads) norm_forward_stream_kernel(const NormForward p, uint32_t rows) {
    __shared__ float shared[32];
    const auto heads = static_cast<uint32_t>(p.shape.heads);
    const int64_t columns = p.shape.columns;
    for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T* x = static_cast<const T*>(p.x.data) + row_offset(p.x, row, heads);
        T* y = static_cast<T*>(p.y.data) + row_offset(p.y, row, heads);
        float squares = 0.f;
#pragma unroll 4
        for (int64_t c = threadIdx.x * V; c < columns; c += stream_threads * V) {
            const auto pack = load_pack<V>(x + c);
#pragma unroll
            for (int k = 0; k < V; ++k) squares += to_float(pack.v[k]) * to_float(pack.v[k]);
        }
        squares = block_sum(squares, shared);
        const float rstd = rsqrtf(squares / static_cast<float>(columns) + p.eps);
        for (int64_t c = threadIdx.x * V; c < columns; c += stream_threads * V) {
            auto pack = load_pack<V>(x + c);
            float w[V];
            load_weight<T>(p.weight, p.shape.weight_type, c, w);
#pragma unroll
            for (int k = 0; k < V; ++k) pack.v[k] = from_float<T>(to_float(pack.v[k]) * rstd * w[k]);
            store_pack(y + c, pack);
        }
        if (threadIdx.x == 0) {
            p.rstd[row] = rstd;
            if (!isfinite(squares)) report(p.site);
        }
    }
}

template <class T, int V>
__global__ void __launch_bounds__(stream_threads) norm_backward_stream_kernel(const NormBackward p, uint32_t rows) {
    __shared__ float shared[32];
    const auto heads = static_cast<uint32_t>(p.shape.heads);
    const int64_t columns = p.shape.columns;
    float* partial = p.partials + blockIdx.x * columns;  // a thread only meets its own columns of it
    for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const T* dy_row = static_cast<const T*>(p.dy.data) + row_offset(p.dy, row, heads);
        const T* x_row = static_cast<const T*>(p.x.data) + row_offset(p.x, row, heads);
        T* dx_row = static_cast<T*>(p.dx.data) + row_offset(p.dx, row, heads);
        T* y_row = p.y.data != nullptr ? static_cast<T*>(p.y.data) + row_offset(p.y, row, heads) : nullptr;
        const float rstd = p.rstd[row];
        float dot = 0.f;
#pragma unroll 2
        for (int64_t c = threadIdx.x * V; c < columns; c += stream_threads * V) {
            const auto dy = load_pack<V>(dy_row + c);
            const auto x = load_pack<V>(x_row + c);
            float w[V];
            load_weight<T>(p.weight, p.shape.weight_type, c, w);
#pragma unroll
            for (int k = 0; k < V; ++k) dot += to_float(dy.v[k]) * w[k] * to_float(x.v[k]);
        }
        dot = block_sum(dot, shared);
        const float projection = rstd * rstd * dot / static_cast<float>(columns);
        float probe = 0.f;
        for (int64_t c = threadIdx.x * V; c < columns; c += stream_threads * V) {
            const auto dy = load_pack<V>(dy_row + c);  // before dx is written, which may be dy
            const auto x = load_pack<V>(x_row + c);
            Pack<T, V> dx = {};
            if (p.accumulate) dx = load_pack<V>(dx_row + c);
            float w[V];
            load_weight<T>(p.weight, p.shape.weight_type, c, w);
#pragma unroll
            for (int k = 0; k < V; ++k) {
                const float g = to_float(dy.v[k]) * w[k];
                dx.v[k] = from_float<T>(to_float(dx.v[k]) + rstd * (g - to_float(x.v[k]) * projection));
                probe += to_float(dx.v[k]) * 0.f;
            }
            store_pack(dx_row + c, dx);
            if (y_row != nullptr) {
                Pack<T, V> y;
#pragma unroll
                for (int k = 0; k < V; ++k) y.v[k] = from_float<T>(to_float(x.v[k]) * rstd * w[k]);
                store_pack(y_row + c, y);
            }
            if (p.dweight != nullptr) {
#pragma unroll
                for (int k = 0; k < V; ++k) {
                    const float before = row == blockIdx.x ? 0.f : partial[c + k];
                    partial[c + k] = before + to_float(dy.v[k]) * (to_float(x.v[k]) * rstd);
                }
            }
        }
        if (probe != 0.f) report(p.site);
    }
}

/// dweight[c] += sum of partials[:, c]: 32 interleaved sums, then a tree, the same for every launch.
__global__ void __launch_bounds__(1024)
    sum_partials_kernel(const float* partials, int64_t count, int64_t columns, float* dweight) {
    __shared__ float tile[32][33];
    const int64_t column = blockIdx.x * 32 + threadIdx.x;
    float sum = 0.f;
    if (column < columns) {
        for (int64_t row = threadIdx.y; row < count; row += 32) sum += partials[row * columns + column];
    }
    tile[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    const float total = group_sum(tile[threadIdx.x][threadIdx.y]);
    const int64_t summed = blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x == 0 && summed < columns) dweight[summed] += total;
}

int64_t partial_rows(int64_t rows, const Geometry& geometry) {
    return std::min<int64_t>(ceil_div(rows, geometry.rows), dweight_blocks) * geometry.rows;
}

template <class Kernel, class Params, class... Sizes>
void launch_over_rows(Kernel kernel, const Geometry& geometry, int64_t max_blocks, uint32_t rows, const Params& params,
                      cudaStream_t stream, Sizes... sizes) {
    const dim3 block(geometry.threads, geometry.rows);
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(rows, geometry.rows), max_blocks));
    UNSLOTH_LAUNCH(kernel, blocks, block, 0, stream, params, rows, sizes...);
}

template <class Kernel>
int64_t resident(Kernel kernel, const Geometry& geometry) {
    return resident_blocks(reinterpret_cast<const void*>(kernel), geometry.threads * geometry.rows, 0);
}

template <class T, int N, bool kWithinWarp>
void launch_forward(const NormForward& params, const Geometry& geometry, uint32_t rows, cudaStream_t stream) {
    const auto kernel = norm_forward_kernel<T, N, kWithinWarp>;
    const int packs = static_cast<int>(params.shape.columns / vector_width<T>);
    launch_over_rows(kernel, geometry, resident(kernel, geometry), rows, params, stream, packs);
}

template <class T, int N, bool kWithinWarp, bool kRebuild>
void launch_backward_as(const NormBackward& params, const Geometry& geometry, uint32_t rows, cudaStream_t stream) {
    const int packs = static_cast<int>(params.shape.columns / vector_width<T>);
    if (params.dweight != nullptr) {
        launch_over_rows(norm_backward_kernel<T, N, kWithinWarp, true, kRebuild>, geometry, dweight_blocks, rows,
                         params, stream, packs);
    } else {
        const auto kernel = norm_backward_kernel<T, N, kWithinWarp, false, kRebuild>;
        launch_over_rows(kernel, geometry, resident(kernel, geometry), rows, params, stream, packs);
    }
}

template <class T, int N, bool kWithinWarp>
void launch_backward(const NormBackward& params, const Geometry& geometry, uint32_t rows, cudaStream_t stream) {
    params.y.data != nullptr ? launch_backward_as<T, N, kWithinWarp, true>(params, geometry, rows, stream)
                             : launch_backward_as<T, N, kWithinWarp, false>(params, geometry, rows, stream);
}

template <class T, int V>
void launch_forward_stream(const NormForward& params, uint32_t rows, cudaStream_t stream) {
    const auto kernel = norm_forward_stream_kernel<T, V>;
    launch_over_rows(kernel, Geometry{}, resident(kernel, Geometry{}), rows, params, stream);
}

template <class T, int V>
void launch_backward_stream(const NormBackward& params, uint32_t rows, cudaStream_t stream) {
    launch_over_rows(norm_backward_stream_kernel<T, V>, Geometry{}, dweight_blocks, rows, params, stream);
}

bool is_aligned(const ConstHeads& view, const NormShape& shape) {
    return aligned_16(view.data, {view.token_stride, shape.heads > 1 ? view.head_stride : 0}, shape.type);
}
bool is_aligned(const Heads& view, const NormShape& shape) {
    return is_aligned(ConstHeads{view.data, view.token_stride, view.head_stride}, shape);
}
bool is_aligned(const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

}  // namespace

void norm_forward(const NormForward& params, cudaStream_t stream) {
    const NormShape& shape = params.shape;
    const auto rows = static_cast<uint32_t>(shape.tokens * shape.heads);
    if (rows == 0) return;
    const bool aligned = is_aligned(params.x, shape) && is_aligned(params.y, shape) && is_aligned(params.weight);
    dispatch_floating(shape.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        constexpr int V = vector_width<T>;
        const bool vector = aligned && shape.columns % V == 0;
        const Geometry geometry = geometry_for(shape.columns, vector ? V : 1);
        if (geometry.packs == 2) {
            launch_forward<T, 2, false>(params, geometry, rows, stream);
        } else if (geometry.packs == 1) {
            geometry.rows > 1 ? launch_forward<T, 1, true>(params, geometry, rows, stream)
                              : launch_forward<T, 1, false>(params, geometry, rows, stream);
        } else {
            vector ? launch_forward_stream<T, V>(params, rows, stream)
                   : launch_forward_stream<T, 1>(params, rows, stream);
        }
    });
}

void norm_backward(const NormBackward& params, cudaStream_t stream) {
    const NormShape& shape = params.shape;
    const auto rows = static_cast<uint32_t>(shape.tokens * shape.heads);
    if (rows == 0) return;
    const bool aligned = is_aligned(params.dy, shape) && is_aligned(params.x, shape) && is_aligned(params.dx, shape) &&
                         is_aligned(params.y, shape) && is_aligned(params.weight);
    dispatch_floating(shape.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        constexpr int V = vector_width<T>;
        const bool vector = aligned && shape.columns % V == 0;
        const Geometry geometry = geometry_for(shape.columns, vector ? V : 1);
        if (geometry.packs == 2) {
            launch_backward<T, 2, false>(params, geometry, rows, stream);
        } else if (geometry.packs == 1) {
            geometry.rows > 1 ? launch_backward<T, 1, true>(params, geometry, rows, stream)
                              : launch_backward<T, 1, false>(params, geometry, rows, stream);
        } else {
            vector ? launch_backward_stream<T, V>(params, rows, stream)
                   : launch_backward_stream<T, 1>(params, rows, stream);
        }
        if (params.dweight != nullptr) {
            UNSLOTH_LAUNCH(sum_partials_kernel, static_cast<unsigned>(ceil_div(shape.columns, 32)), dim3(32, 32), 0,
                           stream, params.partials, partial_rows(rows, geometry), shape.columns, params.dweight);
        }
    });
}

int64_t norm_scratch_bytes(int64_t rows, int64_t columns) {
    int64_t most = 0;
    for (int width : {1, 4, 8}) most = std::max(most, partial_rows(rows, geometry_for(columns, width)));
    return most * columns * static_cast<int64_t>(sizeof(float));
}

}  // namespace unsloth::kernels
