#include "http/request_parser.h"

#include <algorithm>

namespace unsloth::http {
namespace {

constexpr size_t most_fields = 256;

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
bool is_token_char(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c != '\0' && std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos);
}
int hex_digit(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}
std::string lower_case(std::string_view text) {
    std::string out(text);
    for (char& c : out)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return out;
}
std::string_view trimmed(std::string_view text) {
    const auto first = text.find_first_not_of(" \t");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}
/// A host, a port after it where there is one; what could be read as another part of an address is no host.
bool is_host(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) {
        return c > ' ' && c < 0x7f && std::string_view("/?#@\\,\"<>").find(c) == std::string_view::npos;
    });
}

}  // namespace

bool is_token(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char);
}

bool is_field_value(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return (byte >= 0x20 && byte != 0x7f) || c == '\t';
    });
}

bool split_target(std::string_view target, std::string& path, std::string& query) {
    for (char c : target)
        if (c <= ' ' || c >= 0x7f || c == '#') return false;  // char is signed: bytes above 0x7f are below ' '
    const auto question = target.find('?');
    const std::string_view encoded = target.substr(0, question);
    query = question == std::string_view::npos ? "" : std::string(target.substr(question + 1));
    if (encoded.empty() || (encoded[0] != '/' && encoded != "*")) return false;
    path.clear();
    for (size_t i = 0; i < encoded.size(); ++i) {
        if (encoded[i] != '%') {
            path += encoded[i];
            continue;
        }
        const int high = i + 2 < encoded.size() ? hex_digit(encoded[i + 1]) : -1;
        const int low = i + 2 < encoded.size() ? hex_digit(encoded[i + 2]) : -1;
        if (high < 0 || low < 0 || (high == 0 && low == 0)) return false;
        path += static_cast<char>(high * 16 + low);
        i += 2;
    }
    return true;
}

size_t RequestParser::feed(std::string_view bytes) {
    size_t used = 0;
    while (used < bytes.size() && !done() && !refused()) {
        const auto rest = bytes.substr(used);
        used += state_ == State::body || state_ == State::chunk_data ? feed_body(rest) : feed_line(rest);
    }
    return used;
}

size_t RequestParser::feed_line(std::string_view bytes) {
    const auto end = bytes.find('\n');
    const size_t count = end == std::string_view::npos ? bytes.size() : end + 1;
    head_bytes_ += count;
    if (head_bytes_ > header_limit_) {
        refuse(431, "the header is too large");
        return count;
    }
    line_.append(bytes.substr(0, count));
    // A CR may only precede the LF that ends the line.
    const auto cr = line_.find('\r', line_.size() > count ? line_.size() - count - 1 : 0);
    const bool complete = end != std::string_view::npos;
    if ((cr != std::string::npos && cr + (complete ? 2 : 1) != line_.size()) || (complete && cr == std::string::npos)) {
        refuse(400, "a line must end with CR LF, and contain neither");
        return count;
    }
    if (!complete) return count;
    line_.resize(line_.size() - 2);
    const std::string line = std::move(line_);
    line_.clear();
    take_line(line);
    return count;
}

size_t RequestParser::feed_body(std::string_view bytes) {
    const size_t count = static_cast<size_t>(std::min<uint64_t>(remaining_, bytes.size()));
    request_.body.append(bytes.substr(0, count));
    remaining_ -= count;
    if (remaining_ == 0) state_ = chunked_ ? State::chunk_end : State::done;
    return count;
}

void RequestParser::take_line(std::string_view line) {
    switch (state_) {
        case State::request_line:
            // One empty line may precede a request (RFC 9112, 2.2); the header's limit counts it.
            if (!line.empty() || head_bytes_ > 2) request_line(line);
            return;
        case State::fields:
            return line.empty() ? end_of_fields() : field(line);
        case State::chunk_size:
            return chunk_size(line);
        case State::chunk_end:
            if (!line.empty()) return refuse(400, "a chunk is longer than its size");
            state_ = State::chunk_size;
            return;
        case State::trailers:
            if (line.empty())
                state_ = State::done;
            else if (const auto colon = line.find(':'); colon == std::string_view::npos ||
                                                        !is_token(line.substr(0, colon)) ||
                                                        !is_field_value(line.substr(colon + 1)))
                refuse(400, "a trailer is malformed");
            return;
        case State::body:
        case State::chunk_data:
        case State::done:
            return;
    }
}

void RequestParser::request_line(std::string_view line) {
    const auto first = line.find(' ');
    const auto last = line.rfind(' ');
    if (first == std::string_view::npos || first == last || !is_token(line.substr(0, first)))
        return refuse(400, "the request line is malformed");
    const std::string_view version = line.substr(last + 1);
    std::string_view target = line.substr(first + 1, last - first - 1);
    if (version != "HTTP/1.1" && version != "HTTP/1.0") {
        const bool other = version.size() == 8 && version.starts_with("HTTP/") && is_digit(version[5]) &&
                           version[6] == '.' && is_digit(version[7]);
        return refuse(other ? 505 : 400, "the version must be HTTP/1.1 or HTTP/1.0");
    }
    minor_version_ = version.back() - '0';
    keep_alive_ = minor_version_ == 1;
    request_.method = line.substr(0, first);
    if (request_.method == "CONNECT") return refuse(501, "this server is no proxy");
    // RFC 9112, 3.2.2: a server accepts the absolute form, too.
    if (const auto scheme = target.find("://"); scheme != std::string_view::npos && target[0] != '/') {
        const std::string name = lower_case(target.substr(0, scheme));
        const auto slash = target.find_first_of("/?", scheme + 3);
        const auto host = target.substr(scheme + 3, slash == std::string_view::npos ? slash : slash - scheme - 3);
        if ((name != "http" && name != "https") || host.empty() || !is_host(host))
            return refuse(400, "the request target is malformed");
        target = slash == std::string_view::npos ? "/" : target.substr(slash);
    }
    if (!split_target(target, request_.path, request_.query) || (request_.path == "*" && request_.method != "OPTIONS"))
        return refuse(400, "the request target is malformed");
    state_ = State::fields;
}

void RequestParser::field(std::string_view line) {
    const auto colon = line.find(':');
    if (colon == std::string_view::npos || !is_token(line.substr(0, colon)))
        return refuse(400, "a header field is malformed");
    std::string name = lower_case(line.substr(0, colon));
    const std::string_view value = trimmed(line.substr(colon + 1));
    if (!is_field_value(value)) return refuse(400, "a header field's value has a control character");
    if (request_.headers.size() == most_fields) return refuse(431, "there are too many header fields");
    if (name == "content-length") {
        if (has_length_) return refuse(400, "there are two Content-Length fields");
        has_length_ = true;
        if (value.empty() || value.size() > 19 || !std::all_of(value.begin(), value.end(), is_digit))
            return refuse(400, "Content-Length must be one whole number");
        remaining_ = 0;
        for (char c : value) remaining_ = remaining_ * 10 + static_cast<uint64_t>(c - '0');
    } else if (name == "transfer-encoding") {
        if (chunked_) return refuse(400, "there are two Transfer-Encoding fields");
        if (minor_version_ == 0) return refuse(400, "HTTP/1.0 has no Transfer-Encoding");
        if (lower_case(value) != "chunked") return refuse(501, "the only Transfer-Encoding is chunked");
        chunked_ = true;
    } else if (name == "host") {
        if (++hosts_ > 1 || !is_host(value)) return refuse(400, "there must be one valid Host field");
    } else if (name == "expect") {
        if (lower_case(value) != "100-continue") return refuse(417, "the only Expect is 100-continue");
        expects_continue_ = minor_version_ == 1;
    } else if (name == "connection") {
        connection_options(value);
    }
    request_.headers.emplace_back(std::move(name), value);
}

void RequestParser::connection_options(std::string_view value) {
    while (!value.empty()) {
        const auto comma = value.find(',');
        const std::string option = lower_case(trimmed(value.substr(0, comma)));
        if (option == "close")
            keep_alive_ = false;
        else if (option == "keep-alive" && minor_version_ == 0)
            keep_alive_ = true;
        value = comma == std::string_view::npos ? std::string_view() : value.substr(comma + 1);
    }
}

void RequestParser::end_of_fields() {
    if (chunked_ && has_length_) return refuse(400, "a request has either a Content-Length or a Transfer-Encoding");
    if (hosts_ == 0 && minor_version_ == 1) return refuse(400, "there must be one valid Host field");
    if (remaining_ > body_limit_) return refuse(413, "the body is too large");
    if (chunked_)
        state_ = State::chunk_size;
    else
        state_ = remaining_ > 0 ? State::body : State::done;
    if (state_ == State::done) expects_continue_ = false;
}

void RequestParser::chunk_size(std::string_view line) {
    const std::string_view digits = line.substr(0, line.find(';'));
    if (digits.empty() || digits.size() > 15 || !is_field_value(line))
        return refuse(400, "a chunk's size is malformed");
    remaining_ = 0;
    for (char c : digits) {
        if (hex_digit(c) < 0) return refuse(400, "a chunk's size is malformed");
        remaining_ = remaining_ * 16 + static_cast<uint64_t>(hex_digit(c));
    }
    if (remaining_ > body_limit_ - request_.body.size()) return refuse(413, "the body is too large");
    // Lines of chunk sizes count only where they are more than the data: long bodies may have many.
    head_bytes_ -= std::min<size_t>(head_bytes_, static_cast<size_t>(std::min<uint64_t>(remaining_, line.size() + 4)));
    state_ = remaining_ > 0 ? State::chunk_data : State::trailers;
}

}  // namespace unsloth::http
