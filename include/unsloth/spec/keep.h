// What a layer keeps from its forward for its backward pass (training.gradient_checkpointing).
#pragma once

namespace unsloth {

/// The one enum of recompute policies; forward and recompute are the same steps under it.
enum class Keep {
    everything,  ///< `none`: nothing is recomputed but norm outputs and the activation
    input,       ///< `full`: only the layer's input; the layer's forward runs again in the backward pass
};

}  // namespace unsloth
