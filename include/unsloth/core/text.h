// Small texts: white space at ends, numbers, and sizes in bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace unsloth {

/// Without the white space (of ASCII) at both ends.
std::string trimmed(std::string_view text);

/// For messages: "0 B", "1.5 KiB", "45.0 MiB", "3.0 TiB".
std::string human_size(int64_t bytes);

/// For plans of memory, whose lines are compared: always "45.0 MiB" or "1.25 GiB".
std::string human_bytes(int64_t bytes);

/// "0.0123", "1.5e+03".
std::string three_digits(double value);

}  // namespace unsloth
