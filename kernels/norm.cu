// RMSNorm, forward and backward, over rows that stay in registers between the reduction and the result.
//
// A row belongs to `blockDim.x` threads: up to 32 lanes of a warp (then blockDim.y rows share the block), or the whole
// block. Each thread owns the same columns of every row it meets; in the backward, where blocks loop over rows,
// weights are thus read once and the weight's gradient is summed in registers. Rows too long for registers, and
// rows that 16-byte packs do not fit, take norm_stream.cuh's kernels, which read a row twice (again from L1).
//
// Ceiling: the bandwidth of memory: 4 bytes an element of bf16 forward, 6 backward, 8 when it adds to dx, 2 more when
// it rebuilds y. Source: Zhang & Sennrich, "Root Mean Square Layer Normalization" (2019).
#include <type_traits>

#include "kernels/common/ptx.cuh"
#include "kernels/norm_stream.cuh"
#include "kernels/rows.h"

namespace unsloth::kernels {

namespace {

constexpr int max_threads = 512;
constexpr int group_threads = 256;       // of a block whose warps hold several rows
constexpr int dweight_blocks = 264;      // fixed, so that the order of summation does not depend on the card
constexpr int64_t one_pass = INT32_MAX;  // blocks: each meets its rows and ends
constexpr int max_packs = 2;             // 16-byte packs of a row in one thread's registers

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

/// Sum over the threads of a row, the same in each of them.
template <bool kWithinWarp>
__device__ __forceinline__ float row_sum(float v, float* shared) {
    if constexpr (kWithinWarp) {
        for (int offset = blockDim.x / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(all_lanes, v, offset);
        return v;
    } else {
        return block_sum(v, shared);
    }
}

/// Pack i of a thread is pack i * blockDim.x + threadIdx.x of the row.
__device__ __forceinline__ int pack_of(int i) {
    return i * blockDim.x + threadIdx.x;
}
/// Whether there is one. kFull: there always is, which spares registers.
template <bool kFull>
__device__ __forceinline__ bool owns(int i, int packs) {
    return kFull || pack_of(i) < packs;
}

/// The columns of one row that a thread owns. What it does not own it may load as well, without a branch (the
/// row's last pack), but must not use.
template <class T, int N, bool kFull>
struct RowPart {
    static constexpr int V = vector_width<T>;
    Pack<T, V> pack[N];

    __device__ __forceinline__ void load(const T* row, int packs) {
#pragma unroll
        for (int i = 0; i < N; ++i) pack[i] = load_pack<V>(row + (kFull ? pack_of(i) : min(pack_of(i), packs - 1)) * V);
    }
    __device__ __forceinline__ void store(T* row, int packs) const {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (owns<kFull>(i, packs)) store_pack(row + pack_of(i) * V, pack[i]);
        }
    }
    __device__ __forceinline__ float at(int i, int k) const { return to_float(pack[i].v[k]); }
};

/// A thread's columns of the weight in fp32.
template <class T, int N>
struct WeightPart {
    static constexpr int V = vector_width<T>;
    float w[N][V] = {};

    __device__ __forceinline__ WeightPart(const void* weight, spec::DType type, int packs) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (pack_of(i) < packs) load_weight<T>(weight, type, pack_of(i) * V, w[i]);
        }
    }
};

/// A block its rows, once: another block is at work while this one sums, which keeps more in flight than a loop that
/// loads a row ahead.
template <class T, class W, int N, bool kWithinWarp, bool kFull>
__global__ void __launch_bounds__(max_threads) norm_forward_kernel(const NormForward p, uint32_t rows, int packs) {
    begin_after_previous(rows);
    constexpr int V = vector_width<T>;
    __shared__ float shared[32];
    const auto heads = static_cast<uint32_t>(p.shape.heads);
    const uint32_t row = blockIdx.x * blockDim.y + threadIdx.y;
    RowPart<T, N, kFull> part;
    part.load(static_cast<const T*>(p.x.data) + row_offset(p.x, min(row, rows - 1), heads), packs);
    Pack<W, V> weight[N];  // converted where it is used: few registers meanwhile
#pragma unroll
    for (int i = 0; i < N; ++i)
        if (owns<kFull>(i, packs)) weight[i] = load_pack<V>(static_cast<const W*>(p.weight) + pack_of(i) * V);
    float squares = 0.f;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if (!owns<kFull>(i, packs)) break;
#pragma unroll
        for (int k = 0; k < V; ++k) squares += part.at(i, k) * part.at(i, k);
    }
    squares = row_sum<kWithinWarp>(squares, shared);
    const float rstd = rsqrtf(squares * (1.f / static_cast<float>(p.shape.columns)) + p.eps);
    if (row >= rows) return;
    RowPart<T, N, kFull> result;
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
        for (int k = 0; k < V; ++k)
            result.pack[i].v[k] = from_float<T>(part.at(i, k) * rstd * to_float(weight[i].v[k]));
    }
    result.store(static_cast<T*>(p.y.data) + row_offset(p.y, row, heads), packs);
    if (threadIdx.x == 0) {
        p.rstd[row] = rstd;
        if (!isfinite(squares)) report(p.site);
    }
}

/// dx (+)= rstd (g - x rstd^2 mean(g x)), g = dy weight; dweight += dy x rstd. kRebuild: y as the forward has it.
template <class T, int N, bool kWithinWarp, bool kFull, bool kWeightGradient, bool kRebuild>
__global__ void __maxnreg__(kWeightGradient ? 128
                            : kFull         ? 80
                                            : 96) norm_backward_kernel(const NormBackward p, uint32_t rows, int packs) {
    constexpr int V = vector_width<T>;
    __shared__ float shared[32];
    const WeightPart<T, N> weight(p.weight, p.shape.weight_type, packs);
    float dweight[N][V] = {};
    const auto heads = static_cast<uint32_t>(p.shape.heads);
    const float inv_columns = 1.f / static_cast<float>(p.shape.columns);

    for (uint32_t first = blockIdx.x * blockDim.y; first < rows; first += gridDim.x * blockDim.y) {
        const uint32_t row = first + threadIdx.y;
        const uint32_t source = min(row, rows - 1);
        T* dx_row = static_cast<T*>(p.dx.data) + row_offset(p.dx, source, heads);
        RowPart<T, N, kFull> dy, x, dx = {}, y;
        dy.load(static_cast<const T*>(p.dy.data) + row_offset(p.dy, source, heads), packs);
        x.load(static_cast<const T*>(p.x.data) + row_offset(p.x, source, heads), packs);
        if (p.accumulate) dx.load(dx_row, packs);
        const float rstd = p.rstd[source];

        float dot = 0.f;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (!owns<kFull>(i, packs)) break;
#pragma unroll
            for (int k = 0; k < V; ++k) dot += dy.at(i, k) * weight.w[i][k] * x.at(i, k);
        }
        dot = row_sum<kWithinWarp>(dot, shared);
        if (row >= rows) continue;  // the block's last round, and no barrier left in it
        const float projection = rstd * rstd * dot * inv_columns;
        float probe = 0.f;  // NaN as soon as a result is not finite
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (!owns<kFull>(i, packs)) break;
#pragma unroll
            for (int k = 0; k < V; ++k) {
                const float g = dy.at(i, k) * weight.w[i][k];
                dx.pack[i].v[k] = from_float<T>(dx.at(i, k) + rstd * (g - x.at(i, k) * projection));
                probe += dx.at(i, k) * 0.f;
                if constexpr (kWeightGradient) dweight[i][k] += dy.at(i, k) * (x.at(i, k) * rstd);
                if constexpr (kRebuild) y.pack[i].v[k] = from_float<T>(x.at(i, k) * rstd * weight.w[i][k]);
            }
        }
        dx.store(dx_row, packs);
        if constexpr (kRebuild) y.store(static_cast<T*>(p.y.data) + row_offset(p.y, row, heads), packs);
        if (probe != 0.f) report(p.site);
    }
    if constexpr (kWeightGradient) {
        float* partial = p.partials + (blockIdx.x * blockDim.y + threadIdx.y) * p.shape.columns;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (!owns<kFull>(i, packs)) break;
#pragma unroll
            for (int k = 0; k < V; ++k) partial[pack_of(i) * V + k] = dweight[i][k];
        }
    }
}

int64_t partial_rows(int64_t rows, const Geometry& geometry) {
    return std::min<int64_t>(ceil_div(rows, geometry.rows), dweight_blocks) * geometry.rows;
}

template <class Kernel, class Params, class... Sizes>
void launch_over_rows(Kernel kernel, const Geometry& geometry, int64_t max_blocks, uint32_t rows, const Params& params,
                      cudaStream_t stream, Sizes... sizes) {
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(ceil_div(rows, geometry.rows), max_blocks));
    launch_kernel(kernel,
                  {.grid = dim3(blocks),
                   .threads = dim3(geometry.threads, geometry.rows),
                   .stream = stream,
                   .after_previous = std::is_same_v<Params, NormForward> && uses_programmatic_launch(rows)},
                  params, rows, sizes...);
}

template <class Kernel>
int64_t resident(Kernel kernel, const Geometry& geometry) {
    return resident_blocks(reinterpret_cast<const void*>(kernel), geometry.threads * geometry.rows, 0);
}

/// Calls f(std::bool_constant) for `value`.
template <class F>
void with_bool(bool value, F f) {
    value ? f(std::true_type{}) : f(std::false_type{});
}

template <class T, int N, bool kWithinWarp>
void launch_forward(const NormForward& params, const Geometry& geometry, uint32_t rows, cudaStream_t stream) {
    const int packs = static_cast<int>(params.shape.columns / vector_width<T>);
    with_bool(packs == N * geometry.threads, [&](auto full) {
        if (params.shape.weight_type == spec::DType::f32) {
            launch_over_rows(norm_forward_kernel<T, float, N, kWithinWarp, full()>, geometry, one_pass, rows, params,
                             stream, packs);
        } else {
            launch_over_rows(norm_forward_kernel<T, T, N, kWithinWarp, full()>, geometry, one_pass, rows, params,
                             stream, packs);
        }
    });
}

template <class T, int N, bool kWithinWarp>
void launch_backward(const NormBackward& params, const Geometry& geometry, uint32_t rows, cudaStream_t stream) {
    const int packs = static_cast<int>(params.shape.columns / vector_width<T>);
    with_bool(params.y.data != nullptr, [&](auto rebuild) {
        if (params.dweight != nullptr) {
            launch_over_rows(norm_backward_kernel<T, N, kWithinWarp, false, true, rebuild()>, geometry, dweight_blocks,
                             rows, params, stream, packs);
            return;
        }
        with_bool(packs == N * geometry.threads, [&](auto full) {
            const auto kernel = norm_backward_kernel<T, N, kWithinWarp, full(), false, rebuild()>;
            launch_over_rows(kernel, geometry, resident(kernel, geometry), rows, params, stream, packs);
        });
    });
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
            column_sums({partial_rows(rows, geometry),
                         shape.columns,
                         spec::DType::f32,
                         {params.partials, shape.columns},
                         params.dweight},
                        stream);
        }
    });
}

int64_t norm_scratch_bytes(int64_t rows, int64_t columns) {
    int64_t most = 0;
    for (int width : {1, 4, 8}) most = std::max(most, partial_rows(rows, geometry_for(columns, width)));
    return most * columns * static_cast<int64_t>(sizeof(float));
}

}  // namespace unsloth::kernels
