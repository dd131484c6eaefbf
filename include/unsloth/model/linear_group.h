// A group of linears that share their input, with their adapters: forward, and backward with respect to input, adapters
// and (when trained) the base itself. Layout and notation: weights/layout.h.
#pragma once

#include <functional>
#include <string>

#include "unsloth/model/experts_probe.h"
#include "unsloth/model/tensor_parallel.h"
#include "unsloth/weights/operand.h"

namespace unsloth::model {

using weights::Group;

/// Sees each module's name ("model.layers.0.self_attn.q_proj") and output, in order of execution (tests: the first
/// module that is off shows where an error starts). Inputs that no module has as its output are reported under o_input
/// and down_input. What follows attention may run over some of the tokens at a time, and is then seen in parts.
using ModuleObserver = std::function<void(const std::string& module, const at::Tensor& output_TN)>;
inline constexpr const char *o_input = "self_attn.o_proj.input", *down_input = "mlp.down_proj.input";
/// What q, k and v read, and gate and up: their norm's name where they have one.
inline const char* input_name(const spec::ModelSpec& spec, Group g) {
    const bool attention = g == Group::qkv || g == Group::cross_q || g == Group::delta_in;
    if (!spec.norms_before()) return attention ? "self_attn.input" : "mlp.input";
    return layer_norm_name(spec, attention ? spec::TensorRole::input_norm : spec::TensorRole::post_norm).data();
}

/// What the GEMMs of a layer need in addition to its weights.
struct GroupContext {
    ops::Context& ctx;
    const TensorParallel& tp;
    const weights::LayerLayout& layout;
    int layer = 0;
    const weights::Adapters* adapters = nullptr;  ///< nullptr: no adapters, or switched off
    weights::Parameters* parameters = nullptr;    ///< gradients go here; nullptr in inference
    bool trains_base = false;                     ///< full fine-tuning: dW and dbias too
    // Dropout of adapters' inputs, one mask a projection as in PEFT; p = 0: none.
    double dropout = 0.0;
    at::Tensor row_T, offset_T;
    // Several adapters concatenated, of which each token has at most one (weights/multi_lora_adapters.h).
    at::Tensor adapter_T;                                  ///< int32; undefined: there is one, all have it
    const weights::ByGroup<at::Tensor>* owners = nullptr;  ///< whose columns the groups' are, int32
    at::Tensor dropped;                                    ///< flat scratch, of the most elements that an input has
    const ModuleObserver* observer = nullptr;
    const ExpertsProbe* experts = nullptr;
};

/// Whether adapters take part in a group's products.
bool adapted(const GroupContext& c, Group g);

/// What a group's products read: rows, codes of them, or both. Who makes the rows makes the codes.
struct Activation {
    at::Tensor full;              ///< [T, K+R]: x with the adapters' columns; of a gradient [T, N+R]: dy with v
    ops::CodedMatrix codes = {};  ///< of x, or dy; empty: products read the rows
    bool codes_alone = false;     ///< x, or dy, itself is not read, and need not be made
    /// The rows x, or dy, as an output of the operator that makes them: undefined where they need not be made.
    at::Tensor made(const at::Tensor& rows) const { return codes_alone ? at::Tensor() : rows; }
};

/// A group's input before it is made: its codes are in the flat `scratch`. u_TR: of fill_adapter_columns. Codes are
/// read alone unless others read the rows: an observer, other tensor-parallel ranks, dropout, a choice of adapters a
/// token.
Activation input_activation(const GroupContext& c, Group g, const weights::Operand& w, const at::Tensor& x_full,
                            const at::Tensor& u_TR, const ops::CodedMatrix& scratch);
/// The same of the gradient of its outputs. Codes are read alone where the forward product is by codes as well: who
/// asks for exact forward products asks for gradients of B from exact rows.
Activation gradient_activation(const GroupContext& c, Group g, const weights::Operand& w, const at::Tensor& dy_full,
                               const at::Tensor& u_TR, const ops::CodedMatrix& scratch);

/// x's last R columns = x·Aᵀ (each projection's own dropout on x); u_TR (may be undefined) keeps a copy.
void fill_adapter_columns(const GroupContext& c, Group g, const weights::Operand& w, const Activation& x,
                          const at::Tensor& u_TR);

/// With the rows of this rank's slice of those at hand: what dropout's masks are drawn by.
GroupContext own_rows(const GroupContext& c);

/// Whether DoRA scales what products give (ops/dora.h).
bool scales_outputs(const GroupContext& c);

/// What a product gives: y_TN = its outputs + bias (+ residual_TN).
struct Outputs {
    at::Tensor y_TN;
    at::Tensor residual_TN = {};
    at::Tensor z_TN = {};  ///< DoRA: where the outputs are kept before their scale; y itself: they are left there alone
    at::Tensor terms_TN = {};  ///< contiguous; of a group that is cut by its inputs: a rank's terms, before their sum
};

/// x · [W | sB]ᵀ to `out`, with x's adapter columns filled. Where the group is cut by its inputs that is the sum over
/// the tensor-parallel ranks, and y, z and the residual have the rows of this rank's slice (contiguous).
void linear_forward(const GroupContext& c, Group g, const weights::Operand& w, const Activation& x, const Outputs& out);

/// DoRA: where the gradients of a group's magnitudes go.
std::vector<ops::MagnitudeGradient> magnitude_gradients(const GroupContext& c, Group g);

/// The backward in two halves, because a layer makes x again together with the step that follows dx.
///
/// From dy, whose last R columns become v = dy·sB: adds the gradients of B (and of a trained bias) to the flat buffer,
/// and writes dx_TK (undefined: not needed), which may be any memory but dy's: where the group is cut by its outputs,
/// this rank's terms of it, as v's are. `adds`: dx_TK +=, of a group without codes.
void input_backward(const GroupContext& c, Group g, const weights::Operand& w, const Activation& dy,
                    const at::Tensor& u_TR, const at::Tensor& dx_TK, bool adds = false);
/// Then, from the group's input x and v: adds the gradients of A.
void adapter_backward(const GroupContext& c, Group g, const at::Tensor& v_TR, const at::Tensor& x_TK);
/// And from dy those of a trained W.
void matrix_backward(const GroupContext& c, Group g, const at::Tensor& dy_TN, const at::Tensor& x_TK);
/// Both, of dy_full as it was left.
void weight_backward(const GroupContext& c, Group g, const at::Tensor& dy_full, const at::Tensor& x_TK);

}  // namespace unsloth::model
