// 8-bit weights as bitsandbytes' LLM.int8 has them: codes, and the largest magnitude of each row. C++17: shared by host
// code and kernels. Source: Dettmers et al., "LLM.int8()" (2022).
#pragma once

namespace unsloth::spec {

inline constexpr float int8_inverse_127 = 7.874015718698502e-3F;  ///< bitsandbytes' constant: the float nearest 1 / 127

}  // namespace unsloth::spec
