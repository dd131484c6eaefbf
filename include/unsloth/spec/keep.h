// What a layer keeps from its forward for its backward pass (training.gradient_checkpointing).
#pragma once

namespace unsloth::spec {

/// What is kept of a layer. Norm outputs and the MLP's activation are always recomputed: they cost a pass over memory,
/// not a GEMM.
enum class Keep {
    everything,  ///< `none`: no product is recomputed
    but_mlp,     ///< `mlp`: all but gate and up (57 of the 93 KB a token of Llama 8B)
    attention,   ///< `attention`: the layer's input and the attention's output, so that attention is never recomputed
    input,       ///< `full`: only the layer's input
};

/// Parts of a layer's forward: all of them, or those that a backward pass runs again.
struct LayerSteps {
    bool qkv = true, attention = true, mid = true, gate_up = true, down = true;
    bool routed = false;  ///< which experts each token passes is known already
};
constexpr LayerSteps recompute_of(Keep keep) {
    switch (keep) {
        case Keep::everything:
            return {false, false, false, false, false, true};
        case Keep::but_mlp:
            return {false, false, false, true, false, true};
        case Keep::attention:
            return {true, false, true, true, false, true};
        case Keep::input:
            return {true, true, true, true, false, true};
    }
    return {};
}

}  // namespace unsloth::spec
