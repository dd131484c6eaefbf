// What a group's products multiply by. The base may have any form: nothing outside of this room asks which.
//
// Legend: T tokens, N outputs, K inputs, R the group's total rank (weights/layout.h).
#pragma once

#include <map>
#include <optional>
#include <variant>

#include "unsloth/ops/dora.h"
#include "unsloth/ops/gemm_coded.h"
#include "unsloth/ops/nf4_experts.h"
#include "unsloth/ops/nf4_gemm.h"
#include "unsloth/spec/tensor_table.h"
#include "unsloth/weights/adapter_tails.h"
#include "unsloth/weights/layout.h"

namespace unsloth::weights {

/// The base in the compute type, in one buffer [N+R, leading] with the adapters' margins.
struct DenseBase {
    at::Tensor buffer;
    at::Tensor w_NK;          ///< the base alone
    at::Tensor forward_NKR;   ///< [W | sB]
    at::Tensor backward_NRK;  ///< [W ; A]
};

/// 4-bit tiles that the products read themselves, and the kernels that do.
struct TiledBase {
    at::ArrayRef<ops::Nf4Tiles> tiles;           ///< in the order of the group's slices
    std::vector<ops::TailColumns> tail_columns;  ///< of each: those of its adapters
    ops::Nf4GemmChoice forward, backward;
};

/// Codes of W by its rows, for the forward product.
struct CodedBase {
    ops::CodedMatrix w_NK;
    at::Tensor values_NK = {};  ///< for dx, in the compute type; undefined where it is multiplied by a transpose
};

/// Codes of W's transpose by its own rows, for dx.
struct CodedTranspose {
    ops::CodedMatrix w_KN;
    at::Tensor a_KR;  ///< A transposed
};

/// 4-bit tiles of a group of experts, which products of few rows read: each of the group's projections of all experts.
struct ExpertTiles {
    at::ArrayRef<ops::Nf4Experts> parts;
};

struct Operand {
    std::variant<DenseBase, TiledBase, CodedBase, ExpertTiles> base;
    /// What dx is multiplied by, if not by `base`.
    std::optional<CodedTranspose> transpose;
    at::Tensor a_RK;         ///< compute dtype
    at::Tensor b_NR;         ///< s·B, block diagonal over the group's projections
    at::Tensor bias_N;       ///< compute dtype; undefined: none
    ops::OutputScale scale;  ///< DoRA's, with the bias; undefined without
    bool folded = false;     ///< the base, a dense one, has the adapters in it: products leave their columns out
    GroupMargins margins() const;

    /// Whether the forward product reads codes.
    bool reads_codes() const { return std::holds_alternative<CodedBase>(base); }
    /// Where the operator that makes the forward GEMM's input, or dx's, puts its quantized values, [rows, columns] of
    /// `scratch`: it makes them together with the rows. Empty where the GEMM reads the rows themselves.
    ops::CodedMatrix input_codes(const ops::CodedMatrix& scratch, int64_t rows, int64_t columns) const;
    ops::CodedMatrix gradient_codes(const ops::CodedMatrix& scratch, int64_t rows, int64_t columns) const;
};

/// The base and its margins in this buffer [N+R, leading], which is zeroed: margins that no module uses stay 0 for
/// good.
Operand dense_operand(const MatrixGroup& layout, at::Tensor buffer);

/// A group of experts by expert, with an adapter of rank r.
struct ExpertMatrices {
    at::Tensor w_ENK;                     ///< in the compute type; undefined where products read tiles
    at::Tensor forward_ENKr;              ///< [W | sB]; w_ENK without an adapter
    at::ArrayRef<ops::Nf4Experts> tiles;  ///< the rows N in parts; empty: products read w_ENK
    at::Tensor a_ErK, b_ENr;              ///< A, s·B; undefined without
};
ExpertMatrices experts_of(const Operand& operand, int64_t experts, int64_t r);

/// One product of a group.
struct Product {
    at::Tensor input;          ///< forward: [T, K+R] = [x | x·Aᵀ]; backward: [T, N+R] = [dy | dy·sB]
    ops::CodedMatrix codes;    ///< of its first K (N) columns, where the operand asks for them; these are then not read
    bool adapters = false;     ///< the last R columns take part
    at::Tensor out;            ///< [T, N]; backward [T, K]
    bool bias = true;          ///< the operand's is added. Forward alone
    at::Tensor residual = {};  ///< added to it, may be out; undefined: none. Backward not with codes
    const char* label = "gemm";  ///< its name in a profile
};
/// out = input · [W | sB]ᵀ (+ bias) (+ residual)
void multiply_forward(ops::Context& ctx, const Operand& operand, const Product& product);
/// out = input · [W ; A]
void multiply_backward(ops::Context& ctx, const Operand& operand, const Product& product);

/// A layer's weights as its passes read them.
struct LayerWeights {
    ByGroup<Operand> groups;
    std::map<spec::TensorRole, at::Tensor> norms;  ///< fp32; a router: compute dtype
    const Operand& operator[](Group g) const { return groups.at(g); }
    Operand& operator[](Group g) { return groups[g]; }
    /// [D], or [d] of q and k, or [E, D] of a router; std::out_of_range where the layer has none.
    const at::Tensor& norm(spec::TensorRole role) const { return norms.at(role); }
};

}  // namespace unsloth::weights
