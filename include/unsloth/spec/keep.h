// What a layer keeps from its forward for its backward pass (training.gradient_checkpointing).
#pragma once

#include <string>

namespace unsloth::spec {

/// What is kept of a layer. Norm outputs and the MLP's activation are always made again: they cost a pass over memory,
/// not a product.
enum class Keep {
    everything,  ///< `none`: no product is recomputed
    but_mlp,     ///< `mlp`: all but gate and up (57 of the 93 KB a token of Llama 8B)
    attention,   ///< `attention`: the layer's input and the attention's output, so that attention is never recomputed
    input,       ///< `full`: only the layer's input
};

/// Where what is kept lies: beside the weights, or in pinned host memory, moved while other layers compute.
struct Checkpointing {
    Keep keep = Keep::everything;
    bool offload = false;
    bool operator==(const Checkpointing&) const = default;
};

/// Parts of a layer's forward: all of them, or those that a backward pass runs again.
struct LayerSteps {
    bool qkv = true, attention = true, mid = true, gate_up = true, down = true;
};
constexpr LayerSteps recompute_of(Keep keep) {
    switch (keep) {
        case Keep::everything:
            return {false, false, false, false, false};
        case Keep::but_mlp:
            return {false, false, false, true, false};
        case Keep::attention:
            return {true, false, true, true, false};
        case Keep::input:
            return {true, true, true, true, false};
    }
    return {};
}

/// "none", "mlp", "attention", "full", with "+offload" where it applies: the option's words.
inline std::string name_of(const Checkpointing& c) {
    const char* const names[] = {"none", "mlp", "attention", "full"};
    return std::string(names[static_cast<int>(c.keep)]) + (c.offload ? "+offload" : "");
}

}  // namespace unsloth::spec
