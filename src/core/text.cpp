#include "unsloth/core/text.h"

#include <cstddef>
#include <cstdio>
#include <iterator>

namespace unsloth {

std::string trimmed(std::string_view text) {
    constexpr const char* white = " \t\r\n\f\v";
    const std::size_t first = text.find_first_not_of(white);
    if (first == std::string_view::npos) return {};
    return std::string(text.substr(first, text.find_last_not_of(white) - first + 1));
}

std::string human_size(int64_t bytes) {
    constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    auto size = static_cast<double>(bytes);
    std::size_t unit = 0;
    while (size >= 1024 && unit + 1 < std::size(units)) size /= 1024, ++unit;
    char text[32];
    std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", size, units[unit]);
    return text;
}

std::string three_digits(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.3g", value);
    return text;
}

std::string human_bytes(int64_t bytes) {
    char text[32];
    const double mib = static_cast<double>(bytes) / (1 << 20);
    if (mib >= 1024) {
        std::snprintf(text, sizeof text, "%.2f GiB", mib / 1024);
    } else {
        std::snprintf(text, sizeof text, "%.1f MiB", mib);
    }
    return text;
}

}  // namespace unsloth
