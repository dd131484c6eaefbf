// The version of this program; a test holds it against CMakeLists.txt.
#pragma once

namespace unsloth {

inline constexpr const char* version = "0.1.0";

}  // namespace unsloth
