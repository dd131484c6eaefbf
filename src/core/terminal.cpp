#include "unsloth/core/terminal.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace unsloth {

bool takes_escapes(int descriptor) {
    const char* const kind = std::getenv("TERM");
    return ::isatty(descriptor) != 0 && (kind == nullptr || kind != std::string_view("dumb"));
}

bool takes_colours(int descriptor) {
    const char* const refused = std::getenv("NO_COLOR");
    return takes_escapes(descriptor) && (refused == nullptr || *refused == '\0');
}

}  // namespace unsloth
