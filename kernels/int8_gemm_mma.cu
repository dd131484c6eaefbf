// The product of int8 codes with a bf16 tail by mma.sync, for cards without wgmma.
//
// A block of 8 warps makes 128 rows by 128 columns, a warp 64 by 32. Stages are 128 bytes of K of x and w, three of
// them in a ring that cp.async fills. After the codes come u and b, 64 columns a stage, laid out in shared memory
// as codes: a step of 32 bytes has the same operands in both. Exact sums of 256 codes are converted, scaled and added
// up in fp32.
//
// Ceiling: the tensor cores' int8 rate. Two blocks' worth of registers would not fit: a warp's conversions are hidden
// by the other warp of its scheduler alone.
#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/mma.cuh"
#include "kernels/common/ptx.cuh"
#include "kernels/int8_gemm_mma.h"
#include "unsloth/core/check.h"

namespace unsloth::kernels {
namespace {

constexpr int tile_rows = 128, tile_columns = 128, row_bytes = 128, stages = 3, threads = 256;
constexpr int rows_bytes = tile_rows * row_bytes, stage_bytes = 2 * rows_bytes;
constexpr int block_stages = int8_block / row_bytes;  // of codes that share a scale for each row of x
constexpr int row_tiles = 4, columns_8 = 4;           // of a warp: 16 rows, 8 columns
constexpr int band = 8;  // row tiles that neighbour each other in time, so that w's stay in L2

/// Rows of bytes in memory, of which a stage takes 128 a row.
struct Rows {
    const uint8_t* data;
    int64_t stride;
    int count, bytes;
};

struct Params {
    Rows x, w, u, b;
    const float *sx, *sw;
    int64_t sx_stride;
    const __nv_bfloat16 *residual, *bias;
    __nv_bfloat16* y;
    int64_t residual_stride, y_stride;
    int rows, columns, code_stages, all_stages, row_count, column_count;
};

/// The 16-byte chunk c of row r is at place c ^ r % 8, so that the chunks of eight rows are in different banks.
__device__ __forceinline__ uint32_t place(int row, int chunk) {
    return row * row_bytes + ((chunk ^ row % 8) << 4);
}

/// Starts to copy 128 rows from `first`, 128 bytes each from `byte`; zeros beyond the end.
__device__ __forceinline__ void copy_rows(uint32_t to, const Rows& from, int first, int byte) {
    const int chunk = threadIdx.x % 8, row = threadIdx.x / 8;
    const bool inside = byte + chunk * 16 < from.bytes;
#pragma unroll
    for (int i = 0; i < tile_rows; i += threads / 8) {
        const bool wanted = inside && first + row + i < from.count;
        const uint8_t* source = from.data + (wanted ? (first + row + i) * from.stride + byte + chunk * 16 : 0);
        cp_async_16_zfill(to + place(row + i, chunk), source, wanted);
    }
}

/// Where the warps' parts of a tile begin.
struct Warp {
    const int lane = threadIdx.x % 32;
    const int row = threadIdx.x / 128 * (row_tiles * 16), column = threadIdx.x / 32 % 4 * (columns_8 * 8);
};

/// One step of 32 bytes: `multiply(i, j, a, b0, b1)` of every 16 rows and 8 columns.
template <class Multiply>
__device__ __forceinline__ void step_of(const Warp& warp, uint32_t stage, int step, const Multiply& multiply) {
    uint32_t b[columns_8 / 2][4];
    const int b_row = warp.column + warp.lane % 8 + warp.lane / 16 * 8, b_chunk = 2 * step + warp.lane / 8 % 2;
#pragma unroll
    for (int j = 0; j < columns_8 / 2; ++j) ldmatrix_x4(b[j], stage + rows_bytes + place(b_row + 16 * j, b_chunk));
#pragma unroll
    for (int i = 0; i < row_tiles; ++i) {
        uint32_t a[4];
        ldmatrix_x4(a, stage + place(warp.row + 16 * i + warp.lane % 16, 2 * step + warp.lane / 16));
#pragma unroll
        for (int j = 0; j < columns_8; ++j) multiply(i, j, a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    }
}

using Sums = float[row_tiles][columns_8][4];

/// Adds a block's sums, times the scales of x's rows, and clears them.
__device__ __forceinline__ void add_block(const Params& p, const Warp& warp, int first_row, int block, Sums& sums,
                                          int (&exact)[row_tiles][columns_8][4]) {
#pragma unroll
    for (int i = 0; i < row_tiles; ++i) {
        const int row = first_row + warp.row + 16 * i + warp.lane / 4;
        const float* scale = p.sx + block * p.sx_stride + row;
        const float upper = row < p.rows ? __ldg(scale) : 0.f, lower = row + 8 < p.rows ? __ldg(scale + 8) : 0.f;
#pragma unroll
        for (int j = 0; j < columns_8; ++j)
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                sums[i][j][c] = fmaf(static_cast<float>(exact[i][j][c]), c < 2 ? upper : lower, sums[i][j][c]);
                exact[i][j][c] = 0;
            }
    }
}

__device__ __forceinline__ float2 pair_at(const __nv_bfloat16* at) {
    return unpack_bf16x2(*reinterpret_cast<const uint32_t*>(at));
}

__device__ __forceinline__ void scale_columns(const Params& p, const Warp& warp, int first_column, Sums& sums) {
#pragma unroll
    for (int j = 0; j < columns_8; ++j) {
        const int column = first_column + warp.column + 8 * j + warp.lane % 4 * 2;
        const float2 scale =
            column < p.columns ? *reinterpret_cast<const float2*>(p.sw + column) : make_float2(0.f, 0.f);
#pragma unroll
        for (int i = 0; i < row_tiles; ++i) {
            sums[i][j][0] *= scale.x, sums[i][j][1] *= scale.y;
            sums[i][j][2] *= scale.x, sums[i][j][3] *= scale.y;
        }
    }
}

__device__ __forceinline__ void store(const Params& p, const Warp& warp, int first_row, int first_column,
                                      const Sums& sums) {
#pragma unroll
    for (int i = 0; i < row_tiles; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int64_t row = first_row + warp.row + 16 * i + 8 * half + warp.lane / 4;
            if (row >= p.rows) continue;
#pragma unroll
            for (int j = 0; j < columns_8; ++j) {
                const int column = first_column + warp.column + 8 * j + warp.lane % 4 * 2;
                if (column >= p.columns) continue;
                float2 sum{sums[i][j][2 * half], sums[i][j][2 * half + 1]};
                if (p.residual != nullptr) {
                    const float2 residual = pair_at(p.residual + row * p.residual_stride + column);
                    sum.x += residual.x, sum.y += residual.y;
                }
                if (p.bias != nullptr) {
                    const float2 bias = pair_at(p.bias + column);
                    sum.x += bias.x, sum.y += bias.y;
                }
                *reinterpret_cast<uint32_t*>(p.y + row * p.y_stride + column) = pack_bf16x2(sum.x, sum.y);
            }
        }
}

__global__ void __launch_bounds__(threads, 1) int8_gemm_mma_kernel(const Params p) {
    extern __shared__ __align__(128) uint8_t memory[];
    const uint32_t base = shared_address(memory);
    const int in_band = band * p.column_count, first = static_cast<int>(blockIdx.x) / in_band * band;
    const int height = min(p.row_count - first, band), rest = static_cast<int>(blockIdx.x) % in_band;
    const int first_row = (first + rest % height) * tile_rows, first_column = rest / height * tile_columns;
    const auto fetch = [&](int step) {
        if (step < p.all_stages) {
            const uint32_t stage = base + step % stages * stage_bytes;
            const bool codes = step < p.code_stages;
            const int byte = (codes ? step : step - p.code_stages) * row_bytes;
            copy_rows(stage, codes ? p.x : p.u, first_row, byte);
            copy_rows(stage + rows_bytes, codes ? p.w : p.b, first_column, byte);
        }
        cp_async_commit_group();
    };
    const Warp warp;
    Sums sums = {};
    int exact[row_tiles][columns_8][4] = {};
#pragma unroll
    for (int step = 0; step < stages - 1; ++step) fetch(step);
    for (int step = 0; step < p.all_stages; ++step) {
        cp_async_wait_group<stages - 2>();
        __syncthreads();
        fetch(step + stages - 1);
        const uint32_t stage = base + step % stages * stage_bytes;
        if (step < p.code_stages) {
#pragma unroll
            for (int k = 0; k < row_bytes / 32; ++k)
                step_of(warp, stage, k, [&](int i, int j, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
                    mma_m16n8k32(exact[i][j], a, b0, b1);
                });
            if (step % block_stages == block_stages - 1 || step == p.code_stages - 1)
                add_block(p, warp, first_row, step / block_stages, sums, exact);
            if (step == p.code_stages - 1) scale_columns(p, warp, first_column, sums);
        } else {
#pragma unroll
            for (int k = 0; k < row_bytes / 32; ++k)
                step_of(warp, stage, k, [&](int i, int j, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
                    mma_m16n8k16<__nv_bfloat16>(sums[i][j], a, b0, b1);
                });
        }
    }
    store(p, warp, first_row, first_column, sums);
}

}  // namespace

bool int8_gemm_mma_takes(const CodedGemmCase& c) {
    return c.format == CodeFormat::int8 && c.sx_stride >= c.m && coded_gemm_aligned(c);
}

void int8_gemm_mma(const CodedGemmCase& c, cudaStream_t stream) {
    UNSLOTH_CHECK(int8_gemm_mma_takes(c), "gemm of int8 codes: m ", c.m, " n ", c.n, " k ", c.k, " rank ", c.rank,
                  " strides ", c.u_stride, ", ", c.b_stride, ", ", c.residual_stride, ", ", c.y_stride);
    const auto rows = [](const void* data, int64_t stride, int64_t count, int64_t bytes) {
        return Rows{static_cast<const uint8_t*>(data), stride, static_cast<int>(count), static_cast<int>(bytes)};
    };
    Params p{};
    p.x = rows(c.x, c.k, c.m, c.k);
    p.w = rows(c.w, c.k, c.n, c.k);
    p.u = rows(c.u, 2 * c.u_stride, c.m, 2 * c.rank);
    p.b = rows(c.b, 2 * c.b_stride, c.n, 2 * c.rank);
    p.sx = c.sx, p.sw = c.sw, p.sx_stride = c.sx_stride;
    p.residual = static_cast<const __nv_bfloat16*>(c.residual), p.residual_stride = c.residual_stride;
    p.bias = static_cast<const __nv_bfloat16*>(c.bias);
    p.y = static_cast<__nv_bfloat16*>(c.y), p.y_stride = c.y_stride;
    p.rows = static_cast<int>(c.m), p.columns = static_cast<int>(c.n);
    p.code_stages = static_cast<int>(ceil_div(c.k, row_bytes));
    p.all_stages = p.code_stages + static_cast<int>(ceil_div(2 * c.rank, row_bytes));
    p.row_count = static_cast<int>(ceil_div(c.m, tile_rows));
    p.column_count = static_cast<int>(ceil_div(c.n, tile_columns));
    launch_kernel(int8_gemm_mma_kernel,
                  {.grid = dim3(static_cast<unsigned>(p.row_count * p.column_count)),
                   .threads = threads,
                   .shared_bytes = stages * stage_bytes,
                   .stream = stream},
                  p);
}

}  // namespace unsloth::kernels
