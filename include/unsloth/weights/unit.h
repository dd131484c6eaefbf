// The units of a network's parameters: what a pass takes at a time. Their numbers order as a forward pass meets them.
#pragma once

namespace unsloth::weights {

inline constexpr int embedding_unit = 0;
constexpr int layer_unit(int layer) {
    return 1 + layer;
}
/// The head's unit, in a network of `layers` layers.
constexpr int head_unit(int layers) {
    return 1 + layers;
}
/// Of a layer's unit.
constexpr int layer_of_unit(int unit) {
    return unit - 1;
}

}  // namespace unsloth::weights
