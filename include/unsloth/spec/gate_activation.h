// What the gate of an MLP goes through.
#pragma once

#include <cstdint>

namespace unsloth::spec {

enum class GateActivation : uint8_t {
    silu,
    gelu_tanh,  ///< Hendrycks & Gimpel's approximation of GELU by tanh (arXiv 1606.08415)
    /// gpt-oss: silu(1.702 gate) / 1.702 · (up + 1), the gate at most a limit and up within it on both sides
    clamped_silu,
};
inline constexpr float default_gate_limit = 7.F;

}  // namespace unsloth::spec
