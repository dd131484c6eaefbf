// Mixtures of experts: the router, the order of rows by expert, grouped products, the weighted sum, load balancing.
//
// Legend: T tokens, E experts (up to 256), k choices a token (up to 16), n = T·k rows in expert order: those of expert
// 0 first, each expert's by token. D hidden, M, N and K of a product. Every row of every token has its place (no
// capacity), so all shapes are known on the host, and what the router chose stays on the device. Sums have a fixed
// order. Rows reach expert order by ops::gather_rows with ExpertOrder::tokens_n; ops::sum_rows over places_Tk is the
// gradient of that.
#pragma once

#include "unsloth/ops/context.h"
#include "unsloth/spec/router_weights.h"

namespace unsloth::ops {

inline constexpr int64_t most_experts = 256, most_choices = 16;

/// The k largest logits of a token, the largest first, the lower expert where they are equal. NaN counts as the
/// largest: the ids remain distinct and below E, and the weights become NaN.
struct Route {
    spec::RouterWeights weights = spec::RouterWeights::of_chosen;
    at::Tensor logits_TE;              ///< fp32, with the router's bias
    at::Tensor ids_Tk;                 ///< int32, written
    at::Tensor weights_Tk;             ///< fp32, written
    at::Tensor probabilities_TE = {};  ///< fp32, written: softmax over all; may be logits_TE; undefined: not wanted
};
void route(Context& ctx, const Route& args);

struct RouteBackward {
    spec::RouterWeights weights = spec::RouterWeights::of_chosen;
    at::Tensor ids_Tk, weights_Tk;     ///< of route()
    at::Tensor dweights_Tk;            ///< fp32
    at::Tensor dweights_TE = {};       ///< fp32: of any expert, added to the chosen ones'; undefined: zeros
    at::Tensor probabilities_TE = {};  ///< of route(); for RouterWeights::of_all, and with slopes_E
    at::Tensor slopes_E = {};          ///< of balance(): the gradient of every counted token's probabilities; or none
    at::Tensor counted_T = {};         ///< of RouterLoad; undefined: all count
    at::Tensor dlogits_TE;             ///< fp32, written; may be probabilities_TE
};
void route_backward(Context& ctx, const RouteBackward& args);

struct ExpertOrder {
    at::Tensor ends_E;     ///< int32: where each expert's rows end; they begin where those of the one before it end
    at::Tensor tokens_n;   ///< int32: the token of each row
    at::Tensor places_Tk;  ///< int32: the row of each choice
};
/// From ids_Tk (int32, in 0 .. E - 1: CheckError on the CPU, undefined on CUDA) by a stable counting sort; writes
/// `order`. Padding takes part as every token does. On CUDA it uses ctx.workspace, of order_workspace() bytes.
void order_by_expert(Context& ctx, const at::Tensor& ids_Tk, const ExpertOrder& order);
/// 0 on the CPU, and for few rows.
int64_t order_workspace(at::Device device, int64_t rows, int64_t experts);

/// y = residual + sum over the choices of weight · z[place]: fp32, the choices first and in their order, rounded once.
struct Combine {
    at::Tensor z_nD;  ///< compute dtype
    at::Tensor places_Tk, weights_Tk;
    at::Tensor residual_TD = {};  ///< y's dtype; may be y; undefined: zeros
    at::Tensor y_TD;              ///< z's dtype
};
void combine(Context& ctx, const Combine& args);

/// dz[place] = weight · dy[token] and dweight = <z[place], dy[token]>.
struct CombineBackward {
    at::Tensor dy_TD, z_nD;
    at::Tensor places_Tk, weights_Tk;
    at::Tensor dz_nD;        ///< written; may be z
    at::Tensor dweights_Tk;  ///< fp32, written
};
void combine_backward(Context& ctx, const CombineBackward& args);

/// The same where z was not kept, one product earlier: with z = W·act, dact that W gives for dy instead of dz becomes
/// that for dz. dweight = <act[place], dact[place]>, then dact[place] *= weight. A bias of W adds
/// dy·bias_EDᵀ: RouteBackward::dweights_TE.
struct WeighRows {
    at::Tensor act_nF;
    at::Tensor places_Tk, weights_Tk;
    at::Tensor dact_nF;      ///< read and written; act's dtype
    at::Tensor dweights_Tk;  ///< fp32, written
};
void weigh_rows(Context& ctx, const WeighRows& args);

/// Who computes a grouped product on CUDA.
enum class GroupedChoice : uint8_t {
    automatic,  ///< the library where it takes the operands and there are many rows, else our kernel
    kernel,     ///< ours
    library,    ///< CUTLASS in LibTorch; CheckError where it does not take the operands
};

/// out[rows of e] = x[rows of e]·W_eᵀ (+ bias_e), or x·W_e. x, w and out have one dtype (fp32, bf16, f16), their last
/// dimension is contiguous, other strides are free. fp32 sums, rounded once; the library rounds again where there is a
/// bias. Experts may have no rows.
struct GroupedProduct {
    at::Tensor x_nK;
    at::Tensor w_ENK;         ///< [E, K, N] without transpose_w
    at::Tensor ends_E;        ///< of ExpertOrder; its last is n
    at::Tensor out_nN;        ///< aliases nothing
    at::Tensor bias_EN = {};  ///< contiguous, out's dtype; undefined: none
    bool transpose_w = true;  ///< false: x·W_e
    bool accumulate = false;  ///< out += instead
    GroupedChoice choice = GroupedChoice::automatic;
    const char* label = "experts";  ///< its name in a profile
};
void grouped_product(Context& ctx, const GroupedProduct& args);
/// Bytes of device memory outside the plan that the library takes on each stream with products: pointers and tensor
/// maps of the experts, some 100 KiB in the smallest block of LibTorch's allocator. The context keeps them, so that
/// recorded products find them again. A recording is made on a stream of its own. 0 on the CPU, where products work as
/// gemm().
int64_t grouped_library_bytes(at::Device device);

/// out_e += scale · a_eᵀ·b_e over the rows of each expert: gradients of the experts' weights and adapters.
struct GroupedGradient {
    at::Tensor a_nM, b_nN;  ///< one dtype, row strides free
    at::Tensor ends_E;
    at::Tensor out_EMN;  ///< fp32; the last dimension contiguous
    double scale = 1;
    const char* label = "experts dW";
};
void grouped_gradient(Context& ctx, const GroupedGradient& args);

/// Adds a router's choices to sums over layers and micro-batches: sums_2E[0] (fp64) += how often each expert was
/// chosen, sums_2E[1] += its probabilities, both over the counted tokens.
struct RouterLoad {
    at::Tensor ids_Tk, probabilities_TE;
    at::Tensor counted_T = {};  ///< int32, 0: padding; undefined: all tokens count
    at::Tensor sums_2E;         ///< fp64
};
void router_load(Context& ctx, const RouterLoad& args);

/// Load balancing (Fedus et al., "Switch Transformers", 2021; all k choices count, as in transformers): with N counted
/// tokens, loss = coefficient · E · sum over e of sums_2E[0][e] / N · sums_2E[1][e] / N. N is the sum of sums_2E[0] /
/// k.
struct Balance {
    at::Tensor sums_2E;  ///< of router_load()
    int64_t choices = 1;
    double coefficient = 0;
    at::Tensor loss;  ///< fp32 [1], written; 0 where nothing was counted
    at::Tensor
        slopes_E;  ///< fp32, written: the loss's gradient by a token's probabilities, times ctx.scalars' loss_scale
};
void balance(Context& ctx, const Balance& args);

}  // namespace unsloth::ops
