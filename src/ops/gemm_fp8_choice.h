// Which implementation of an e4m3 product to take: what was measured, card by card. No CUDA here.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/fp8_gemm.h"

namespace unsloth::ops {

struct Fp8GemmChoice {
    bool own = false;  ///< our kernel with `tile`; otherwise the library
    kernels::Fp8Tile tile = {};
};

/// Our kernel's tile for an [m, k] by [n, k] product on the card of this name (cudaDeviceProp::name), from measured
/// costs; nullopt for cards that were not measured.
std::optional<kernels::Fp8Tile> fp8_gemm_tile(int64_t m, int64_t n, std::string_view card);

/// What runs there, with a tail of `rank` columns: the library on every card until our kernel has passed GemmFp8Gpu on
/// it in the form that is in this tree (its measured predecessor was 4 to 12 % faster than the library with its
/// separate product on an H200). The same arguments give the same choice.
Fp8GemmChoice fp8_gemm_choice(int64_t m, int64_t n, int64_t rank, std::string_view card);

}  // namespace unsloth::ops
