// The transpose of a matrix in e4m3, quantised by its own rows: one pass for each column's amax, one for the codes,
// which turn over in shared memory in tiles of 128 x 64. For loading; bound by the bandwidth of memory.
#include "kernels/common/launch.h"
#include "kernels/fp8.cuh"
#include "kernels/fp8_rows.h"

namespace unsloth::kernels {

namespace {

constexpr int width = pack_width;
constexpr int lanes = 32;  // of a block along columns, a pack each
constexpr int amax_rows = 8;
constexpr int amax_turns = 32;  // rows that a thread sees

/// Largest magnitude of each column, as fp32 bits, which compare as the magnitudes do: the order of the
/// maxima does not matter.
__global__ void __launch_bounds__(lanes* amax_rows)
    column_amax_kernel(const ConstMatrix w, int64_t rows, int64_t columns, uint32_t* amax) {
    __shared__ uint4 shared[amax_rows][lanes];
    const int64_t column = (static_cast<int64_t>(blockIdx.x) * lanes + threadIdx.x) * width;
    const int64_t first = static_cast<int64_t>(blockIdx.y) * (amax_rows * amax_turns) + threadIdx.y;
    uint4 seen = {};
    if (column < columns) {
#pragma unroll 4
        for (int turn = 0; turn < amax_turns; ++turn) {
            const int64_t row = first + turn * amax_rows;
            if (row >= rows) break;
            const uint4 bits =
                *reinterpret_cast<const uint4*>(static_cast<const Bf16*>(w.data) + row * w.stride + column);
            seen = {__vmaxu2(seen.x, bits.x & 0x7FFF7FFFu), __vmaxu2(seen.y, bits.y & 0x7FFF7FFFu),
                    __vmaxu2(seen.z, bits.z & 0x7FFF7FFFu), __vmaxu2(seen.w, bits.w & 0x7FFF7FFFu)};
        }
    }
    shared[threadIdx.y][threadIdx.x] = seen;
    __syncthreads();
    // Thread t takes column t of the block's.
    const int t = threadIdx.y * lanes + threadIdx.x;
    const int64_t own = static_cast<int64_t>(blockIdx.x) * (lanes * width) + t;
    if (own >= columns) return;
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < amax_rows; ++i)
        largest = max(largest, uint32_t{reinterpret_cast<const uint16_t*>(&shared[i][t / width])[t % width]});
    atomicMax(amax + own, largest << 16);
}

__global__ void scales_kernel(float* scales, int64_t count) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count) scales[i] = fp8_scale(scales[i]);
}

constexpr int tile_columns = 64, tile_rows = 128;
constexpr int tile_packs = tile_columns / width;
constexpr int code_threads = 256;

/// A tile is encoded on its way into shared memory, and leaves as rows of 128 codes.
__global__ void __launch_bounds__(code_threads)
    transposed_codes_kernel(const ConstMatrix w, int64_t rows, int64_t columns, const Fp8Rows out) {
    __shared__ alignas(4) uint8_t codes[tile_columns][tile_rows + 4];
    const int64_t first_row = static_cast<int64_t>(blockIdx.y) * tile_rows;
    const int64_t first_column = static_cast<int64_t>(blockIdx.x) * tile_columns;
    const int pack = threadIdx.x % tile_packs * width;
    if (first_column + pack < columns) {
        float inverse[width];
#pragma unroll
        for (int k = 0; k < width; ++k) inverse[k] = fp8_inverse(out.scales[first_column + pack + k]);
#pragma unroll
        for (int i = 0; i < tile_rows * tile_packs / code_threads; ++i) {
            const int row = i * (code_threads / tile_packs) + threadIdx.x / tile_packs;
            if (first_row + row >= rows) break;
            const auto values =
                load_pack<width>(static_cast<const Bf16*>(w.data) + (first_row + row) * w.stride + first_column + pack);
#pragma unroll
            for (int k = 0; k < width; ++k)
                codes[pack + k][row] =
                    __nv_cvt_float_to_fp8(to_float(values.v[k]) * inverse[k], __NV_SATFINITE, __NV_E4M3);
        }
    }
    __syncthreads();
    const int row = threadIdx.x % 32 * 4;
    if (first_row + row >= rows) return;
    for (int i = threadIdx.x / 32; i < tile_columns && first_column + i < columns; i += code_threads / 32) {
        *reinterpret_cast<uint32_t*>(out.codes + (first_column + i) * rows + first_row + row) =
            *reinterpret_cast<const uint32_t*>(&codes[i][row]);
    }
}

}  // namespace

bool fp8_columns_supported(const ConstMatrix& w, int64_t rows, int64_t columns) {
    return rows > 0 && rows % 4 == 0 && columns > 0 && columns % width == 0 &&
           aligned_16(w.data, {w.stride}, spec::DType::bf16);
}

void quantize_columns_fp8(const ConstMatrix& w, int64_t rows, int64_t columns, const Fp8Rows& out,
                          cudaStream_t stream) {
    UNSLOTH_CUDA_CHECK(cudaMemsetAsync(out.scales, 0, static_cast<std::size_t>(columns) * sizeof(float), stream));
    const dim3 strips(static_cast<unsigned>(ceil_div(columns, lanes * width)),
                      static_cast<unsigned>(ceil_div(rows, amax_rows * amax_turns)));
    UNSLOTH_LAUNCH(column_amax_kernel, strips, dim3(lanes, amax_rows), 0, stream, w, rows, columns,
                   reinterpret_cast<uint32_t*>(out.scales));
    UNSLOTH_LAUNCH(scales_kernel, static_cast<unsigned>(ceil_div(columns, 256)), 256, 0, stream, out.scales, columns);
    const dim3 tiles(static_cast<unsigned>(ceil_div(columns, tile_columns)),
                     static_cast<unsigned>(ceil_div(rows, tile_rows)));
    UNSLOTH_LAUNCH(transposed_codes_kernel, tiles, code_threads, 0, stream, w, rows, columns, out);
}

}  // namespace unsloth::kernels
