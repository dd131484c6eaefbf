// StepOutcome::first_bad_site where it names no place of this process' own passes. C++17: kernels read it, too.
#pragma once

#include <cstdint>

namespace unsloth::spec {

inline constexpr uint32_t bad_gradient_norm = 0xFFFFFFFEu;  ///< every value was finite that was looked at before
inline constexpr uint32_t bad_elsewhere = 0xFFFFFFFDu;      ///< another rank saw one

}  // namespace unsloth::spec
