// A base with its adapter, rounded to a grid of values, in one pass over the base as it is stored. A warp makes tiles
// of 16 rows and 64 columns, of which int8 tensor cores make the adapter's product (kernels/fixed_low_rank.h). Ceiling:
// the bandwidth of memory, 2.5 bytes an element (4 bits in, bf16 out); in fact instructions, some 25 an element. fp8,
// whose scales are of whole rows, makes all values twice: for the rows' maxima, and then to round them.
#include <algorithm>
#include <type_traits>

#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/mma.cuh"
#include "kernels/quant4_scales.cuh"
#include "kernels/serve_grid.h"
#include "kernels/serve_grid_round.cuh"

namespace unsloth::kernels {
namespace {

constexpr int warp = warp_size;
constexpr int threads = 256;
constexpr int warps = threads / warp;
constexpr int group = 8;        // columns that are read and written together
constexpr int lane_groups = 2;  // of a lane
constexpr int lane_columns = 16;
constexpr int lane_rows = 2;  // 8 apart

using Group = float[group];
using Values = float[lane_columns];

/// A lane's place in a tile.
struct Lane {
    int lane, first_row;
    int64_t tile, column;  ///< of columns: the tile, and the lane's first
    int inside;            ///< groups that are W's
    __device__ Lane(int64_t cols, int64_t column_tile)
        : lane(static_cast<int>(threadIdx.x % warp)),
          first_row(lane / 4),
          tile(column_tile),
          column(column_tile * fold_columns + lane % 4 * lane_columns),
          inside(column >= cols           ? 0
                 : column + group >= cols ? 1
                                          : 2) {}
};

/// W as 16 or 32-bit values. All lanes call values().
template <class S>
struct PlainBase {
    using Fetched = Pack<S, group>[lane_groups];
    const S* w;
    __device__ void prepare() {}
    __device__ __forceinline__ void fetch(int64_t first, int inside, Fetched& to) const {
#pragma unroll
        for (int i = 0; i < lane_groups; ++i)
            if (i < inside) to[i] = load_pack<group>(w + first + i * group);
    }
    __device__ __forceinline__ void values(const Fetched& from, int i, Group& v) const {
#pragma unroll
        for (int k = 0; k < group; ++k) v[k] = to_float(from[i].v[k]);
    }
};

/// W in 4 bits: a group is in one block, and two are where columns are a multiple of 16.
struct CodedBase {
    struct Coded {
        uint32_t codes;
        float scale;
    };
    using Fetched = Coded[lane_groups];
    spec::Quant4View weight;
    float code_value = 0;  ///< of this lane's entry of the code
    __device__ void prepare() { code_value = weight.code[threadIdx.x % 16]; }
    __device__ __forceinline__ void fetch(int64_t first, int inside, Fetched& to) const {
        if (weight.cols % lane_columns == 0) {
            if (inside == 0) return;
            const uint2 both = __ldg(reinterpret_cast<const uint2*>(weight.packed) + first / lane_columns);
            const float scale = block_scale<spec::quant4_block>(weight, first / spec::quant4_block);
            to[0] = {both.x, scale}, to[1] = {both.y, scale};
            return;
        }
#pragma unroll
        for (int i = 0; i < lane_groups; ++i)
            if (i < inside)
                to[i] = {__ldg(reinterpret_cast<const uint32_t*>(weight.packed) + first / group + i),
                         block_scale<spec::quant4_block>(weight, (first + i * group) / spec::quant4_block)};
    }
    __device__ __forceinline__ void values(const Fetched& from, int i, Group& v) const {
#pragma unroll
        for (int k = 0; k < group; ++k) {
            const int shift = (k / 2) * 8 + (k % 2 == 0 ? 4 : 0);  // bytes ascend, the high nibble comes first
            // width 16: the shuffle itself takes the index modulo 16
            const float code = __shfl_sync(all_lanes, code_value, static_cast<int>(from[i].codes >> shift), 16);
            v[k] = __fmul_rn(code, from[i].scale);
        }
    }
};

/// Of B·A, the sums of a lane's group `half`: sum[i] has columns 2 i and 2 i + 1 of its first row, then of its second.
__device__ __forceinline__ void low_rank_sums(const FixedOperands& p, int64_t row_tile, const Lane& lane, int half,
                                              int (&sum)[4][4]) {
    int high[4][4] = {}, mixed[4][4] = {};
    const uint4* b = reinterpret_cast<const uint4*>(p.b) + row_tile * p.chunks * warp + lane.lane;
    const uint4* a = reinterpret_cast<const uint4*>(p.a) + (lane.tile * p.chunks * 4 + half * 2) * warp + lane.lane;
#pragma unroll 1
    for (int chunk = 0; chunk < p.chunks; ++chunk, b += warp, a += 4 * warp) {
        const uint4 of_b = __ldg(b);
        const uint32_t rows[4] = {of_b.x, of_b.y, of_b.z, of_b.w};
#pragma unroll
        for (int q = 0; q < 2; ++q) {
            const uint4 of_a = __ldg(a + q * warp);
            mma_m16n8k16_int8(high[2 * q], rows[0], rows[1], of_a.y);
            mma_m16n8k32(mixed[2 * q], rows, of_a.x, of_a.y);  // high by low, low by high
            mma_m16n8k16_int8(high[2 * q + 1], rows[0], rows[1], of_a.w);
            mma_m16n8k32(mixed[2 * q + 1], rows, of_a.z, of_a.w);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int k = 0; k < 4; ++k) sum[i][k] = high[i][k] * 256 + mixed[i][k];
}

/// W + scale · B·A of a lane's part of a tile. What is not of W has any value. All lanes call it.
template <class Base>
__device__ __forceinline__ void fold_tile(const GridFold& p, const Base& base, int64_t row_tile, const Lane& lane,
                                          Values (&v)[lane_rows]) {
    const int64_t first = row_tile * fold_rows + lane.first_row;
    typename Base::Fetched from[lane_rows] = {};
#pragma unroll
    for (int row = 0; row < lane_rows; ++row)
        if (first + 8 * row < p.rows) base.fetch((first + 8 * row) * p.cols + lane.column, lane.inside, from[row]);
#pragma unroll
    for (int half = 0; half < lane_groups; ++half) {
        int sum[4][4];
        Pack<float, group> a_unit = {};
        if (p.low_rank.chunks > 0) {
            low_rank_sums(p.low_rank, row_tile, lane, half, sum);
            a_unit = load_pack<group>(p.low_rank.a_unit + lane.column + half * group);
        }
#pragma unroll
        for (int row = 0; row < lane_rows; ++row) {
            Group w;
            base.values(from[row], half, w);
            const float unit = p.low_rank.chunks > 0 ? __ldg(p.low_rank.scaled_unit + first + 8 * row) : 0.0F;
#pragma unroll
            for (int k = 0; k < group; ++k) {
                v[row][half * group + k] =
                    p.low_rank.chunks > 0
                        ? __fadd_rn(w[k], spec::low_rank_value(sum[k / 2][2 * row + k % 2], a_unit.v[k], unit))
                        : w[k];
            }
        }
    }
}

/// magnitude_bits of the largest of `count` values.
template <int count>
__device__ __forceinline__ uint32_t largest_bits(const float* v) {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) largest = max(largest, spec::magnitude_bits(v[i]));
    return largest;
}
/// Of `lanes` neighbours.
template <int lanes>
__device__ __forceinline__ uint32_t group_max_bits(uint32_t largest) {
#pragma unroll
    for (int offset = 1; offset < lanes; offset *= 2)
        largest = max(largest, __shfl_xor_sync(all_lanes, largest, offset));
    return largest;
}

/// The first of two lanes' values that has the magnitude `largest`; 0 if all are NaN.
__device__ __forceinline__ float first_of_magnitude(const Values& v, uint32_t largest) {
    float own = 0.0F;
#pragma unroll
    for (int i = lane_columns; i-- > 0;)
        if (spec::magnitude_bits(v[i]) == largest) own = v[i];
    const float other = __shfl_xor_sync(all_lanes, own, 1);
    const bool second = threadIdx.x % 2 == 1;
    const float before = second ? other : own, after = second ? own : other;
    return __fadd_rn(before != 0.0F ? before : after, 0.0F);  // of zeros +0
}

/// Rounds what two neighbours hold of a row to a grid of such blocks.
template <spec::ServeGrid kGrid>
__device__ __forceinline__ void round_block(Values& v) {
    static_assert(spec::grid_block == 2 * lane_columns);
    const uint32_t largest = group_max_bits<2>(largest_bits<lane_columns>(v));
    const float extreme = kGrid == spec::ServeGrid::q4_0 ? first_of_magnitude(v, largest) : 0.0F;
    spec::GridScale scale = spec::grid_scale(kGrid, __uint_as_float(largest), extreme);
    if (largest >= spec::exponent_bits) scale.scale = __uint_as_float(0x7FC00000U);
#pragma unroll
    for (int i = 0; i < lane_columns; ++i) v[i] = to_grid<kGrid>(v[i], scale);
}

/// Codes and block maximum of the block of 64 that four neighbours hold.
__device__ __forceinline__ void store_nf4(const Nf4Blocks& to, const Nf4Cells& cells, int64_t first, bool inside,
                                          const Values& v) {
    static_assert(spec::quant4_block == 4 * lane_columns);
    const uint32_t bits = group_max_bits<4>(largest_bits<lane_columns>(v));
    const float largest = __uint_as_float(min(bits, spec::exponent_bits)), inverse = inverse_or_zero(largest);
    uint32_t word[lane_groups] = {};
#pragma unroll
    for (int i = 0; i < lane_columns; ++i) {
        const int shift = (i % group / 2) * 8 + (i % 2 == 0 ? 4 : 0);
        word[i / group] |= nf4_code_in(cells, __fmul_rn(v[i], inverse)) << shift;
    }
    if (!inside) return;
    reinterpret_cast<uint2*>(to.packed)[first / lane_columns] = make_uint2(word[0], word[1]);
    if (first % spec::quant4_block == 0) to.maxima[first / spec::quant4_block] = largest;
}

template <class T>
__device__ __forceinline__ void store_group(const GridFold& p, T* to, const Pack<T, group>& pack) {
    if (p.out_aligned) return store_pack(to, pack);
#pragma unroll
    for (int i = 0; i < group; ++i) to[i] = pack.v[i];
}

/// Two neighbours swap a group of 16-bit values, so that one store of both is of whole sectors of 32 bytes. All lanes
/// call it.
template <class T>
__device__ __forceinline__ void store_values(const GridFold& p, int64_t row, const Lane& lane, const Values& v) {
    T* const out = static_cast<T*>(p.out.data) + row * p.out.stride + lane.column;
    Pack<T, group> packs[lane_groups];
#pragma unroll
    for (int i = 0; i < lane_columns; ++i) packs[i / group].v[i % group] = from_float<T>(v[i]);
    if (sizeof(T) == 2 && p.out_aligned && p.cols % (2 * lane_columns) == 0) {
        const bool second = lane.lane % 2 == 1;
        const uint4 first = reinterpret_cast<const uint4&>(packs[0]), last = reinterpret_cast<const uint4&>(packs[1]);
        const uint4 kept = second ? last : first, sent = second ? first : last;
        const uint4 got = make_uint4(__shfl_xor_sync(all_lanes, sent.x, 1), __shfl_xor_sync(all_lanes, sent.y, 1),
                                     __shfl_xor_sync(all_lanes, sent.z, 1), __shfl_xor_sync(all_lanes, sent.w, 1));
        if (row >= p.rows || lane.inside == 0) return;
        *reinterpret_cast<uint4*>(out + (second ? -group : 0)) = second ? got : kept;
        *reinterpret_cast<uint4*>(out + (second ? group : 2 * group)) = second ? kept : got;
        return;
    }
    if (row >= p.rows) return;
#pragma unroll
    for (int half = 0; half < lane_groups; ++half)
        if (half < lane.inside) store_group(p, out + half * group, packs[half]);
}

/// Of a multiprocessor: as many as have enough registers.
template <class Base, class T, spec::ServeGrid kGrid>
constexpr int blocks_of() {
    using spec::ServeGrid;
    constexpr bool few = kGrid == ServeGrid::nf4 || (sizeof(T) == 2 && kGrid != ServeGrid::mxfp4);
    return std::is_same_v<Base, CodedBase> && few ? 3 : 2;
}

/// kGrid none: the values as they are. nf4: into p.nf4. A warp a column of tiles.
template <class Base, class T, spec::ServeGrid kGrid>
__global__ void __launch_bounds__(threads, blocks_of<Base, T, kGrid>())
    fold(const __grid_constant__ GridFold p, Base base, const __grid_constant__ Nf4Cells nf4) {
    __shared__ Nf4Cells cells;
    if constexpr (kGrid == spec::ServeGrid::nf4) copy_cells(nf4, cells);
    base.prepare();
    const Lane lane(p.cols, int64_t{blockIdx.x} * warps + threadIdx.x / warp);
    if (lane.tile * fold_columns >= p.cols) return;  // whole warps
    for (int64_t row_tile = blockIdx.y; row_tile * fold_rows < p.rows; row_tile += gridDim.y) {
        Values v[lane_rows];
        fold_tile(p, base, row_tile, lane, v);
#pragma unroll
        for (int i = 0; i < lane_rows; ++i) {
            const int64_t row = row_tile * fold_rows + lane.first_row + 8 * i;
            if constexpr (kGrid == spec::ServeGrid::nf4) {
                store_nf4(p.nf4, cells, row * p.cols + lane.column, row < p.rows, v[i]);
            } else {
                if constexpr (kGrid == spec::ServeGrid::fp8) {
                    const Fp8Row rounding(row < p.rows ? p.row_largest[row] : 0);
#pragma unroll
                    for (float& x : v[i]) x = rounding.rounded(x);
                } else if constexpr (kGrid != spec::ServeGrid::none) {
                    round_block<kGrid>(v[i]);
                }
                store_values<T>(p, row, lane, v[i]);
            }
        }
    }
}

/// magnitude_bits of each row's largest value, into p.row_largest, which holds zeros. A warp a column of tiles.
template <class Base>
__global__ void __launch_bounds__(threads, 2) find_row_maxima(const __grid_constant__ GridFold p, Base base) {
    base.prepare();
    const Lane lane(p.cols, int64_t{blockIdx.x} * warps + threadIdx.x / warp);
    if (lane.tile * fold_columns >= p.cols) return;  // whole warps
    for (int64_t row_tile = blockIdx.y; row_tile * fold_rows < p.rows; row_tile += gridDim.y) {
        Values v[lane_rows];
        fold_tile(p, base, row_tile, lane, v);
#pragma unroll
        for (int i = 0; i < lane_rows; ++i) {
            uint32_t largest = 0;
#pragma unroll
            for (int half = 0; half < lane_groups; ++half)
                if (half < lane.inside) largest = max(largest, largest_bits<group>(v[i] + half * group));
            largest = group_max_bits<4>(largest);
            const int64_t row = row_tile * fold_rows + lane.first_row + 8 * i;
            if (lane.lane % 4 == 0 && row < p.rows) atomicMax(p.row_largest + row, largest);  // in any order the same
        }
    }
}

/// run(base) with W in the form that it is stored in.
template <class Run>
void with_base(const GridFold& p, const Run& run) {
    if (p.codes.packed != nullptr) return run(CodedBase{p.codes});
    dispatch_floating(p.w_type, [&](auto tag) {
        using S = typename decltype(tag)::type;
        run(PlainBase<S>{static_cast<const S*>(p.w)});
    });
}

GridFold aligned(GridFold p) {
    p.out_aligned = aligned_16(p.out.data, {}, spec::DType::f32) && p.out.stride % group == 0;
    return p;
}

/// As many thread blocks as run at once, or as there are tiles for.
dim3 grid_of(const GridFold& p, const void* kernel) {
    const int64_t column_blocks = ceil_div(p.cols, int64_t{warps * fold_columns}),
                  row_tiles = ceil_div(p.rows, int64_t{fold_rows}),
                  row_blocks = resident_blocks(kernel, threads, 0) / column_blocks;
    return dim3(static_cast<unsigned>(column_blocks),
                static_cast<unsigned>(std::clamp<int64_t>(row_blocks, 1, std::min<int64_t>(row_tiles, 65535))));
}

template <class T, spec::ServeGrid kGrid>
void launch(const GridFold& from, cudaStream_t stream) {
    if (from.rows == 0 || from.cols == 0) return;
    const GridFold p = aligned(from);
    with_base(p, [&](const auto& base) {
        using Base = std::decay_t<decltype(base)>;
        if constexpr (kGrid == spec::ServeGrid::fp8) {
            const auto maxima = find_row_maxima<Base>;
            UNSLOTH_CUDA_CHECK(
                cudaMemsetAsync(p.row_largest, 0, static_cast<std::size_t>(p.rows) * sizeof(uint32_t), stream));
            UNSLOTH_LAUNCH(maxima, grid_of(p, reinterpret_cast<const void*>(maxima)), threads, 0, stream, p, base);
        }
        const auto kernel = fold<Base, T, kGrid>;
        UNSLOTH_LAUNCH(kernel, grid_of(p, reinterpret_cast<const void*>(kernel)), threads, 0, stream, p, base,
                       nf4_cells());
    });
}

}  // namespace

void fold_to_values(const GridFold& p, cudaStream_t stream) {
    launch<float, spec::ServeGrid::none>(p, stream);
}

void fold_to_nf4(const GridFold& p, cudaStream_t stream) {
    launch<float, spec::ServeGrid::nf4>(p, stream);
}

void fold_to_rows(const GridFold& p, cudaStream_t stream) {
    dispatch_floating(p.out_type, [&](auto tag) {
        using T = typename decltype(tag)::type;
        using spec::ServeGrid;
        if (p.grid == ServeGrid::q8_0) return launch<T, ServeGrid::q8_0>(p, stream);
        if (p.grid == ServeGrid::q4_0) return launch<T, ServeGrid::q4_0>(p, stream);
        if (p.grid == ServeGrid::mxfp4) return launch<T, ServeGrid::mxfp4>(p, stream);
        launch<T, ServeGrid::fp8>(p, stream);
    });
}

}  // namespace unsloth::kernels
