// The 8-bit "dynamic" data type of Dettmers et al., "8-bit Optimizers via Block-wise Quantization" (2022): a sign, a
// unary decimal exponent and a linear fraction share eight bits. Double-quantised 4-bit weights keep their block maxima
// in the signed map, 8-bit AdamW its first moment in the signed and its second in the unsigned one.
#pragma once

#include <array>

namespace unsloth::spec {

/// The 256 values in ascending order, bit-equal to bitsandbytes' `create_dynamic_map`.
const std::array<float, 256>& dynamic_map_256(bool is_signed);

}  // namespace unsloth::spec
