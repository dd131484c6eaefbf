// A base with its adapter, rounded to a grid of values. A warp takes 32 columns of 8 rows: a lane holds one column of A
// at a time for all of them, and B's elements are the same for the warp. Ceiling: the bandwidth of memory, 6 bytes an
// element (fp32 in, bf16 out); above rank 16 the sums of products, which are not fused as the host's are not.
#include <algorithm>

#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/serve_grid.h"
#include "unsloth/spec/quant4.h"

namespace unsloth::kernels {
namespace {

constexpr int warp = warp_size;
constexpr int threads = 256;
constexpr int tile_rows = 8;
constexpr int warps = threads / warp;
static_assert(warp == spec::grid_block);

/// Element [row, column] of B·A for tile_rows rows, summed over the rank in order.
__device__ __forceinline__ void low_rank_sums(const GridFold& p, int64_t first_row, int rows, int64_t column,
                                              float (&sum)[tile_rows]) {
    for (int64_t j = 0; j < p.rank; ++j) {
        const float a = column < p.cols ? p.a[j * p.cols + column] : 0.0F;
#pragma unroll
        for (int i = 0; i < tile_rows; ++i)
            if (i < rows) sum[i] = __fadd_rn(sum[i], __fmul_rn(__ldg(p.b + (first_row + i) * p.rank + j), a));
    }
}

/// Rounds a warp's 32 values to a grid of such blocks.
template <spec::ServeGrid kGrid>
__device__ __forceinline__ float round_in_warp(float x) {
    const float magnitude = fabsf(x);
    if (__any_sync(all_lanes, !(magnitude <= 3.402823466e38F))) return __int_as_float(0x7FC00000);
    const float largest = group_max(magnitude);
    float extreme = 0.0F;
    if (kGrid == spec::ServeGrid::q4_0 && largest > 0.0F)
        extreme = __shfl_sync(all_lanes, x, __ffs(__ballot_sync(all_lanes, magnitude == largest)) - 1);
    return spec::on_grid(kGrid, x, spec::grid_scale(kGrid, largest, extreme));
}

/// kGrid none: w + scale · B·A into w, of any number of columns.
template <class T, spec::ServeGrid kGrid>
__global__ void __launch_bounds__(threads) fold(const GridFold p) {
    const int64_t column = (int64_t{blockIdx.x} * warps + threadIdx.x / warp) * warp + threadIdx.x % warp;
    if (column - threadIdx.x % warp >= p.cols) return;
    for (int64_t first = int64_t{blockIdx.y} * tile_rows; first < p.rows; first += int64_t{gridDim.y} * tile_rows) {
        const int rows = static_cast<int>(min(int64_t{tile_rows}, p.rows - first));
        float sum[tile_rows] = {};
        if (p.rank > 0) low_rank_sums(p, first, rows, column, sum);
#pragma unroll
        for (int i = 0; i < tile_rows; ++i) {
            if (i >= rows || column >= p.cols) continue;  // whole warps, but for kGrid none
            float* const w = p.w + (first + i) * p.cols + column;
            const float value = p.rank > 0 ? __fadd_rn(*w, __fmul_rn(p.scale, sum[i])) : *w;
            if constexpr (kGrid == spec::ServeGrid::none)
                *w = value;
            else
                static_cast<T*>(p.out.data)[(first + i) * p.out.stride + column] =
                    from_float<T>(round_in_warp<kGrid>(value));
        }
    }
}

/// A thread block a row.
template <class T>
__global__ void __launch_bounds__(threads) round_rows_to_fp8(const GridFold p) {
    __shared__ float largest_of_warp[warps];
    __shared__ int any_bad;
    const float* const w = p.w + int64_t{blockIdx.x} * p.cols;
    T* const out = static_cast<T*>(p.out.data) + int64_t{blockIdx.x} * p.out.stride;
    if (threadIdx.x == 0) any_bad = 0;
    __syncthreads();
    float largest = 0.0F;
    for (int64_t k = threadIdx.x; k < p.cols; k += threads) {
        const float magnitude = fabsf(w[k]);
        if (!(magnitude <= 3.402823466e38F)) any_bad = 1;
        largest = fmaxf(largest, magnitude);
    }
    largest = group_max(largest);
    if (threadIdx.x % warp == 0) largest_of_warp[threadIdx.x / warp] = largest;
    __syncthreads();
    for (const float candidate : largest_of_warp) largest = fmaxf(largest, candidate);
    const spec::GridScale scale = spec::grid_scale(spec::ServeGrid::fp8, largest, 0.0F);
    const bool bad = any_bad != 0;
    for (int64_t k = threadIdx.x; k < p.cols; k += threads)
        out[k] = from_float<T>(bad ? __int_as_float(0x7FC00000) : spec::on_grid(spec::ServeGrid::fp8, w[k], scale));
}

__global__ void __launch_bounds__(threads) decode_maxima(const NestedMaxima p) {
    const int64_t block = int64_t{blockIdx.x} * threads + threadIdx.x;
    if (block >= p.blocks) return;
    p.maxima[block] =
        __fadd_rn(__fmul_rn(p.map[p.codes[block]], p.nested[block / spec::quant4_nested_block]), *p.offset);
}

template <class T, spec::ServeGrid kGrid>
void launch(const GridFold& p, cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(ceil_div(p.cols, int64_t{threads})),
                    static_cast<unsigned>(std::min<int64_t>(ceil_div(p.rows, int64_t{tile_rows}), 65535)));
    UNSLOTH_LAUNCH((fold<T, kGrid>), grid, threads, 0, stream, p);
}

}  // namespace

void add_low_rank(const GridFold& p, cudaStream_t stream) {
    if (p.rank == 0 || p.rows == 0) return;
    launch<float, spec::ServeGrid::none>(p, stream);
}

void fold_to_row_grid(const GridFold& p, cudaStream_t stream) {
    if (p.rows == 0) return;
    dispatch_floating(p.out_type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        using spec::ServeGrid;
        if (p.grid == ServeGrid::q8_0) return launch<T, ServeGrid::q8_0>(p, stream);
        if (p.grid == ServeGrid::q4_0) return launch<T, ServeGrid::q4_0>(p, stream);
        if (p.grid == ServeGrid::mxfp4) return launch<T, ServeGrid::mxfp4>(p, stream);
        add_low_rank(p, stream);
        UNSLOTH_LAUNCH(round_rows_to_fp8<T>, static_cast<unsigned>(p.rows), threads, 0, stream, p);
    });
}

void decode_nested_maxima(const NestedMaxima& params, cudaStream_t stream) {
    UNSLOTH_LAUNCH(decode_maxima, static_cast<unsigned>(ceil_div(params.blocks, int64_t{threads})), threads, 0, stream,
                   params);
}

}  // namespace unsloth::kernels
