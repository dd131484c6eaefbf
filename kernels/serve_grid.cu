// A base with its adapter, rounded to a grid of values, in one pass over the base as it is stored. A thread makes 8
// columns of 4 rows. Ceiling: the bandwidth of memory, 2.5 bytes an element (4 bits in, bf16 out); in fact
// instructions: some 50 an element, and two for each product of the rank, which are not fused as the host's are not.
#include <algorithm>

#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/quant4_scales.cuh"
#include "kernels/serve_grid.h"

namespace unsloth::kernels {
namespace {

constexpr int warp = warp_size;
constexpr int threads = 256;
constexpr int warps = threads / warp;
constexpr int columns = 8;    // of a thread
constexpr int tile_rows = 4;  // of a warp at a time
constexpr int fetched = 4;    // of these, whose base is asked for before the first is used

using Values = float[columns];

template <class T>
__device__ __forceinline__ void store_values(T* to, const Values& v, bool aligned) {
    Pack<T, columns> pack;
#pragma unroll
    for (int i = 0; i < columns; ++i) pack.v[i] = from_float<T>(v[i]);
    if (aligned) return store_pack(to, pack);
#pragma unroll
    for (int i = 0; i < columns; ++i) to[i] = pack.v[i];
}

/// W as 16 or 32-bit values. All lanes call values().
template <class S>
struct PlainBase {
    using Fetched = Pack<S, columns>;
    const S* w;
    __device__ void prepare() {}
    __device__ __forceinline__ Fetched fetch(int64_t first) const { return load_pack<columns>(w + first); }
    __device__ __forceinline__ void values(const Fetched& from, Values& v) const {
#pragma unroll
        for (int i = 0; i < columns; ++i) v[i] = to_float(from.v[i]);
    }
};

/// W in 4 bits: a group of 8 is in one block.
struct CodedBase {
    struct Fetched {
        uint32_t codes = 0;
        float scale = 0;
    };
    spec::Quant4View weight;
    float code_value = 0;  ///< of this lane's entry of the code
    __device__ void prepare() { code_value = weight.code[threadIdx.x % 16]; }
    __device__ __forceinline__ Fetched fetch(int64_t first) const {
        return {__ldcs(reinterpret_cast<const uint32_t*>(weight.packed) + first / columns),
                block_scale<spec::quant4_block>(weight, first / spec::quant4_block)};
    }
    __device__ __forceinline__ void values(const Fetched& from, Values& v) const {
#pragma unroll
        for (int i = 0; i < columns; ++i) {
            const int shift = (i / 2) * 8 + (i % 2 == 0 ? 4 : 0);  // bytes ascend, the high nibble comes first
            // width 16: the shuffle itself takes the index modulo 16
            const float code = __shfl_sync(all_lanes, code_value, static_cast<int>(from.codes >> shift), 16);
            v[i] = __fmul_rn(code, from.scale);
        }
    }
};

/// Adds `count` products to each sum, of the rank from `j` on.
template <int count>
__device__ __forceinline__ void add_products(const GridFold& p, int64_t j, int64_t first_row, int rows, int64_t column,
                                             Values (&sum)[tile_rows]) {
    Values a[count];
#pragma unroll
    for (int i = 0; i < count; ++i) {
        const float* const from = p.a + (j + i) * p.cols + column;
        if (p.a_aligned) {
            const Pack<float, columns> pack = load_pack<columns>(from);
#pragma unroll
            for (int k = 0; k < columns; ++k) a[i][k] = pack.v[k];
        } else {
#pragma unroll
            for (int k = 0; k < columns; ++k) a[i][k] = from[k];
        }
    }
#pragma unroll
    for (int row = 0; row < tile_rows; ++row) {
        const float* const from = p.b + (first_row + min(row, rows - 1)) * p.rank + j;
        Pack<float, count> b;
        if (p.b_aligned) {
            b = load_pack<count>(from);
        } else {
#pragma unroll
            for (int i = 0; i < count; ++i) b.v[i] = from[i];
        }
#pragma unroll
        for (int i = 0; i < count; ++i)
#pragma unroll
            for (int k = 0; k < columns; ++k) sum[row][k] = __fadd_rn(sum[row][k], __fmul_rn(b.v[i], a[i][k]));
    }
}

/// Elements of B·A, summed over the rank in order.
__device__ __forceinline__ void low_rank_sums(const GridFold& p, int64_t first_row, int rows, int64_t column,
                                              Values (&sum)[tile_rows]) {
    constexpr int together = 2;
    int64_t j = 0;
    for (; j + together <= p.rank; j += together) add_products<together>(p, j, first_row, rows, column, sum);
    for (; j < p.rank; ++j) add_products<1>(p, j, first_row, rows, column, sum);
}

/// Rounds the values that `lanes` neighbours hold to a grid of such blocks.
template <spec::ServeGrid kGrid>
__device__ __forceinline__ void round_block(Values& v) {
    constexpr int lanes = spec::grid_block / columns;
    float own = 0.0F, extreme = 0.0F;
#pragma unroll
    for (int i = 0; i < columns; ++i) {
        const float magnitude = finite_magnitude(v[i]);
        if (magnitude > own) own = magnitude, extreme = v[i];
    }
    const float largest = group_max<lanes>(own);
    if constexpr (kGrid == spec::ServeGrid::q4_0) {  // the first of that magnitude
        const int begin = static_cast<int>(threadIdx.x % warp) / lanes * lanes;
        const unsigned holders = __ballot_sync(all_lanes, own == largest) >> begin & ((1U << lanes) - 1);
        extreme = __shfl_sync(all_lanes, extreme, begin + __ffs(holders) - 1);
    }
    const spec::GridScale scale = spec::grid_scale(kGrid, largest, extreme);
    const bool finite = largest <= 3.402823466e38F;
#pragma unroll
    for (int i = 0; i < columns; ++i) v[i] = finite ? spec::on_grid(kGrid, v[i], scale) : __int_as_float(0x7FC00000);
}

/// Codes and block maximum of the block of 64 that 8 neighbours hold.
__device__ __forceinline__ void store_nf4(const Nf4Blocks& to, const float* thresholds, int64_t first, bool inside,
                                          const Values& v) {
    float largest = 0.0F;
#pragma unroll
    for (const float x : v) largest = fmaxf(largest, finite_magnitude(x));
    largest = group_max<spec::quant4_block / columns>(largest);
    const float inverse = inverse_or_zero(largest);
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < columns; ++i)
        word |= nf4_code_of(thresholds, __fmul_rn(v[i], inverse)) << ((i / 2) * 8 + (i % 2 == 0 ? 4 : 0));
    if (!inside) return;
    reinterpret_cast<uint32_t*>(to.packed)[first / columns] = word;
    if (first % spec::quant4_block == 0) to.maxima[first / spec::quant4_block] = largest;
}

/// kGrid none: the values as they are. nf4: into p.nf4.
template <class T, spec::ServeGrid kGrid>
__device__ __forceinline__ void emit(const GridFold& p, const float* thresholds, int64_t row, int64_t column,
                                     bool inside, Values& v) {
    if constexpr (kGrid == spec::ServeGrid::nf4) {
        store_nf4(p.nf4, thresholds, row * p.cols + column, inside, v);
    } else {
        if constexpr (kGrid != spec::ServeGrid::none) round_block<kGrid>(v);
        if (inside) store_values(static_cast<T*>(p.out.data) + row * p.out.stride + column, v, p.out_aligned);
    }
}

template <class Base, class T, spec::ServeGrid kGrid>
__global__ void __launch_bounds__(threads, 3)
    fold(const __grid_constant__ GridFold p, Base base, const __grid_constant__ Nf4Thresholds nf4) {
    __shared__ float thresholds[15];
    if constexpr (kGrid == spec::ServeGrid::nf4) copy_thresholds(nf4, thresholds);
    base.prepare();
    const int64_t column = (int64_t{blockIdx.x} * warp + threadIdx.x % warp) * columns;
    const bool inside = column < p.cols;
    const int64_t step = int64_t{gridDim.y} * warps * tile_rows;
    for (int64_t row = (int64_t{blockIdx.y} * warps + threadIdx.x / warp) * tile_rows; row < p.rows; row += step) {
        const int rows = static_cast<int>(min(int64_t{tile_rows}, p.rows - row));
        Values sum[tile_rows] = {};
        if (inside) low_rank_sums(p, row, rows, column, sum);
#pragma unroll
        for (int begin = 0; begin < tile_rows; begin += fetched) {
            typename Base::Fetched from[fetched] = {};
#pragma unroll
            for (int i = 0; i < fetched; ++i)
                if (inside && begin + i < rows) from[i] = base.fetch((row + begin + i) * p.cols + column);
#pragma unroll
            for (int i = 0; i < fetched; ++i) {
                if (begin + i >= rows) continue;  // whole warps
                Values v;
                base.values(from[i], v);
                if (p.rank > 0)
#pragma unroll
                    for (int k = 0; k < columns; ++k) v[k] = __fadd_rn(v[k], __fmul_rn(p.scale, sum[begin + i][k]));
                emit<T, kGrid>(p, thresholds, row + begin + i, column, inside, v);
            }
        }
    }
}

/// A thread block a row.
template <class T>
__global__ void __launch_bounds__(threads)
    round_rows_to_fp8(const float* __restrict__ values, int64_t cols, T* __restrict__ out, int64_t stride) {
    __shared__ float largest_of_warp[warps];
    const float* const w = values + int64_t{blockIdx.x} * cols;
    float largest = 0.0F;
    for (int64_t k = threadIdx.x; k < cols; k += threads) largest = fmaxf(largest, finite_magnitude(w[k]));
    largest = group_max(largest);
    if (threadIdx.x % warp == 0) largest_of_warp[threadIdx.x / warp] = largest;
    __syncthreads();
    for (const float candidate : largest_of_warp) largest = fmaxf(largest, candidate);
    const spec::GridScale scale = spec::grid_scale(spec::ServeGrid::fp8, largest, 0.0F);
    const bool finite = largest <= 3.402823466e38F;
    for (int64_t k = threadIdx.x; k < cols; k += threads)
        out[int64_t{blockIdx.x} * stride + k] =
            from_float<T>(finite ? spec::on_grid(spec::ServeGrid::fp8, w[k], scale) : __int_as_float(0x7FC00000));
}

template <class T, spec::ServeGrid kGrid>
void launch(GridFold p, cudaStream_t stream) {
    if (p.rows == 0 || p.cols == 0) return;
    p.a_aligned = aligned_16(p.a, {}, spec::DType::f32);
    p.b_aligned = aligned_16(p.b, {}, spec::DType::f32) && p.rank % 2 == 0;
    p.out_aligned = aligned_16(p.out.data, {}, spec::DType::f32) && p.out.stride % columns == 0;
    const dim3 grid(static_cast<unsigned>(ceil_div(p.cols, int64_t{warp * columns})),
                    static_cast<unsigned>(std::min<int64_t>(ceil_div(p.rows, int64_t{warps * tile_rows}), 65535)));
    const auto run = [&](const auto& base) {
        UNSLOTH_LAUNCH((fold<std::decay_t<decltype(base)>, T, kGrid>), grid, threads, 0, stream, p, base,
                       Nf4Thresholds());
    };
    if (p.codes.packed != nullptr) return run(CodedBase{p.codes});
    dispatch_floating(p.w_type, [&](auto tag) {
        using S = typename decltype(tag)::type;
        run(PlainBase<S>{static_cast<const S*>(p.w)});
    });
}

}  // namespace

void fold_to_values(const GridFold& p, cudaStream_t stream) {
    launch<float, spec::ServeGrid::none>(p, stream);
}

void fold_to_nf4(const GridFold& p, cudaStream_t stream) {
    launch<float, spec::ServeGrid::nf4>(p, stream);
}

void fold_to_row_blocks(const GridFold& p, cudaStream_t stream) {
    dispatch_floating(p.out_type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        using spec::ServeGrid;
        if (p.grid == ServeGrid::q8_0) return launch<T, ServeGrid::q8_0>(p, stream);
        if (p.grid == ServeGrid::q4_0) return launch<T, ServeGrid::q4_0>(p, stream);
        launch<T, ServeGrid::mxfp4>(p, stream);
    });
}

void round_rows_to_fp8(const Fp8Rounding& p, cudaStream_t stream) {
    if (p.rows == 0) return;
    dispatch_floating(p.out_type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        UNSLOTH_LAUNCH(round_rows_to_fp8<T>, static_cast<unsigned>(p.rows), threads, 0, stream, p.values, p.cols,
                       static_cast<T*>(p.out.data), p.out.stride);
    });
}

}  // namespace unsloth::kernels
