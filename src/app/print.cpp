#include <cerrno>
#include <cstdio>
#include <cstring>

#include "app/commands.h"
#include "unsloth/core/error.h"

namespace unsloth::app {

void print(const std::string& text) {
    const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
    if (!written || std::fflush(stdout) != 0)
        throw runtime_failure(cat("cannot write to standard output: ", std::strerror(errno)));
}

}  // namespace unsloth::app
