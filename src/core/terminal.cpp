#include "unsloth/core/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "unsloth/core/whole_number.h"

namespace unsloth {
namespace {

/// 0: the variable says none.
int size_in(const char* variable) {
    constexpr int64_t most = 10'000;
    const char* const text = std::getenv(variable);
    const auto size = text != nullptr ? whole_number(text) : std::nullopt;
    return size && *size > 0 ? static_cast<int>(std::min(*size, most)) : 0;
}

/// `own`: the terminal's, 0 where there is none.
int smaller(int own, int wanted, int usual) {
    if (own > 0 && wanted > 0) return std::min(own, wanted);
    return own > 0 ? own : wanted > 0 ? wanted : usual;
}

}  // namespace

bool takes_escapes(int descriptor) {
    const char* const kind = std::getenv("TERM");
    return ::isatty(descriptor) != 0 && (kind == nullptr || kind != std::string_view("dumb"));
}

bool takes_colours(int descriptor) {
    const char* const refused = std::getenv("NO_COLOR");
    return takes_escapes(descriptor) && (refused == nullptr || *refused == '\0');
}

TextSize text_size(int descriptor) {
    winsize own{};
    if (::ioctl(descriptor, TIOCGWINSZ, &own) != 0) own = {};
    const TextSize usual;
    return {smaller(own.ws_col, size_in("COLUMNS"), usual.columns), smaller(own.ws_row, size_in("LINES"), usual.rows)};
}

}  // namespace unsloth
