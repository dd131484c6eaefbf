// How a gRPC call ends.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace unsloth::grpc {

enum class Code : uint8_t {
    ok = 0,
    cancelled = 1,
    unknown = 2,
    invalid_argument = 3,
    deadline_exceeded = 4,
    not_found = 5,
    permission_denied = 7,
    resource_exhausted = 8,
    failed_precondition = 9,
    unimplemented = 12,
    internal = 13,
    unavailable = 14,
    unauthenticated = 16,
};

/// Ends a call; what() is the message for the client.
class __attribute__((visibility("default"))) Status : public std::runtime_error {
  public:
    Status(Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
    ~Status() override;
    Status(const Status&) = default;
    Status& operator=(const Status&) = default;
    Code code() const { return code_; }

  private:
    Code code_;
};

/// The code that says to a gRPC client what an HTTP status says to others.
Code code_of(int http_status);

}  // namespace unsloth::grpc
