// Numbers as people read them.
#pragma once

#include <cstdint>
#include <iomanip>
#include <sstream>
#include <string>

namespace unsloth::data {

/// 1234567 -> "1,234,567".
inline std::string grouped(int64_t number) {
    std::string text = std::to_string(number);
    for (int64_t at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3)
        text.insert(static_cast<std::size_t>(at), 1, ',');
    return text;
}

/// "12.5 %"; of nothing 0.
inline std::string percent(int64_t part, int64_t whole) {
    std::ostringstream out;
    out << std::fixed << std::setprecision(1)
        << (whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole)) << " %";
    return out.str();
}

}  // namespace unsloth::data
