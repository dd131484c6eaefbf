// The one table of a model's tensors: it drives loading, shape checks, the memory plan and export. A missing tensor and
// an unknown one both stop a load.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "unsloth/spec/model_spec.h"

namespace unsloth::spec {

enum class TensorRole : uint8_t {
    embed_tokens,        ///< [V, D]
    lm_head,             ///< [V, D]; absent when tied
    final_norm,          ///< [D]
    input_norm,          ///< [D], of what attention reads
    post_norm,           ///< [D], of what the MLP reads
    attention_out_norm,  ///< [D], of what attention adds to the residual stream
    mlp_out_norm,        ///< [D], of what the MLP adds to it
    q_norm,              ///< [d], of all heads [H d]
    k_norm,              ///< [d], of all heads [K d]
    linear,              ///< [N, K] of `projection`
    bias,                ///< [N] of `projection`
    router,              ///< [E, D], which gives experts their tokens: 16/32-bit, and computed with so
    router_bias,         ///< [E], of its logits
    sinks,               ///< [H], logits that take part in attention's softmax without a value
    attention_gate,      ///< [1], of a layer that crosses: what attention adds is multiplied by its tanh
    mlp_gate,            ///< [1], the same of the MLP
    delta_conv,          ///< [C, 1, taps], of a gated delta net's convolution
    delta_a_log,         ///< [H], the logarithm of the pace at which a value head forgets
    delta_dt_bias,       ///< [H], added to what a token says of that
    delta_norm,          ///< [v], of each value head's output
};

/// Vectors that are held and computed with in fp32.
constexpr bool is_vector(TensorRole role) {
    return role != TensorRole::embed_tokens && role != TensorRole::lm_head && role != TensorRole::linear &&
           role != TensorRole::bias && role != TensorRole::router;
}
constexpr bool is_norm(TensorRole role) {
    return is_vector(role) && role != TensorRole::router_bias && role != TensorRole::sinks &&
           role != TensorRole::attention_gate && role != TensorRole::mlp_gate && role < TensorRole::delta_conv;
}

struct TensorRule {
    std::string hf_name;  ///< e.g. model.layers.3.self_attn.q_proj.weight
    TensorRole role;
    LinearId id;  ///< layer -1: not in a layer; projection and expert are those of a linear or a bias
    std::vector<int64_t> shape;
    bool may_be_quantised = false;  ///< matrices: linears, embeddings and lm_head
    float offset = 0;               ///< the model computes with the stored values and this (ModelSpec::norm_offset)
};

/// "input_layernorm", …: what a layer's norm of the residual stream or of what is added to it is called; empty: the
/// model has none there.
std::string_view layer_norm_name(const ModelSpec& spec, TensorRole role);

/// All tensors of a model, layer by layer (embeddings first, then layers, final norm, lm_head unless tied).
std::vector<TensorRule> tensor_table(const ModelSpec& spec);

/// Unneeded keys that some checkpoints hold (rotary_emb.inv_freq; lm_head.weight of a tied model).
bool is_ignorable_tensor(const ModelSpec& spec, const std::string& hf_name);
/// Tensors of the model that this one is a part of: no pass reads them, and a merged model has them as they are.
bool is_of_another_part(const ModelSpec& spec, const std::string& hf_name);

}  // namespace unsloth::spec
