// What the gate of an MLP goes through.
#pragma once

#include <cstdint>

namespace unsloth::spec {

enum class GateActivation : uint8_t {
    silu,
    gelu_tanh,  ///< Hendrycks & Gimpel's approximation of GELU by tanh (arXiv 1606.08415)
};

}  // namespace unsloth::spec
