// Which build this is.
#pragma once

#include <string>

namespace unsloth {

/// The linker's identification (bytes) of the program or library that holds the code at an address; empty: it has none.
std::string build_id(const void* code);

}  // namespace unsloth
