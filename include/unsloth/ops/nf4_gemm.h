// Products by 4-bit weights that stay packed: tiles that dequantisation, forward and backward all read, and
// the choice between an own kernel and dequantisation followed by the library's product.
//
// Legend: M tokens, N outputs and K inputs of a weight; R rank of a low-rank tail.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "unsloth/ops/quant.h"
#include "unsloth/spec/kernel_table.h"
#include "unsloth/spec/nf4_tiles.h"

namespace unsloth::ops {

/// A 4-bit weight in tiles (spec/nf4_tiles.h) that owns its memory on a device.
struct Nf4Tiles {
    at::Tensor tiles;          ///< uint8 [N/64, K/64, nf4_tile_bytes or mxfp4_tile_bytes]
    at::Tensor nested_absmax;  ///< fp32 [ceil(NK / 64 / 256)]; undefined: MXFP4
    at::Tensor tables;         ///< fp32 [16 + 256]: code, nested map
    float nested_offset = 0;
    int64_t rows = 0, cols = 0;
    bool is_mxfp4() const { return !nested_absmax.defined(); }
    spec::Nf4TilesView view() const;
};

/// Puts a weight that nf4_tiles_supported into tiles. Allocates them (loading, not the step) and shares the
/// tables and nested maxima (see `upload` about whose memory that is); the packed codes and block maxima are
/// not needed afterwards. CheckError for another weight.
Nf4Tiles make_nf4_tiles(Context& ctx, const Quant4Tensor& weight);

/// out_NK = the dequantised weight, the bits that dequantize_4bit gives. CUDA: bf16, rows that start at
/// multiples of 16 bytes; CPU: bf16, f16 or fp32.
void dequantize_nf4_tiles(Context& ctx, const Nf4Tiles& weight, const at::Tensor& out_NK);

/// Columns of the tail's weight that are not 0 in all of a weight's rows: others need not be read.
struct TailColumns {
    int64_t begin = 0, count = 0;
};

/// forward:    out[M, N] = x[M, K] Wᵀ + u[M, R] bᵀ + bias + residual, W the weights stacked along N
/// transposed: out[M, K] = x[M, N] W  + u[M, R] a  + bias + residual
/// W has the values that dequantisation to x's type gives; by `few` and `sm90_pairs`, values nearer to the fp32
/// ones.
struct Nf4Gemm {
    at::ArrayRef<Nf4Tiles> weights;  ///< 1 to 4, the same K in all; none in MXFP4
    bool transposed = false;
    at::Tensor x;                                 ///< [M, K + R] (transposed: [M, N + R]): u is its last R columns
    at::Tensor tail_weight = {};                  ///< b [N, R] (transposed: a [R, K]); undefined: no tail, R = 0
    at::ArrayRef<TailColumns> tail_columns = {};  ///< of each weight, forward alone; empty: all
    std::optional<at::Tensor> bias = {};          ///< [N] (transposed: [K]), contiguous
    std::optional<at::Tensor> residual = {};      ///< [M, N] (transposed: [M, K]); may be out
    at::Tensor out;                               ///< [M, N] (transposed: [M, K])
};

/// Which kernel runs a GEMM.
struct Nf4GemmChoice {
    enum class Kernel {
        dequantize,  ///< none of these: dequantise into scratch and call gemm
        portable,    ///< mma.sync, sm_80 and later: token_groups, strips, warps
        sm90,        ///< wgmma, Hopper: tokens, split
        sm90_pairs,  ///< the same, forward alone, with weights as those of `few`: tokens, split
        few,         ///< mma.sync, sm_80 and later, forward alone: tokens; fp32 scales, codes as near as bf16 allows
    };
    Kernel kernel = Kernel::dequantize;
    int token_groups = 0, strips = 0, warps = 0;
    int tokens = 0, split = 0;
    bool operator==(const Nf4GemmChoice&) const = default;
};

/// Where nothing was measured: of a card from compute capability 8.0 on the kernels for a decoding pass's tokens,
/// forward alone, for weights [N, K] of whole tiles; else `dequantize`.
Nf4GemmChoice nf4_gemm_rule(const spec::KernelCard& card, int64_t m, int64_t n, int64_t k, bool transposed);

/// What the table says of a product by weights [N, K] (N summed over a group); by nf4_gemm_rule of the table's card
/// where it does not know them.
Nf4GemmChoice nf4_gemm_choice(const spec::KernelTable& table, int64_t m, int64_t n, int64_t k, bool transposed);

/// A choice for products of M tokens by weights [N, K] (N summed over a group); empty: always `dequantize`.
using Nf4GemmChooser = std::function<Nf4GemmChoice(int64_t m, int64_t n, int64_t k, bool transposed)>;

/// nf4_gemm_choice of the table; empty where that has nothing but `dequantize`: without choices and a card.
Nf4GemmChooser nf4_gemm_chooser(std::shared_ptr<const spec::KernelTable> table);

/// Every form of the kernels that this device can run for products of this direction, for benchmarks and tests; none on
/// the CPU.
std::vector<Nf4GemmChoice> nf4_gemm_forms(at::Device device, bool transposed);

/// Whether `nf4_gemm` has a kernel of ours for the arguments on ctx.device(): bf16, rows of x, residual and out that
/// start at multiples of 16 bytes, R a multiple of 8 (kernels/nf4_gemm.h). Always true on the CPU.
bool nf4_gemm_supported(Context& ctx, const Nf4Gemm& args);

/// fp32 accumulation in a fixed order, rounded once. CUDA: the kernel that `choice` names (CheckError for
/// `dequantize`, for arguments that are not supported, and for a form that is not built). CPU: dequantises
/// and multiplies in fp32, whatever the choice. CheckError for mismatched shapes or types.
void nf4_gemm(Context& ctx, const Nf4Gemm& args, const Nf4GemmChoice& choice);

}  // namespace unsloth::ops
