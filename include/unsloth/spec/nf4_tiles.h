// 4-bit weights in tiles: the one resident form that dequantisation, y = x Wᵀ and dx = dy W read on a GPU.
// C++17: shared by host code and kernels.
//
// A weight [N, K] with N and K multiples of 64 and nested block maxima (spec/quant4.h) is stored in tiles of 64 x
// 64, [N/64, K/64] row-major, nf4_tile_bytes each: 2048 bytes of codes, then the codes of the 64 rows' block
// maxima (a row of a tile is exactly one block of 64). Everything else of a Quant4View (code, nested map,
// nested maxima, offset) stays as it is; block b of the flattened weight keeps its number. Of MXFP4 the exponents of
// the 64 rows' left blocks of 32 follow the codes, then those of the right ones: mxfp4_tile_bytes.
//
// The codes of a tile are 4 x 4 sub-blocks of 16 x 16, row-major, 128 bytes each: an 8 x 8 matrix of 16-bit
// units, row-major. Unit (i, j) of a sub-block holds its four elements (row, column) from the low bits up
//     (i, j), (i + 8, j), (i, j + 8), (i + 8, j + 8).
// So `ldmatrix` gives each thread the eight elements that it owns of a 16 x 16 A operand of mma.sync and
// wgmma, and `ldmatrix.trans` those of the transposed sub-block: one layout fits both GEMMs without a
// shuffle.
#pragma once

#include <cstdint>

#include "unsloth/spec/quant4.h"

namespace unsloth::spec {

inline constexpr int nf4_tile = 64;               ///< rows and columns of a tile
inline constexpr int nf4_tile_code_bytes = 2048;  ///< then one byte a row: its block maximum's code
inline constexpr int nf4_tile_bytes = nf4_tile_code_bytes + nf4_tile;
inline constexpr int mxfp4_tile_bytes = nf4_tile_code_bytes + 2 * nf4_tile;
static_assert(nf4_tile == quant4_block && nf4_tile == 2 * mxfp4_block, "a row of a tile is one block, or two");

/// The position of a tile element's code.
struct Nf4TilePlace {
    int byte;
    int shift;  ///< 0 or 4
};

/// row, column in [0, 64).
constexpr Nf4TilePlace nf4_tile_place(int row, int column) {
    const int sub_block = (row / 16) * 4 + column / 16;
    const int unit = (row % 8) * 8 + column % 8;
    const int place = (row / 8) % 2 + (column / 8) % 2 * 2;  // of the unit's four
    return {sub_block * 128 + unit * 2 + place / 2, place % 2 * 4};
}

/// One weight in tiles: pointers to host or device memory, not owned.
struct Nf4TilesView {
    const uint8_t* tiles = nullptr;        ///< [N/64, K/64, tile_bytes()], aligned to 16 bytes
    const float* code = nullptr;           ///< [16]
    const float* nested_map = nullptr;     ///< [256]
    const float* nested_absmax = nullptr;  ///< [ceil(NK / 64 / 256)]; nullptr: MXFP4
    float nested_offset = 0.0F;
    int64_t rows = 0;  ///< N
    int64_t cols = 0;  ///< K

    constexpr bool is_mxfp4() const { return nested_absmax == nullptr; }
    constexpr int tile_bytes() const { return is_mxfp4() ? mxfp4_tile_bytes : nf4_tile_bytes; }
};

/// Whether a weight can be stored in tiles.
constexpr bool nf4_tiles_supported(const Quant4View& weight) {
    return (weight.nested() || weight.exponents != nullptr) && weight.rows > 0 && weight.cols > 0 &&
           weight.rows % nf4_tile == 0 && weight.cols % nf4_tile == 0;
}

constexpr int64_t nf4_tiles_bytes(int64_t rows, int64_t cols, int tile_bytes = nf4_tile_bytes) {
    return rows / nf4_tile * (cols / nf4_tile) * tile_bytes;
}

}  // namespace unsloth::spec
