#include "unsloth/grpc/call.h"

#include <algorithm>
#include <charconv>

#include "unsloth/core/error.h"

namespace unsloth::grpc {
namespace {

constexpr std::size_t prefix_bytes = 5;

/// As the header `grpc-message` must have it.
std::string percent_encoded(std::string_view text) {
    static constexpr char digits[] = "0123456789ABCDEF";
    std::string out;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte < 0x7f && c != '%')
            out += c;
        else
            out += {'%', digits[byte >> 4U], digits[byte & 15U]};
    }
    return out;
}

const std::string* header_named(const http::Request& request, std::string_view name) {
    for (const auto& [key, value] : request.headers)
        if (key == name) return &value;
    return nullptr;
}

}  // namespace

Status::~Status() = default;

Code code_of(int http_status) {
    switch (http_status) {
        case 400:
            return Code::invalid_argument;
        case 401:
            return Code::unauthenticated;
        case 403:
            return Code::permission_denied;
        case 404:
            return Code::not_found;
        case 409:
            return Code::failed_precondition;
        case 413:
        case 429:
            return Code::resource_exhausted;
        case 499:
            return Code::cancelled;
        case 503:
            return Code::unavailable;
        case 504:
            return Code::deadline_exceeded;
        default:
            return http_status >= 500 ? Code::internal : Code::unknown;
    }
}

bool is_call(const http::Request& request) {
    constexpr std::string_view type = "application/grpc";
    const std::string* const given = header_named(request, "content-type");
    if (given == nullptr || !given->starts_with(type)) return false;
    const std::string_view rest = std::string_view(*given).substr(type.size());
    return rest.empty() || rest.front() == ';' || rest == "+proto" || rest.starts_with("+proto;");
}

std::optional<std::chrono::microseconds> timeout_of(const http::Request& request) {
    const std::string* const given = header_named(request, "grpc-timeout");
    if (given == nullptr) return std::nullopt;
    constexpr std::size_t most_digits = 8;
    int64_t count = 0;
    const char* const last = given->data() + given->size() - (given->empty() ? 0 : 1);
    const auto [end, failed] = std::from_chars(given->data(), last, count);
    const auto in = [&](auto unit) { return std::chrono::duration_cast<std::chrono::microseconds>(unit * count); };
    if (failed == std::errc() && end == last && given->size() <= most_digits + 1 && count >= 0) switch (*last) {
            case 'H':
                return in(std::chrono::hours(1));
            case 'M':
                return in(std::chrono::minutes(1));
            case 'S':
                return in(std::chrono::seconds(1));
            case 'm':
                return in(std::chrono::milliseconds(1));
            case 'u':
                return in(std::chrono::microseconds(1));
            case 'n':
                return in(std::chrono::nanoseconds(1));
            default:
                break;
        }
    throw Status(Code::invalid_argument, "The header 'grpc-timeout' is malformed.");
}

std::string framed(std::string_view message) {
    std::string out(prefix_bytes, '\0');  // not compressed
    for (std::size_t i = 1; i < prefix_bytes; ++i)
        out[i] = static_cast<char>(message.size() >> (8 * (prefix_bytes - 1 - i)));
    return out += message;
}

std::optional<std::string> MessageReader::next() {
    if (bytes_.size() < prefix_bytes) return std::nullopt;
    if (bytes_[0] != 0) throw Status(Code::unimplemented, "Compressed messages are not supported.");
    std::size_t size = 0;
    for (std::size_t i = 1; i < prefix_bytes; ++i) size = size << 8U | static_cast<unsigned char>(bytes_[i]);
    if (bytes_.size() - prefix_bytes < size) return std::nullopt;
    std::string message = bytes_.substr(prefix_bytes, size);
    bytes_.erase(0, prefix_bytes + size);
    return message;
}

std::string only_message(const http::Request& request) {
    MessageReader reader;
    reader.add(request.body);
    std::optional<std::string> message = reader.next();
    if (!message || !reader.empty())
        throw Status(Code::invalid_argument, "The request must be one message, and it must be whole.");
    return std::move(*message);
}

bool Answer::send(std::string_view message) {
    if (!std::exchange(begun_, true)) response_->begin(200, head());
    return response_->write(framed(message));
}

void Answer::reply(std::string messages) {
    response_->send(200, head(), std::move(messages), {{"grpc-status", "0"}});
}

http::Headers Answer::head() const {
    http::Headers headers{{"content-type", "application/grpc"}};
    headers.insert(headers.end(), metadata_.begin(), metadata_.end());
    return headers;
}

void Answer::finish(Code code, std::string_view message) {
    http::Headers trailers{{"grpc-status", std::to_string(static_cast<int>(code))}};
    if (!message.empty()) trailers.emplace_back("grpc-message", percent_encoded(message));
    if (begun_) return response_->end(std::move(trailers));
    http::Headers headers = head();
    headers.emplace_back("grpc-accept-encoding", "identity");
    headers.insert(headers.end(), trailers.begin(), trailers.end());
    response_->send(200, std::move(headers), "");
}

}  // namespace unsloth::grpc
