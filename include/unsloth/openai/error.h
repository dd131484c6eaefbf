// Why a request of OpenAI's API is refused, in the form that its clients read.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace unsloth::openai {

/// Becomes {"error": {"message", "type", "param", "code"}} with the HTTP status.
class __attribute__((visibility("default"))) ApiError : public std::runtime_error {
  public:
    /// The type follows from the status, as OpenAI has it. `param` and `code` are null where they are empty.
    ApiError(int status, const std::string& message, std::string param = {}, std::string code = {})
        : std::runtime_error(message), status_(status), param_(std::move(param)), code_(std::move(code)) {}
    ~ApiError() override;
    ApiError(const ApiError&) = default;
    ApiError& operator=(const ApiError&) = default;

    int status() const { return status_; }
    const std::string& param() const { return param_; }
    const std::string& code() const { return code_; }
    /// The object as JSON text.
    std::string body() const;

  private:
    int status_;
    std::string param_, code_;
};

/// 400 for a value that this program understands and does not offer.
ApiError unsupported(const std::string& message, const std::string& param);
/// 400 for a value that is wrong.
ApiError invalid(const std::string& message, const std::string& param);

}  // namespace unsloth::openai
