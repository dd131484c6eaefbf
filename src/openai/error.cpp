#include "unsloth/openai/error.h"

#include <nlohmann/json.hpp>

namespace unsloth::openai {
namespace {

const char* type_of(int status) {
    switch (status) {
        case 401:
            return "authentication_error";
        case 403:
            return "permission_error";
        case 404:
            return "not_found_error";
        case 409:
            return "conflict_error";
        case 429:
            return "rate_limit_error";
        default:
            return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

}  // namespace

ApiError::~ApiError() = default;

std::string ApiError::body() const {
    using Json = nlohmann::ordered_json;
    const auto text = [](const std::string& value) { return value.empty() ? Json(nullptr) : Json(value); };
    const Json error = {
        {"message", what()}, {"type", type_of(status_)}, {"param", text(param_)}, {"code", text(code_)}};
    return Json{{"error", error}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ApiError unsupported(const std::string& message, const std::string& param) {
    return ApiError(400, message, param, "unsupported");
}

ApiError invalid(const std::string& message, const std::string& param) {
    return ApiError(400, message, param, "invalid_value");
}

}  // namespace unsloth::openai
