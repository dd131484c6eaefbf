// Experts whose 4-bit weights stay packed in tiles (ops/nf4_gemm.h): all of them dequantised in one pass, for many
// rows, or products that read the tiles, for few. Legend: ops/experts.h.
#pragma once

#include <vector>

#include "unsloth/ops/nf4_gemm.h"

namespace unsloth::ops {

/// Weights of one size that own their memory on a device, and on CUDA a table of them there.
struct Nf4Experts {
    std::vector<Nf4Tiles> experts;
    at::Tensor views;  ///< uint8, of spec::Nf4TilesView: where the kernels find each one's tiles; undefined on the CPU
    int64_t rows = 0, cols = 0;  ///< N, K of each
};

/// For loading: allocates the table and waits for the device. CheckError for weights of several sizes or devices, and
/// for some in MXFP4 among others.
Nf4Experts make_nf4_experts(Context& ctx, std::vector<Nf4Tiles> experts);

/// out_ENK = the dequantised weights, the bits that dequantize_nf4_tiles gives, in one launch. Otherwise as that.
void dequantize_nf4_experts(Context& ctx, const Nf4Experts& weights, const at::Tensor& out_ENK);

/// out[rows of e] = x[rows of e]·W_eᵀ (+ bias_e), as GroupedProduct, W with exactly the values that dequantisation to
/// x's type gives. CUDA: bf16, rows of x that start at multiples of 16 bytes. Every 16 rows of an expert read its codes
/// once: a quarter of what GroupedProduct reads for few rows, slower than that for many.
struct Nf4GroupedProduct {
    at::Tensor x_nK;
    const Nf4Experts& weights;
    at::Tensor ends_E;        ///< of ExpertOrder; its last is n
    at::Tensor out_nN;        ///< x's dtype; aliases nothing
    at::Tensor bias_EN = {};  ///< out's dtype; undefined: none
    bool accumulate = false;  ///< out += instead
    const char* label = "experts";
};
void nf4_grouped_product(Context& ctx, const Nf4GroupedProduct& args);

}  // namespace unsloth::ops
