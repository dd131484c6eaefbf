// SHA-256 by libcrypto.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace unsloth::serve {

std::array<std::byte, 32> sha256(std::string_view bytes);

}  // namespace unsloth::serve
