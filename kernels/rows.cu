// Moving and summing rows. Copies, gathers and scatters are one operation with optional row indices. Sums have a fixed
// order, without atomics. Ceiling: the bandwidth of memory.
#include "kernels/map_rows.cuh"
#include "kernels/rows.h"
#include "unsloth/core/philox.h"

namespace unsloth::kernels {

namespace {

template <class In, class Out, int N>
struct CopyOperation {
    const In* source;
    int64_t source_stride;
    Out* out;
    int64_t out_stride;
    const int32_t* source_index;
    const int32_t* out_index;
    float scale;

    using State = Pack<In, N>;
    __device__ State load(uint32_t row, int64_t column) const {
        const int64_t from = source_index != nullptr ? source_index[row] : row;
        return load_pack<N>(source + from * source_stride + column);
    }
    __device__ void store(uint32_t row, int64_t column, const State& in) const {
        Pack<Out, N> result;
#pragma unroll
        for (int k = 0; k < N; ++k) result.v[k] = from_float<Out>(to_float(in.v[k]) * scale);
        const int64_t to = out_index != nullptr ? out_index[row] : row;
        store_pack(out + to * out_stride + column, result);
    }
};

template <class In, class Out, int N>
void run_copy(const CopyRows& p, cudaStream_t stream) {
    const CopyOperation<In, Out, N> operation{static_cast<const In*>(p.source.data),
                                              p.source.stride,
                                              static_cast<Out*>(p.out.data),
                                              p.out.stride,
                                              p.source_index,
                                              p.out_index,
                                              p.scale};
    map_rows<N>(operation, p.rows, p.columns, stream);
}

template <class T, int N>
struct SumOperation {
    const T* source;
    int64_t source_stride;
    T* out;
    int64_t out_stride;
    const int32_t* places;
    const float* weight;

    struct State {
        Pack<T, N> row[2];
        float factor[2];
    };
    __device__ State load(uint32_t row, int64_t column) const {
        State state;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int32_t place = places[2 * int64_t{row} + j];
            state.factor[j] = place < 0 ? 0.f : weight != nullptr ? weight[place] : 1.f;
#pragma unroll
            for (int k = 0; k < N; ++k) state.row[j].v[k] = from_float<T>(0.f);
            if (place >= 0) state.row[j] = load_pack<N>(source + place * source_stride + column);
        }
        return state;
    }
    __device__ void store(uint32_t row, int64_t column, const State& in) const {
        Pack<T, N> result;
#pragma unroll
        for (int k = 0; k < N; ++k)
            result.v[k] =
                from_float<T>(to_float(in.row[0].v[k]) * in.factor[0] + to_float(in.row[1].v[k]) * in.factor[1]);
        store_pack(out + row * out_stride + column, result);
    }
};

/// The same of any number of places, one after another.
template <class T, int N>
struct SumManyOperation {
    const T* source;
    int64_t source_stride;
    T* out;
    int64_t out_stride;
    const T* residual;
    int64_t residual_stride;
    const int32_t* places;
    const float* weight;
    const float* choice_weight;
    int each;

    struct State {
        float sum[N];
    };
    __device__ State load(uint32_t row, int64_t column) const {
        State state{};
        for (int j = 0; j < each; ++j) {
            const int64_t i = each * int64_t{row} + j;
            const int32_t place = places[i];
            if (place < 0) continue;
            const float factor = choice_weight != nullptr ? choice_weight[i] : weight != nullptr ? weight[place] : 1.f;
            add(state, source + place * source_stride + column, factor);
        }
        if (residual != nullptr) add(state, residual + row * residual_stride + column, 1.f);
        return state;
    }
    __device__ static void add(State& state, const T* from, float factor) {
        const Pack<T, N> pack = load_pack<N>(from);
#pragma unroll
        for (int k = 0; k < N; ++k) state.sum[k] += to_float(pack.v[k]) * factor;
    }
    __device__ void store(uint32_t row, int64_t column, const State& in) const {
        Pack<T, N> result;
#pragma unroll
        for (int k = 0; k < N; ++k) result.v[k] = from_float<T>(in.sum[k]);
        store_pack(out + row * out_stride + column, result);
    }
};

template <class T, int N>
void run_sum(const SumRows& p, cudaStream_t stream) {
    if (p.places_each != 2 || p.choice_weight != nullptr || p.residual.data != nullptr) {
        const SumManyOperation<T, N> many{static_cast<const T*>(p.source.data),
                                          p.source.stride,
                                          static_cast<T*>(p.out.data),
                                          p.out.stride,
                                          static_cast<const T*>(p.residual.data),
                                          p.residual.stride,
                                          p.places,
                                          p.weight,
                                          p.choice_weight,
                                          p.places_each};
        return map_rows<N>(many, p.rows, p.columns, stream);
    }
    const SumOperation<T, N> operation{static_cast<const T*>(p.source.data),
                                       p.source.stride,
                                       static_cast<T*>(p.out.data),
                                       p.out.stride,
                                       p.places,
                                       p.weight};
    map_rows<N>(operation, p.rows, p.columns, stream);
}

template <class T, int N>
struct ZeroOperation {
    T* x;
    int64_t stride;
    const int32_t* row_owner;
    const int32_t* index;
    const int32_t* column_owner;

    using State = Pack<T, N>;
    __device__ State load(uint32_t row, int64_t column) const { return load_pack<N>(x + row * stride + column); }
    __device__ void store(uint32_t row, int64_t column, const State& in) const {
        Pack<T, N> result = in;
        const int32_t owner = row_owner[index == nullptr ? static_cast<int32_t>(row) : index[row]];
#pragma unroll
        for (int k = 0; k < N; ++k)
            if (column_owner[column + k] != owner) result.v[k] = from_float<T>(0.f);
        store_pack(x + row * stride + column, result);
    }
};

template <class T, int N>
void run_zero(const ZeroOthers& p, cudaStream_t stream) {
    map_rows<N>(ZeroOperation<T, N>{static_cast<T*>(p.x.data), p.x.stride, p.row_owner, p.index, p.column_owner},
                p.rows, p.columns, stream);
}

constexpr int embedding_lanes = 32;
constexpr int embedding_runs = 8;

/// A block sums one token id's rows for 32 columns: 8 interleaved parts of the run, then the parts in order.
template <class T>
__global__ void __launch_bounds__(embedding_lanes* embedding_runs)
    embedding_backward_kernel(const EmbeddingBackward p) {
    __shared__ float parts[embedding_runs][embedding_lanes];
    const int64_t column = static_cast<int64_t>(blockIdx.y) * embedding_lanes + threadIdx.x;
    const T* dy = static_cast<const T*>(p.dy.data);
    const int32_t end = p.starts[blockIdx.x + 1];
    float sum = 0.f;
    if (column < p.columns) {
#pragma unroll 4
        for (int32_t i = p.starts[blockIdx.x] + threadIdx.y; i < end; i += embedding_runs) {
            sum += to_float(dy[p.order[i] * p.dy.stride + column]);
        }
    }
    parts[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= p.columns) return;
    for (int run = 1; run < embedding_runs; ++run) sum += parts[run][threadIdx.x];
    float* out = static_cast<float*>(p.dtable.data) + p.unique[blockIdx.x] * p.dtable.stride + column;
    *out += sum;
}

/// A block owns 32 columns: 32 interleaved sums over the rows, then a tree.
template <class T>
__global__ void __launch_bounds__(1024) column_sums_kernel(const ColumnSums p) {
    __shared__ float tile[32][33];
    const int64_t column = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x;
    const T* dy = static_cast<const T*>(p.dy.data);
    float sum = 0.f;
    if (column < p.columns) {
#pragma unroll 8
        for (int64_t row = threadIdx.y; row < p.rows; row += 32) sum += to_float(dy[row * p.dy.stride + column]);
    }
    tile[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    const float total = group_sum(tile[threadIdx.x][threadIdx.y]);
    const int64_t summed = static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.y;
    if (threadIdx.x == 0 && summed < p.columns) p.sums[summed] += total;
}

/// body(k, u) for each of a token's channels first + k, k < N: u in [0, 1) is Philox's draw of it.
template <int N, class Body>
__device__ void for_each_draw(const spec::StepScalars& scalars, int32_t row, int32_t offset, uint32_t site,
                              int64_t first, const Body& body) {
    constexpr int draws = N >= 4 ? 4 : N;  // channels that one call of the generator covers
#pragma unroll
    for (int base = 0; base < N; base += draws) {
        const auto channel = static_cast<uint32_t>(first) + base;
        const PhiloxWords random = philox4x32(scalars.seed_lo, scalars.seed_hi, static_cast<uint32_t>(row),
                                              static_cast<uint32_t>(offset), site, channel / 4);
#pragma unroll
        for (int k = 0; k < draws; ++k) body(base + k, unit_float(random.w[(channel + k) % 4]));
    }
}

template <class T, int N>
struct DropoutOperation {
    const T* x;
    int64_t x_stride;
    T* out;
    int64_t out_stride;
    const int32_t* row_id;
    const int32_t* offset;
    const spec::StepScalars* scalars;
    float probability, scale;
    uint32_t layer, projection, first_channel;
    bool accumulate;

    struct State {
        Pack<T, N> x, out;
    };
    __device__ State load(uint32_t row, int64_t column) const {
        State state;
        state.x = load_pack<N>(x + row * x_stride + column);
        if (accumulate) state.out = load_pack<N>(out + row * out_stride + column);
        return state;
    }
    __device__ void store(uint32_t row, int64_t column, const State& in) const {
        Pack<T, N> result;
        for_each_draw<N>(*scalars, row_id[row], offset[row], dropout_site(scalars->epoch, layer, projection),
                         column + first_channel, [&](int k, float u) {
                             float value = u >= probability ? to_float(in.x.v[k]) * scale : 0.f;
                             if (accumulate) value += to_float(in.out.v[k]);
                             result.v[k] = from_float<T>(value);
                         });
        store_pack(out + row * out_stride + column, result);
    }
};

template <class T, int N>
struct NoiseOperation {
    T* x;
    int64_t stride;
    const int32_t* row_id;
    const int32_t* offset;
    const float* magnitude;
    const spec::StepScalars* scalars;

    using State = Pack<T, N>;
    __device__ State load(uint32_t row, int64_t column) const { return load_pack<N>(x + row * stride + column); }
    __device__ void store(uint32_t row, int64_t column, const State& in) const {
        Pack<T, N> result;
        for_each_draw<N>(*scalars, row_id[row], offset[row], noise_site(scalars->epoch), column, [&](int k, float u) {
            result.v[k] = from_float<T>(to_float(in.v[k]) + magnitude[row] * (2.f * u - 1.f));
        });
        store_pack(x + row * stride + column, result);
    }
};

template <class T, int N>
void run_noise(const AddNoise& p, cudaStream_t stream) {
    const NoiseOperation<T, N> operation{
        static_cast<T*>(p.x.data), p.x.stride, p.row, p.offset, p.magnitude, p.scalars};
    map_rows<N>(operation, p.tokens, p.columns, stream);
}

template <class T, int N>
void run_dropout(const Dropout& p, cudaStream_t stream) {
    const DropoutOperation<T, N> operation{static_cast<const T*>(p.x.data),
                                           p.x.stride,
                                           static_cast<T*>(p.out.data),
                                           p.out.stride,
                                           p.row,
                                           p.offset,
                                           p.scalars,
                                           p.probability,
                                           1.f / (1.f - p.probability),
                                           p.layer,
                                           p.projection,
                                           p.first_channel,
                                           p.accumulate};
    map_rows<N>(operation, p.tokens, p.columns, stream);
}

}  // namespace

void copy_rows(const CopyRows& p, cudaStream_t stream) {
    dispatch_floating(p.source_type, [&](auto in_tag) {
        using In = typename decltype(in_tag)::type;
        dispatch_floating(p.out_type, [&](auto out_tag) {
            using Out = typename decltype(out_tag)::type;
            constexpr int width = vector_width < In >> vector_width<Out> ? vector_width<In> : vector_width<Out>;
            const bool vector = p.columns % width == 0 && aligned_16(p.source.data, {p.source.stride}, p.source_type) &&
                                aligned_16(p.out.data, {p.out.stride}, p.out_type);
            vector ? run_copy<In, Out, width>(p, stream) : run_copy<In, Out, 1>(p, stream);
        });
    });
}

void sum_rows(const SumRows& p, cudaStream_t stream) {
    dispatch_floating(p.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        constexpr int width = vector_width<T>;
        const bool vector = p.columns % width == 0 && aligned_16(p.source.data, {p.source.stride}, p.type) &&
                            aligned_16(p.residual.data, {p.residual.stride}, p.type) &&
                            aligned_16(p.out.data, {p.out.stride}, p.type);
        vector ? run_sum<T, width>(p, stream) : run_sum<T, 1>(p, stream);
    });
}

void zero_rows(const Matrix& out, int64_t rows, int64_t columns, spec::DType type, cudaStream_t stream) {
    if (rows == 0 || columns == 0) return;
    const std::size_t pitch = static_cast<std::size_t>(out.stride) * spec::size_of(type);
    const std::size_t width = static_cast<std::size_t>(columns) * spec::size_of(type);
    if (rows == 1 || pitch == width) {
        UNSLOTH_CUDA_CHECK(cudaMemsetAsync(out.data, 0, width * static_cast<std::size_t>(rows), stream));
    } else {
        UNSLOTH_CUDA_CHECK(cudaMemset2DAsync(out.data, pitch, 0, width, static_cast<std::size_t>(rows), stream));
    }
}

void zero_others(const ZeroOthers& p, cudaStream_t stream) {
    dispatch_floating(p.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        constexpr int width = vector_width<T>;
        const bool vector = p.columns % width == 0 && aligned_16(p.x.data, {p.x.stride}, p.type);
        vector ? run_zero<T, width>(p, stream) : run_zero<T, 1>(p, stream);
    });
}

void embedding_backward(const EmbeddingBackward& p, cudaStream_t stream) {
    if (p.unique_count == 0 || p.columns == 0) return;
    const dim3 grid(static_cast<unsigned>(p.unique_count), static_cast<unsigned>(ceil_div(p.columns, embedding_lanes)));
    dispatch_floating(p.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        UNSLOTH_LAUNCH(embedding_backward_kernel<T>, grid, dim3(embedding_lanes, embedding_runs), 0, stream, p);
    });
}

void column_sums(const ColumnSums& p, cudaStream_t stream) {
    if (p.rows == 0 || p.columns == 0) return;
    dispatch_floating(p.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        UNSLOTH_LAUNCH(column_sums_kernel<T>, static_cast<unsigned>(ceil_div(p.columns, 32)), dim3(32, 32), 0, stream,
                       p);
    });
}

void dropout(const Dropout& p, cudaStream_t stream) {
    dispatch_floating(p.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        constexpr int width = vector_width<T>;
        const bool vector = p.columns % width == 0 && aligned_16(p.x.data, {p.x.stride}, p.type) &&
                            aligned_16(p.out.data, {p.out.stride}, p.type);
        vector ? run_dropout<T, width>(p, stream) : run_dropout<T, 1>(p, stream);
    });
}

void add_noise(const AddNoise& p, cudaStream_t stream) {
    dispatch_floating(p.type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        constexpr int width = vector_width<T>;
        const bool vector = p.columns % width == 0 && aligned_16(p.x.data, {p.x.stride}, p.type);
        vector ? run_noise<T, width>(p, stream) : run_noise<T, 1>(p, stream);
    });
}

}  // namespace unsloth::kernels
