// What grouped products share: which expert's rows a block works on, and tiles of 16-bit operands in shared memory.
#pragma once

#include "kernels/common/device.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/ptx.cuh"

namespace unsloth::kernels {

inline constexpr int most_tiled_experts = 256;

/// Rows from `first` on, a tile of those of `expert` that end at `end`. No expert: -1.
struct ExpertTile {
    int expert;
    int32_t first, end;
};

/// Of tile `index` among those of `tile_rows` rows of all experts in their order. By warp 0; `shared` for all threads
/// after a barrier, which is this function's.
__device__ __forceinline__ ExpertTile find_tile(const int32_t* ends, int experts, int64_t index, int tile_rows,
                                                ExpertTile* shared) {
    constexpr int each = most_tiled_experts / warp_size;
    if (threadIdx.x < warp_size) {
        const int lane = threadIdx.x, from = lane * each;
        int32_t end[each + 1];  // the first: where the lane's experts begin
        end[0] = from == 0 ? 0 : ends[min(from, experts) - 1];
        int32_t tiles = 0;
#pragma unroll
        for (int i = 0; i < each; ++i) {
            end[i + 1] = from + i < experts ? ends[from + i] : end[i];
            tiles += (end[i + 1] - end[i] + tile_rows - 1) / tile_rows;
        }
        int32_t tiles_up_to = tiles;  // tiles of the lanes up to this one
#pragma unroll
        for (int step = 1; step < warp_size; step *= 2) {
            const int32_t before = __shfl_up_sync(all_lanes, tiles_up_to, step);
            if (lane >= step) tiles_up_to += before;
        }
        if (lane == 0) shared->expert = -1;
        __syncwarp();
        int64_t tile = index - (tiles_up_to - tiles);
        if (tile >= 0 && tile < tiles) {
#pragma unroll
            for (int i = 0; i < each; ++i) {
                const int32_t of_expert = (end[i + 1] - end[i] + tile_rows - 1) / tile_rows;
                if (tile >= 0 && tile < of_expert)
                    *shared = {from + i, end[i] + static_cast<int32_t>(tile) * tile_rows, end[i + 1]};
                tile -= of_expert;
            }
        }
    }
    __syncthreads();
    return *shared;
}

/// The most tiles of `tile_rows` rows that these rows may make.
inline int64_t most_tiles(int64_t rows, int experts, int tile_rows) {
    return rows / tile_rows + (rows < experts ? rows : experts);
}

/// An operand of a product: `outer` rows (of the result's side) by `inner` (of the sum). Where kAlongSum they are in
/// memory as [outer][inner], else as [inner][outer].
template <class T, int kOuter, int kInner, bool kAlongSum>
struct OperandTile {
    static constexpr int kRows = kAlongSum ? kOuter : kInner, kColumns = kAlongSum ? kInner : kOuter;
    static constexpr int kPitch = kColumns + 8;  // an odd number of 16 bytes: ldmatrix meets no bank twice
    static constexpr int kBytes = kRows * kPitch * 2;
    static_assert(kPitch / 8 % 2 == 1);

    const T* data;
    int64_t stride;
    int outer, inner;  // what there is

    /// The tile at (first_outer, first_inner) to shared memory at `to`; what there is not becomes 0.
    template <int kThreads>
    __device__ __forceinline__ void load(uint32_t to, int first_outer, int first_inner) const {
        const int first_row = kAlongSum ? first_outer : first_inner, rows = kAlongSum ? outer : inner;
        const int first_column = kAlongSum ? first_inner : first_outer, columns = kAlongSum ? inner : outer;
        constexpr int packs = kColumns / 8, all = kRows * packs;
#pragma unroll
        for (int i = 0; i < (all + kThreads - 1) / kThreads; ++i) {
            const int pack = i * kThreads + threadIdx.x;
            if (all % kThreads != 0 && pack >= all) break;
            const int r = pack / packs, c = pack % packs * 8;
            const int row = first_row + r, column = first_column + c;
            const int bytes = row < rows ? min(max(columns - column, 0) * 2, 16) : 0;
            const T* from = bytes > 0 ? data + row * stride + column : data;
            cp_async_16_first(to + (r * kPitch + c) * 2, from, bytes);
        }
    }

    /// Where a lane's part of four 8 x 8 matrices begins: outer 16 from `o` on, inner 16 from `i` on. The matrices are
    /// (outer, inner) = (0, 0), (8, 0), (0, 8), (8, 8) of the first operand, (0, 0), (0, 8), (8, 0), (8, 8) of the
    /// second.
    template <bool kFirst>
    __device__ __forceinline__ static void fragments(uint32_t (&r)[4], uint32_t at, int o, int i, int lane) {
        const int eighth = lane % 8, second = lane / 8 % 2 * 8, third = lane / 16 * 8;
        if constexpr (kAlongSum) {
            const int row = o + eighth + (kFirst ? second : third), column = i + (kFirst ? third : second);
            ldmatrix_x4(r, at + (row * kPitch + column) * 2);
        } else {
            const int row = i + eighth + (kFirst ? third : second), column = o + (kFirst ? second : third);
            ldmatrix_x4_trans(r, at + (row * kPitch + column) * 2);
        }
    }
};

}  // namespace unsloth::kernels
