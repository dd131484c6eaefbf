// Rows and their e4m3 codes in one kernel: a block makes a row, and holds its values in registers between the row's
// amax (largest magnitude) and the codes. Many small blocks a multiprocessor keep loads in flight while others reduce;
// loops over rows that fetch one row ahead were measured slower. Rows of logits are longer than that: they are read
// twice, the second time from the L2 cache.
//
// Ceiling: the bandwidth of memory: what makes the row reads and writes, and 1 byte a code.
#include "kernels/common/launch.h"
#include "kernels/fp8.cuh"
#include "kernels/fp8_rows.h"
#include "kernels/row_makers.cuh"

namespace unsloth::kernels {

static_assert(fp8_longest_row == longest_made_row);

namespace {

constexpr int width = pack_width;

/// The largest over the block of both halves of `amax`. `shared`: 32 words that nothing else used.
__device__ __forceinline__ float block_amax(uint32_t amax, uint32_t* shared) {
    amax = __reduce_max_sync(all_lanes, max(amax & 0xFFFFu, amax >> 16));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = amax;
    __syncthreads();
    amax = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0;
    return __uint_as_float(__reduce_max_sync(all_lanes, amax) << 16);
}

/// Unit i of a thread is i * blockDim.x + threadIdx.x.
template <class Maker, int kUnits>
__global__ void __launch_bounds__(most_threads<Maker, kUnits>, kUnits == 4 && Maker::inputs == 3 ? 2 : 1)
    quantize_rows_kernel(const Maker maker, int units, int64_t columns, const Fp8Rows out) {
    __shared__ uint32_t amax_of_warps[32];
    const uint32_t row = blockIdx.x;
    RowInputs<Maker, kUnits> inputs(maker, row, units);
    Bf16x8 made[kUnits][Maker::segments];
    uint32_t amax = 0;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
        const int unit = i * blockDim.x + threadIdx.x;
        if (unit < units) {
            inputs.make(maker, row, unit, i, made[i]);
#pragma unroll
            for (int s = 0; s < Maker::segments; ++s) amax = pack_amax(amax, made[i][s]);
        }
    }
    const float scale = fp8_scale(block_amax(amax, amax_of_warps));
    const float inverse = fp8_inverse(scale);
    if (threadIdx.x == 0) out.scales[row] = scale;
    uint8_t* codes = out.codes + row * columns;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
        const int unit = i * blockDim.x + threadIdx.x;
        if (unit < units) {
#pragma unroll
            for (int s = 0; s < Maker::segments; ++s)
                *reinterpret_cast<uint2*>(codes + maker.column(unit, s)) = fp8_encode(made[i][s], inverse);
        }
    }
}

template <class Maker>
void run(const Maker& maker, int64_t rows, int64_t columns, const Fp8Rows& out, cudaStream_t stream) {
    by_units<Maker>(rows, columns, [&](auto of_a_thread, int units, int threads) {
        UNSLOTH_LAUNCH((quantize_rows_kernel<Maker, decltype(of_a_thread)::value>), static_cast<unsigned>(rows),
                       threads, 0, stream, maker, units, columns, out);
    });
}

constexpr int long_row_threads = 1024;
constexpr int packs_in_flight = 4;

/// A row that registers do not hold: one pass for its amax, one for the codes, backwards, so that it begins with what
/// was read last (kernels/cross_entropy.cu).
__global__ void __launch_bounds__(long_row_threads, 1)
    quantize_long_rows_kernel(const ConstMatrix x, int packs, const Fp8Rows out) {
    __shared__ uint32_t amax_of_warps[32];
    const int64_t row = blockIdx.x;
    const Bf16* const values = static_cast<const Bf16*>(x.data) + row * x.stride;
    uint32_t amax = 0;
    for (int first = threadIdx.x; first < packs; first += packs_in_flight * long_row_threads) {
        Bf16x8 loaded[packs_in_flight];
#pragma unroll
        for (int i = 0; i < packs_in_flight; ++i) {
            const int pack = first + i * long_row_threads;
            loaded[i] = {};
            if (pack < packs) loaded[i] = load_pack<width>(values + pack * width);
        }
#pragma unroll
        for (int i = 0; i < packs_in_flight; ++i) amax = pack_amax(amax, loaded[i]);
    }
    const float scale = fp8_scale(block_amax(amax, amax_of_warps));
    const float inverse = fp8_inverse(scale);
    if (threadIdx.x == 0) out.scales[row] = scale;
    uint8_t* const codes = out.codes + row * packs * width;
    for (int last = packs - 1 - static_cast<int>(threadIdx.x); last >= 0; last -= packs_in_flight * long_row_threads) {
        Bf16x8 loaded[packs_in_flight];
#pragma unroll
        for (int i = 0; i < packs_in_flight; ++i) {
            const int pack = last - i * long_row_threads;
            if (pack >= 0) loaded[i] = load_pack<width>(values + pack * width);
        }
#pragma unroll
        for (int i = 0; i < packs_in_flight; ++i) {
            const int pack = last - i * long_row_threads;
            if (pack >= 0) *reinterpret_cast<uint2*>(codes + pack * width) = fp8_encode(loaded[i], inverse);
        }
    }
}

/// A block a row, or several for a long one.
__global__ void __launch_bounds__(256)
    dequantize_rows_kernel(const Fp8Rows x, int packs, const Matrix out, int blocks_of_row) {
    const uint32_t row = blockIdx.x / blocks_of_row;
    const int pack = (blockIdx.x - row * blocks_of_row) * blockDim.x + threadIdx.x;
    if (pack >= packs) return;
    const uint2 codes =
        *reinterpret_cast<const uint2*>(x.codes + static_cast<int64_t>(row) * packs * width + pack * width);
    store_pack(static_cast<Bf16*>(out.data) + row * out.stride + pack * width, fp8_decode(codes, x.scales[row]));
}

}  // namespace

void dequantize_rows_fp8(const Fp8Rows& x, int64_t rows, int64_t columns, const Matrix& out, cudaStream_t stream) {
    if (rows == 0) return;
    constexpr int threads = 256;
    const int packs = static_cast<int>(columns / width), blocks = static_cast<int>(ceil_div(packs, threads));
    UNSLOTH_LAUNCH(dequantize_rows_kernel, static_cast<unsigned>(rows * blocks), threads, 0, stream, x, packs, out,
                   blocks);
}

bool fp8_rows_supported(const ConstMatrix& rows, int64_t columns, int64_t longest) {
    return columns > 0 && columns % width == 0 && columns <= longest &&
           aligned_16(rows.data, {rows.stride}, spec::DType::bf16);
}

void quantize_rows_fp8(const ConstMatrix& x, int64_t rows, int64_t columns, const Fp8Rows& out, cudaStream_t stream) {
    if (columns <= fp8_longest_row) return run(CopiedRows{x}, rows, columns, out, stream);
    if (rows == 0) return;
    UNSLOTH_LAUNCH(quantize_long_rows_kernel, static_cast<unsigned>(rows), long_row_threads, 0, stream, x,
                   static_cast<int>(columns / width), out);
}

void norm_forward_fp8(const NormForward& params, const Fp8Rows& out, cudaStream_t stream) {
    run(NormalisedRows{params}, params.shape.tokens, params.shape.columns, out, stream);
}

void swiglu_forward_fp8(const SwigluForward& params, const Fp8Rows& out, cudaStream_t stream) {
    with_gate(params.activation,
              [&](auto gate) { run(SwigluRows<gate()>{params}, params.tokens, params.columns, out, stream); });
}

void swiglu_backward_fp8(const SwigluBackward& params, bool codes_alone, const Fp8Rows& out, cudaStream_t stream) {
    with_gate(params.activation, [&](auto gate) {
        run(SwigluGradientRows<gate()>{params, codes_alone}, params.tokens, 2 * params.columns, out, stream);
    });
}

void rope_apply_fp8(const RopeApply& params, int64_t columns, bool codes_alone, const Fp8Rows& out,
                    cudaStream_t stream) {
    run(RotatedRows{params, static_cast<int>(params.pairs / width), codes_alone}, params.tokens, columns, out, stream);
}

}  // namespace unsloth::kernels
