// Dequantises whole rows, in order or by an index: a thread a few neighbouring columns. Ceiling: the bandwidth of
// memory, 1 byte read (4 bit: 0.5) and 2 written an element.
//
// Every product and sum is an explicit __fmul_rn / __fadd_rn: a fused multiply-add would change bits.
#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/quant4_scales.cuh"
#include "kernels/quantised_rows.h"
#include "unsloth/spec/int8.h"

namespace unsloth::kernels {
namespace {

constexpr int threads = 256;

struct Int8Table {
    const int8_t* codes;
    const float* maxima;
    int64_t columns;

    /// Values of `Width` columns from `column` on.
    template <int Width>
    __device__ __forceinline__ void read(int64_t row, int64_t column, float (&values)[Width]) const {
        const float maximum = maxima[row];
        const auto pack = load_pack<Width>(codes + row * columns + column);
#pragma unroll
        for (int i = 0; i < Width; ++i)
            values[i] = __fmul_rn(__fmul_rn(static_cast<float>(pack.v[i]), maximum), spec::int8_inverse_127);
    }
};

template <int kBlock>
struct Quant4Table {
    spec::Quant4View weight;

    template <int Width>
    __device__ __forceinline__ void read(int64_t row, int64_t column, float (&values)[Width]) const {
#pragma unroll
        for (int i = 0; i < Width; ++i) {
            const int64_t element = row * weight.cols + column + i;
            const int code = weight.packed[element / 2] >> (element % 2 == 0 ? 4 : 0) & 15;
            values[i] = __fmul_rn(weight.code[code], block_scale<kBlock>(weight, element / kBlock));
        }
    }
};

template <class T, int Width, class Table>
__global__ void __launch_bounds__(threads)
    expand_rows(const __grid_constant__ QuantisedRows p, const __grid_constant__ Table table) {
    const int64_t groups = p.columns / Width;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * threads + threadIdx.x;
    if (i >= p.rows * groups) return;
    const int64_t row = i / groups, column = (i - row * groups) * Width;
    float values[Width];
    table.template read<Width>(p.index == nullptr ? row : p.index[row], column, values);
    Pack<T, Width> out;
#pragma unroll
    for (int j = 0; j < Width; ++j) out.v[j] = from_float<T>(values[j]);
    store_pack(static_cast<T*>(p.out.data) + row * p.out.stride + column, out);
}

template <class Table>
void run(const QuantisedRows& p, const Table& table, bool table_allows_vectors, cudaStream_t stream) {
    if (p.rows == 0 || p.columns == 0) return;
    dispatch_floating(p.out_type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        constexpr int width = vector_width<T>;
        const bool vector =
            table_allows_vectors && p.columns % width == 0 && aligned_16(p.out.data, {p.out.stride}, p.out_type);
        const int64_t items = p.rows * (vector ? p.columns / width : p.columns);
        const auto grid = static_cast<unsigned>(ceil_div(items, threads));
        if (vector) {
            UNSLOTH_LAUNCH((expand_rows<T, width, Table>), grid, threads, 0, stream, p, table);
        } else {
            UNSLOTH_LAUNCH((expand_rows<T, 1, Table>), grid, threads, 0, stream, p, table);
        }
    });
}

}  // namespace

void expand_rows_int8(const QuantisedRows& params, const int8_t* codes, const float* maxima, cudaStream_t stream) {
    // Rows of a multiple of 8 codes keep the alignment of the first.
    run(params, Int8Table{codes, maxima, params.columns}, reinterpret_cast<std::uintptr_t>(codes) % 8 == 0, stream);
}

void expand_rows_4bit(const QuantisedRows& params, const spec::Quant4View& table, cudaStream_t stream) {
    dispatch_block(table, [&](auto block) { run(params, Quant4Table<block.value>{table}, true, stream); });
}

}  // namespace unsloth::kernels
