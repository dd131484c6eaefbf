// Errors that a user can act on.
//
// A user's error is an `Error`: what was expected, what was found, where (file, key, line) and what to do.
// Its id (unsloth/core/error_id.h) decides the exit code. A broken invariant is a `CheckError` (a bug of ours) and
// carries file:line. Only `main` catches; a library never exits.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "unsloth/core/check.h"
#include "unsloth/core/error_id.h"

namespace unsloth {

class Error : public std::runtime_error {
  public:
    /// `message` says what is wrong and where; `advice` (may be empty) what to do about it.
    Error(ErrorId id, const std::string& message, const std::string& advice = {})
        : std::runtime_error(advice.empty() ? message : message + "\n  " + advice), id_(id) {}
    ErrorId id() const noexcept { return id_; }
    ErrorKind kind() const noexcept { return id_.kind(); }

  private:
    ErrorId id_;
};

/// The words that end a process: "error[data.empty]: rows.jsonl has no rows".
inline std::string error_line(ErrorId id, std::string_view message) {
    return cat("error[", id.name(), "]: ", message);
}

}  // namespace unsloth
