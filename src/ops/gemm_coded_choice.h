// Which implementation of a product of 8-bit codes to take. No CUDA here.
#pragma once

#include <cstdint>

#include "kernels/coded_gemm.h"
#include "unsloth/spec/kernel_table.h"

namespace unsloth::ops {

struct CodedGemmChoice {
    bool own = false;  ///< our kernel with `tile`; otherwise the library
    kernels::CodedTile tile = {};
};

/// e4m3: what the table says of an [m, k] by [n, k] product with a tail of `rank` columns; the library where it says
/// nothing.
CodedGemmChoice coded_gemm_choice(const spec::KernelTable& table, int64_t m, int64_t n, int64_t k, int64_t rank);

/// int8: the tile of our kernel for Hopper.
kernels::CodedTile int8_gemm_tile(int64_t multiprocessors, int64_t m, int64_t n);

}  // namespace unsloth::ops
