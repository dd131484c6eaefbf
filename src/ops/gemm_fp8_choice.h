// Which implementation of an e4m3 product to take. No CUDA here.
#pragma once

#include <cstdint>

#include "kernels/fp8_gemm.h"
#include "unsloth/spec/kernel_table.h"

namespace unsloth::ops {

struct Fp8GemmChoice {
    bool own = false;  ///< our kernel with `tile`; otherwise the library
    kernels::Fp8Tile tile = {};
};

/// What the table says of an [m, k] by [n, k] product with a tail of `rank` columns; the library where it says nothing.
Fp8GemmChoice fp8_gemm_choice(const spec::KernelTable& table, int64_t m, int64_t n, int64_t k, int64_t rank);

}  // namespace unsloth::ops
