// Errors that a user can act on, and checks of our own invariants.
//
// A user's mistake is an `Error`: what was expected, what was found, where (file, key, line) and what to do.
// Its kind decides the exit code. A broken invariant is a `CheckError` (a bug of ours) and carries file:line.
// Only `main` catches; a library never exits.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace unsloth {

/// The exit code of the process that ends with such an error.
enum class ErrorKind : int {
    usage = 2,    ///< command line or configuration
    input = 3,    ///< model, data or tokenizer files
    runtime = 4,  ///< while running: no memory, no space, a device's failure, a non-finite loss
};

class Error : public std::runtime_error {
  public:
    /// `message` says what is wrong and where; `advice` (may be empty) what to do about it.
    Error(ErrorKind kind, std::string message, std::string advice = {})
        : std::runtime_error(advice.empty() ? message : message + "\n  " + advice), kind_(kind) {}
    ErrorKind kind() const noexcept { return kind_; }

  private:
    ErrorKind kind_;
};

/// A broken invariant: a bug of this program, never a user's mistake.
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

inline Error usage_error(std::string message, std::string advice = {}) {
    return Error(ErrorKind::usage, std::move(message), std::move(advice));
}
inline Error input_error(std::string message, std::string advice = {}) {
    return Error(ErrorKind::input, std::move(message), std::move(advice));
}
inline Error runtime_failure(std::string message, std::string advice = {}) {
    return Error(ErrorKind::runtime, std::move(message), std::move(advice));
}

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& detail);

}  // namespace unsloth

/// UNSLOTH_CHECK(condition, "detail ", value): throws CheckError when the condition is false.
#define UNSLOTH_CHECK(condition, ...)                                                             \
    do {                                                                                          \
        if (!(condition)) [[unlikely]]                                                            \
            ::unsloth::check_failed(__FILE__, __LINE__, #condition, ::unsloth::cat(__VA_ARGS__)); \
    } while (false)
