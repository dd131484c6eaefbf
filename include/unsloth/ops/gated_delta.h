// Gated delta nets (Yang, Kautz & Hatamizadeh, "Gated Delta Networks", 2024, arXiv:2412.06464) as Qwen3.5's layers have
// them: a short causal convolution, the delta rule over a state, and a gated norm.
//
// Legend: T tokens, C channels, w taps, H value heads, G key heads (G divides H), k and v the sizes of their heads.
// Matrices are of fp32, bf16 or f16, with a contiguous last dimension and free strides; arithmetic is in fp32, results
// are rounded once. No segment sees another one: state and convolution begin with zeros in each, but where a segment
// is a part of a sequence and resumes from what the part before left.
#pragma once

#include <functional>
#include <vector>

#include "unsloth/ops/attention.h"

namespace unsloth::ops {

struct DeltaShape {
    int64_t key_heads = 0, value_heads = 0;  ///< G, H: key head j serves H / G value heads in a row
    int64_t key_dim = 0, value_dim = 0;      ///< k, v
    int64_t keys() const { return key_heads * key_dim; }
    int64_t values() const { return value_heads * value_dim; }
    int64_t channels() const { return 2 * keys() + values(); }  ///< C of queries, keys and values side by side
};

/// Tokens between the states that a backward pass begins from.
inline constexpr int64_t delta_chunk = 64;

/// What sequences keep between calls, in N places (contiguous): segment s resumes from place rows[s], zeros if it
/// begins, and leaves its own there; a segment without tokens leaves what it found. Each has its own place, but for the
/// last one: what is left there is lost.
struct KeptStates {
    at::Tensor
        data;  ///< of the convolution [N, w - 1, C], its last inputs, of x's type; of the rule [N, H, k, v], fp32
    std::vector<int32_t> rows;  ///< [segments]
    at::Tensor rows_S;          ///< int32, the same on the device; read on CUDA only
    bool read_only = false;     ///< segments leave nothing, and the last place is as the others
    bool defined() const { return data.defined(); }
    int64_t places() const { return data.size(0) - (read_only ? 0 : 1); }
    bool keeps(size_t segment) const { return defined() && rows[segment] < places(); }
};

/// Parts of sequences that follow one another, of which segments s with s % count == t are computed in turn t:
/// ascending forward, descending backward. Segments of different turns may have the same place of states.
struct DeltaTurns {
    int count = 1;
    std::function<void(int turn)> before = {};  ///< called before a turn's kept states are read; may be empty
    void begin(int turn) const {
        if (before) before(turn);
    }
};

/// y_TC = silu of a convolution of each channel over its segment's tokens: the last tap is of the token itself.
/// weight_Cw: fp32, contiguous. x and y may not overlap. Without `kept` segments begin with zeros.
void short_conv_forward(Context& ctx, const Segments& segments, const at::Tensor& x_TC, const at::Tensor& weight_Cw,
                        const at::Tensor& y_TC, const KeptStates& kept = {});
/// dx_TC = the gradient; dweight_Cw (fp32, may be undefined): +=, summed in a fixed order. dx may not overlap dy or x.
/// `kept`: what the forward began with, read only; dkept_NwC, of its data's size and type: the gradients of the
/// segments' places, written.
void short_conv_backward(Context& ctx, const Segments& segments, const at::Tensor& dy_TC, const at::Tensor& x_TC,
                         const at::Tensor& weight_Cw, const at::Tensor& dx_TC, const at::Tensor& dweight_Cw,
                         const KeptStates& kept = {}, const at::Tensor& dkept_NwC = {});

/// What the delta rule reads of a layer: `mixed_TC` has queries, keys and values of all heads side by side; queries and
/// keys are divided by their length, sqrt(sum of squares + 1e-6), and queries by sqrt(k) too. For a value head of token
/// t: beta = sigmoid(b), decay = exp(-exp(a_log) softplus(a + dt_bias)).
struct DeltaInputs {
    at::Tensor mixed_TC, b_TH, a_TH;  ///< compute dtype
    at::Tensor a_log_H, dt_bias_H;    ///< fp32, contiguous
};
/// S = decay S, then S += key (beta (value - S^T key))^T, and o_THv = S^T query, for each value head; S is [k, v].
/// Without `kept` segments begin with zeros.
///
/// CUDA: 16-bit dtypes with k = v = 128 and rows that allow 16-byte accesses go by chunks of 64 tokens, with states in
/// fp32 and products of bf16 by tensor cores; one token a segment with states kept, in fp32. Everything else is
/// computed in fp32, a token after the other; a state must fit a block's shared memory. Takes delta_rule_workspace
/// bytes of ctx.workspace, which `turns` must leave alone. What states are not needed for runs before the first turn.
void delta_rule_forward(Context& ctx, const DeltaShape& shape, const Segments& segments, const DeltaInputs& in,
                        const at::Tensor& o_THv, const KeptStates& kept = {}, const DeltaTurns& turns = {});
/// Bytes of ctx.workspace (16-byte aligned) for both directions, or for the forward alone, of up to `tokens` tokens in
/// up to `segments` segments; 0 on the CPU. `aligned`: rows of all matrices allow 16-byte accesses.
int64_t delta_rule_workspace(const DeltaShape& shape, at::ScalarType dtype, at::Device device, int64_t tokens,
                             int64_t segments, bool backward = true, bool aligned = true);

/// Gradients, written but for the last two (fp32, may be undefined), which are added to in a fixed order.
struct DeltaGradients {
    at::Tensor mixed_TC, b_TH, a_TH, a_log_H, dt_bias_H;
};
/// Of parts of sequences. `kept`: the states that they began with, read only. `dkept` [N, H, k, v], fp32: a place has
/// the gradient of the state that its segment ended with, and gets that of the one it began with.
struct DeltaResumed {
    KeptStates kept, dkept;
    DeltaTurns turns;
};
/// `states`: fp32, flat, of delta_state_elements; what it held is lost. The states are made again from the inputs.
/// Takes delta_rule_workspace bytes of ctx.workspace, which `resumed.turns` must leave alone. Gradients may not overlap
/// `in`.
void delta_rule_backward(Context& ctx, const DeltaShape& shape, const Segments& segments, const DeltaInputs& in,
                         const at::Tensor& do_THv, const at::Tensor& states, const DeltaGradients& out,
                         const DeltaResumed& resumed = {});
/// For up to `tokens` in up to `segments`: a state for each value head and begun chunk.
int64_t delta_state_elements(const DeltaShape& shape, int64_t tokens, int64_t segments);

/// y = x * rstd * weight * silu(z), rstd = 1 / sqrt(mean(x^2) + eps) of each head's v values. weight_v: fp32. y may be
/// x.
void gated_norm_forward(Context& ctx, const at::Tensor& x_THv, const at::Tensor& z_THv, const at::Tensor& weight_v,
                        double eps, const at::Tensor& y_THv);
/// dx_THv and dz_THv = the gradients; dweight_v (fp32, may be undefined): +=. dx may be dy, and dz may be z.
void gated_norm_backward(Context& ctx, const at::Tensor& dy_THv, const at::Tensor& x_THv, const at::Tensor& z_THv,
                         const at::Tensor& weight_v, double eps, const at::Tensor& dx_THv, const at::Tensor& dz_THv,
                         const at::Tensor& dweight_v);
/// Bytes of ctx.workspace (16-byte aligned) that the backward takes where dweight is wanted; 0 on the CPU.
int64_t gated_norm_workspace(at::Device device, int64_t columns);

/// A net's forward between its products.
struct DeltaNet {
    DeltaShape shape;
    DeltaInputs in;              ///< mixed_TC: before the convolution
    at::Tensor taps_Cw, norm_v;  ///< fp32, contiguous
    at::Tensor z_THv;            ///< the gate
    double eps = 0;
    KeptStates inputs, states;  ///< both, of the same places, or neither
};
/// short_conv_forward to convolved_TC, delta_rule_forward to o_THv, and gated_norm_forward to y_THv. CUDA: one kernel
/// with states kept, one token a segment, k = v = 128 and four taps; it writes y alone.
void delta_net_forward(Context& ctx, const Segments& segments, const DeltaNet& net, const at::Tensor& convolved_TC,
                       const at::Tensor& o_THv, const at::Tensor& y_THv);

/// y = x * sigmoid(gate) (attention's outputs in Qwen3.5's other layers). y may be x.
void sigmoid_gate_forward(Context& ctx, const at::Tensor& x_THd, const at::Tensor& gate_THd, const at::Tensor& y_THd);
/// dx and dgate = the gradients. dx may be dy, and dgate may be gate.
void sigmoid_gate_backward(Context& ctx, const at::Tensor& dy_THd, const at::Tensor& x_THd, const at::Tensor& gate_THd,
                           const at::Tensor& dx_THd, const at::Tensor& dgate_THd);

}  // namespace unsloth::ops
