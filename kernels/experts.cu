// The order of rows by expert, weighted sums and load balancing of mixtures of experts. Sums have a fixed order; the
// only atomics count integers. Ceiling: the bandwidth of memory for what has D or F columns, and the launches for what
// has k or E.
#include "kernels/experts.h"
#include "kernels/map_rows.cuh"

namespace unsloth::kernels {

namespace {

// ---- the order of rows: chunks of rows, whose warps have rows that follow one another

constexpr int order_warps = 8, order_rounds = 4;
constexpr int order_threads = order_warps * warp_size;
constexpr int order_chunk = order_threads * order_rounds;
static_assert(order_threads >= most_experts);

/// counts[chunk][expert]: rows of each expert in each chunk.
__global__ void __launch_bounds__(order_threads) count_kernel(const OrderByExpert p) {
    __shared__ int32_t counts[most_experts];
    counts[threadIdx.x] = 0;
    __syncthreads();
    const int64_t first = static_cast<int64_t>(blockIdx.x) * order_chunk;
    for (int r = 0; r < order_rounds; ++r) {
        const int64_t row = first + r * order_threads + threadIdx.x;
        if (row < p.rows) atomicAdd(&counts[p.ids[row]], 1);
    }
    __syncthreads();
    auto* out = static_cast<int32_t*>(p.workspace) + static_cast<int64_t>(blockIdx.x) * p.experts;
    if (threadIdx.x < p.experts) out[threadIdx.x] = counts[threadIdx.x];
}

/// The sum over threads up to this one. `shared`: one for each thread. Begins and ends with a barrier.
__device__ int32_t inclusive_scan(int32_t value, int32_t* shared) {
    __syncthreads();
    shared[threadIdx.x] = value;
    __syncthreads();
    for (int step = 1; step < order_threads; step *= 2) {
        const int32_t before = threadIdx.x >= step ? shared[threadIdx.x - step] : 0;
        __syncthreads();
        value += before;
        shared[threadIdx.x] = value;
        __syncthreads();
    }
    return value;
}

/// Counts become how many rows of their expert are in chunks before; ends are written. One block, a thread an expert.
__global__ void __launch_bounds__(order_threads) scan_counts_kernel(const OrderByExpert p, int chunks) {
    __shared__ int32_t shared[order_threads];
    constexpr int ahead = 8;
    int32_t total = 0;
    if (threadIdx.x < p.experts) {
        auto* counts = static_cast<int32_t*>(p.workspace) + threadIdx.x;
        for (int first = 0; first < chunks; first += ahead) {
            int32_t count[ahead];
#pragma unroll
            for (int i = 0; i < ahead; ++i)
                count[i] = first + i < chunks ? counts[static_cast<int64_t>(first + i) * p.experts] : 0;
#pragma unroll
            for (int i = 0; i < ahead; ++i) {
                if (first + i < chunks) counts[static_cast<int64_t>(first + i) * p.experts] = total;
                total += count[i];
            }
        }
    }
    const int32_t end = inclusive_scan(total, shared);
    if (threadIdx.x < p.experts) p.ends[threadIdx.x] = end;
}

/// kAlone: this block has all rows, and makes the ends.
template <bool kAlone>
__global__ void __launch_bounds__(order_threads) place_kernel(const OrderByExpert p) {
    __shared__ int32_t next[order_warps][most_experts];  // counts of a warp's rows, then where its next one goes
    __shared__ int32_t shared[order_threads];
    const int lane = threadIdx.x % warp_size, warp = threadIdx.x / warp_size;
#pragma unroll
    for (int w = 0; w < order_warps; ++w) next[w][threadIdx.x] = 0;
    __syncthreads();
    const int64_t first = static_cast<int64_t>(blockIdx.x) * order_chunk + warp * (order_chunk / order_warps) + lane;
    int expert[order_rounds];
    unsigned same[order_rounds];  // lanes whose row has this one's expert
#pragma unroll
    for (int r = 0; r < order_rounds; ++r) {
        const int64_t row = first + r * warp_size;
        expert[r] = row < p.rows ? p.ids[row] : -1;
        same[r] = __match_any_sync(all_lanes, expert[r]);
        if (expert[r] >= 0 && lane == __ffs(same[r]) - 1) next[warp][expert[r]] += __popc(same[r]);
        __syncwarp();
    }
    __syncthreads();
    int32_t total = 0;
    if constexpr (kAlone) {
#pragma unroll
        for (int w = 0; w < order_warps; ++w) total += next[w][threadIdx.x];
        const int32_t end = inclusive_scan(total, shared);
        if (threadIdx.x < p.experts) p.ends[threadIdx.x] = end;
        total = end - total;
    } else if (threadIdx.x < p.experts) {
        const auto* before = static_cast<const int32_t*>(p.workspace) + static_cast<int64_t>(blockIdx.x) * p.experts;
        total = before[threadIdx.x] + (threadIdx.x == 0 ? 0 : p.ends[threadIdx.x - 1]);
    }
#pragma unroll
    for (int w = 0; w < order_warps; ++w) {
        const int32_t count = next[w][threadIdx.x];
        next[w][threadIdx.x] = total;
        total += count;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < order_rounds; ++r) {
        const int64_t row = first + r * warp_size;
        if (expert[r] >= 0) {
            const int32_t place = next[warp][expert[r]] + __popc(same[r] & ((1u << lane) - 1u));
            p.places[row] = place;
            p.tokens[place] = static_cast<int32_t>(row / p.choices);
        }
        __syncwarp();
        if (expert[r] >= 0 && lane == __ffs(same[r]) - 1) next[warp][expert[r]] += __popc(same[r]);
        __syncwarp();
    }
}

// ---- weighted sums

constexpr int weighted_warps = 4, weighted_packs = 4;

/// A warp a choice. Each lane reads its columns before it writes them: dz may be z, or dy by place.
template <class T, int N>
__global__ void __launch_bounds__(weighted_warps* warp_size) weighted_rows_backward_kernel(const WeightedRows p) {
    const int lane = threadIdx.x % warp_size;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * weighted_warps + threadIdx.x / warp_size;
    if (i >= p.tokens * p.choices) return;
    const int64_t place = p.places[i];
    const float weight = p.weights[i];
    const T* dy = static_cast<const T*>(p.dy.data) + (p.dy_by_place ? place : i / p.choices) * p.dy.stride;
    const T* z = static_cast<const T*>(p.z.data) + place * p.z.stride;
    T* dz = static_cast<T*>(p.dz.data) + place * p.dz.stride;
    float sum = 0.f;
    for (int64_t first = 0; first < p.columns; first += weighted_packs * warp_size * N) {
        Pack<T, N> of_y[weighted_packs], of_z[weighted_packs];
#pragma unroll
        for (int u = 0; u < weighted_packs; ++u) {
            const int64_t column = first + (u * warp_size + lane) * N;
            if (column < p.columns) of_y[u] = load_pack<N>(dy + column), of_z[u] = load_pack<N>(z + column);
        }
#pragma unroll
        for (int u = 0; u < weighted_packs; ++u) {
            const int64_t column = first + (u * warp_size + lane) * N;
            if (column >= p.columns) continue;
            Pack<T, N> made;
#pragma unroll
            for (int k = 0; k < N; ++k) {
                const float value = to_float(of_y[u].v[k]);
                sum += to_float(of_z[u].v[k]) * value;
                made.v[k] = from_float<T>(weight * value);
            }
            store_pack(dz + column, made);
        }
    }
    sum = group_sum(sum);
    if (lane == 0) p.dweights[i] = sum;
}

// ---- load balancing

constexpr int load_columns = 8, load_rows = 128;

/// A block has 8 experts: 128 interleaved sums over the tokens, then a tree.
__global__ void __launch_bounds__(load_columns* load_rows) router_load_kernel(const RouterLoad p) {
    __shared__ double counts[load_rows][load_columns], sums[load_rows][load_columns];
    const int expert = blockIdx.x * load_columns + threadIdx.x;
    double sum = 0;
    int32_t count = 0;
    if (expert < p.experts) {
        const float* column = static_cast<const float*>(p.probabilities.data) + expert;
        for (int64_t token = threadIdx.y; token < p.tokens; token += load_rows) {
            if (p.counted != nullptr && p.counted[token] == 0) continue;
            sum += static_cast<double>(column[token * p.probabilities.stride]);
            for (int j = 0; j < p.choices; ++j) count += p.ids[token * p.choices + j] == expert ? 1 : 0;
        }
    }
    counts[threadIdx.y][threadIdx.x] = count;
    sums[threadIdx.y][threadIdx.x] = sum;
    for (int half = load_rows / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.y >= half) continue;
        counts[threadIdx.y][threadIdx.x] += counts[threadIdx.y + half][threadIdx.x];
        sums[threadIdx.y][threadIdx.x] += sums[threadIdx.y + half][threadIdx.x];
    }
    if (threadIdx.y != 0 || expert >= p.experts) return;
    p.sums[expert] += counts[0][threadIdx.x];
    p.sums[p.experts + expert] += sums[0][threadIdx.x];
}

__global__ void __launch_bounds__(most_experts) balance_kernel(const Balance p) {
    __shared__ double shared;
    const int expert = threadIdx.x;
    const double count = expert < p.experts ? p.sums[expert] : 0.0;
    const double probability = expert < p.experts ? p.sums[p.experts + expert] : 0.0;
    const double chosen = block_sum_f64<most_experts>(count);
    if (expert == 0) shared = chosen;
    __syncthreads();
    const double tokens = shared / p.choices;
    const double factor = tokens > 0 ? p.coefficient * p.experts / (tokens * tokens) : 0.0;
    const double loss = block_sum_f64<most_experts>(factor * count * probability);
    if (expert == 0) *p.loss = static_cast<float>(loss);
    if (expert < p.experts)
        p.slopes[expert] = static_cast<float>(factor * count * static_cast<double>(p.scalars->loss_scale));
}

// ---- a bias of each expert's rows

/// The expert whose rows `row` is among: the first whose end is beyond it.
__device__ __forceinline__ int expert_of_row(const int32_t* ends, int experts, int64_t row) {
    int low = 0, high = experts - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (ends[middle] > row)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

template <class T, int N>
struct BiasOperation {
    T* out;
    int64_t stride;
    const T* bias;
    int64_t columns;
    const int32_t* ends;
    int experts;

    struct State {
        Pack<T, N> out, bias;
    };
    __device__ State load(uint32_t row, int64_t column) const {
        const int64_t expert = expert_of_row(ends, experts, row);
        return {load_pack<N>(out + row * stride + column), load_pack<N>(bias + expert * columns + column)};
    }
    __device__ void store(uint32_t row, int64_t column, const State& in) const {
        Pack<T, N> result;
#pragma unroll
        for (int k = 0; k < N; ++k) result.v[k] = from_float<T>(to_float(in.out.v[k]) + to_float(in.bias.v[k]));
        store_pack(out + row * stride + column, result);
    }
};

/// run(TypeTag, std::integral_constant of the elements of an access).
template <class Run>
void with_packs(spec::DType type, int64_t columns, std::initializer_list<ConstMatrix> matrices, const Run& run) {
    dispatch_floating(type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        bool vector = columns % vector_width<T> == 0;
        for (const ConstMatrix& matrix : matrices) vector = vector && aligned_16(matrix.data, {matrix.stride}, type);
        if (vector)
            run(tag, std::integral_constant<int, vector_width<T>>());
        else
            run(tag, std::integral_constant<int, 1>());
    });
}

}  // namespace

int64_t order_workspace(int64_t rows, int64_t experts) {
    const int64_t chunks = ceil_div(rows, order_chunk);
    return chunks <= 1 ? 0 : chunks * experts * static_cast<int64_t>(sizeof(int32_t));
}

void order_by_expert(const OrderByExpert& p, cudaStream_t stream) {
    const int64_t chunks = ceil_div(p.rows, order_chunk);
    if (chunks <= 1) {
        UNSLOTH_LAUNCH(place_kernel<true>, 1, order_threads, 0, stream, p);
        return;
    }
    UNSLOTH_LAUNCH(count_kernel, static_cast<unsigned>(chunks), order_threads, 0, stream, p);
    UNSLOTH_LAUNCH(scan_counts_kernel, 1, order_threads, 0, stream, p, static_cast<int>(chunks));
    UNSLOTH_LAUNCH(place_kernel<false>, static_cast<unsigned>(chunks), order_threads, 0, stream, p);
}

void weighted_rows_backward(const WeightedRows& p, cudaStream_t stream) {
    if (p.tokens == 0) return;
    with_packs(p.type, p.columns, {p.dy, p.z, {p.dz.data, p.dz.stride}}, [&](auto tag, auto width) {
        using T = typename decltype(tag)::type;
        UNSLOTH_LAUNCH((weighted_rows_backward_kernel<T, width()>),
                       static_cast<unsigned>(ceil_div(p.tokens * p.choices, weighted_warps)),
                       weighted_warps * warp_size, 0, stream, p);
    });
}

void router_load(const RouterLoad& p, cudaStream_t stream) {
    UNSLOTH_LAUNCH(router_load_kernel, static_cast<unsigned>(ceil_div(p.experts, load_columns)),
                   dim3(load_columns, load_rows), 0, stream, p);
}

void balance(const Balance& p, cudaStream_t stream) {
    UNSLOTH_LAUNCH(balance_kernel, 1, most_experts, 0, stream, p);
}

void add_expert_bias(const ExpertBias& p, cudaStream_t stream) {
    with_packs(p.type, p.columns, {{p.out.data, p.out.stride}, {p.bias, p.columns}}, [&](auto tag, auto width) {
        using T = typename decltype(tag)::type;
        const BiasOperation<T, width()> operation{
            static_cast<T*>(p.out.data), p.out.stride, static_cast<const T*>(p.bias), p.columns, p.ends, p.experts};
        map_rows<width()>(operation, p.rows, p.columns, stream);
    });
}

}  // namespace unsloth::kernels
