// Element-wise passes over the rows of strided matrices: one kernel that moves packs of N columns, many operations.
//
// An operation is a small struct passed by value, with
//   State load(uint32_t row, int64_t column) const   reads what N columns from `column` on need
//   void store(uint32_t row, int64_t column, const State&) const   computes and writes them
// A thread loads for several rows before it stores any: more bytes in flight, and in-place operations keep it.
#pragma once

#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"
#include "kernels/common/ptx.cuh"

namespace unsloth::kernels {

inline constexpr int map_threads = 256;
inline constexpr int map_rows_per_thread = 2;

template <int N, class Operation>
__global__ void __launch_bounds__(map_threads)
    map_rows_kernel(const Operation operation, uint32_t rows, uint32_t packs, uint32_t chunks) {
    begin_after_previous(rows);
    const uint32_t tile = blockIdx.x / chunks;
    const uint32_t pack = (blockIdx.x - tile * chunks) * blockDim.x + threadIdx.x;
    if (pack >= packs) return;
    const int64_t column = static_cast<int64_t>(pack) * N;
    const uint32_t first = tile * (blockDim.y * map_rows_per_thread) + threadIdx.y;
    typename Operation::State state[map_rows_per_thread];
#pragma unroll
    for (int i = 0; i < map_rows_per_thread; ++i) {
        const uint32_t row = first + i * blockDim.y;
        if (row < rows) state[i] = operation.load(row, column);
    }
#pragma unroll
    for (int i = 0; i < map_rows_per_thread; ++i) {
        const uint32_t row = first + i * blockDim.y;
        if (row < rows) operation.store(row, column, state[i]);
    }
}

/// Runs `operation` over rows x columns; columns must be a multiple of N. Nothing to do is allowed.
template <int N, class Operation>
void map_rows(const Operation& operation, int64_t rows, int64_t columns, cudaStream_t stream) {
    if (rows == 0 || columns == 0) return;
    const int64_t packs = columns / N;
    const int64_t chunks = ceil_div(packs, map_threads);  // of nearly equal width: no block is left half empty
    const int64_t wide = ceil_div(packs, chunks);
    const int64_t x = wide > 32 ? round_up(wide, 32) : next_power_of_two(wide);
    const int64_t y = map_threads / x;
    const int64_t tiles = ceil_div(rows, y * map_rows_per_thread);
    launch_kernel(map_rows_kernel<N, Operation>,
                  {.grid = dim3(static_cast<unsigned>(tiles * chunks)),
                   .threads = dim3(static_cast<unsigned>(x), static_cast<unsigned>(y)),
                   .stream = stream,
                   .after_previous = uses_programmatic_launch(rows)},
                  operation, static_cast<uint32_t>(rows), static_cast<uint32_t>(packs), static_cast<uint32_t>(chunks));
}

}  // namespace unsloth::kernels
