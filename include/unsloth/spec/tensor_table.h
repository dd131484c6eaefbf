// The one table of a model's tensors: it drives loading, shape checks, the memory plan and export. A missing tensor and
// an unknown one both stop a load.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "unsloth/spec/model_spec.h"

namespace unsloth::spec {

enum class TensorRole : uint8_t {
    embed_tokens,  ///< [V, D]
    lm_head,       ///< [V, D]; absent when tied
    final_norm,    ///< [D]
    input_norm,    ///< [D], input_layernorm
    post_norm,     ///< [D], post_attention_layernorm
    q_norm,        ///< [d]
    k_norm,        ///< [d]
    linear,        ///< [N, K] of `projection`
    bias,          ///< [N] of `projection`
};

constexpr bool is_norm(TensorRole role) {
    return role == TensorRole::final_norm || role == TensorRole::input_norm || role == TensorRole::post_norm ||
           role == TensorRole::q_norm || role == TensorRole::k_norm;
}

struct TensorRule {
    std::string hf_name;  ///< e.g. model.layers.3.self_attn.q_proj.weight
    TensorRole role;
    LinearId id;  ///< layer -1: not in a layer; the projection is that of a linear or a bias
    std::vector<int64_t> shape;
    bool may_be_quantised = false;  ///< matrices: linears, embeddings and lm_head
};

/// All tensors of a model, layer by layer (embeddings first, then layers, final norm, lm_head unless tied).
std::vector<TensorRule> tensor_table(const ModelSpec& spec);

/// Keys that some checkpoints hold and nobody needs (rotary_emb.inv_freq; lm_head.weight of a tied model).
bool is_ignorable_tensor(const ModelSpec& spec, const std::string& hf_name);

}  // namespace unsloth::spec
