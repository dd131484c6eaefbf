// Checks of our own invariants, and cat(). C++17: the kernels include it.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace unsloth {

/// A broken invariant: a bug of this program, never a user's error.
class CheckError : public std::logic_error {
  public:
    using std::logic_error::logic_error;
};

/// Joins anything that streams into one string: cat("layer ", 3, ": ", x).
template <class... Args>
std::string cat(const Args&... args) {
    std::ostringstream out;
    (out << ... << args);
    return std::move(out).str();
}

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& detail);

}  // namespace unsloth

/// UNSLOTH_CHECK(condition, "detail ", value): throws CheckError when the condition is false.
#define UNSLOTH_CHECK(condition, ...)                                                             \
    do {                                                                                          \
        if (!(condition)) [[unlikely]]                                                            \
            ::unsloth::check_failed(__FILE__, __LINE__, #condition, ::unsloth::cat(__VA_ARGS__)); \
    } while (false)
