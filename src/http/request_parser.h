// A strict, incremental parser of HTTP/1.1 requests (RFC 9112). It depends on its bytes alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "unsloth/http/server.h"

namespace unsloth::http {

/// A request that was refused: the status to answer with, and what was wrong.
struct Refusal {
    int status = 0;  ///< 0: none
    const char* message = "";
};

/// Splits a request target into `path` (percent-decoded) and `query` (as sent). False: it is malformed.
bool split_target(std::string_view target, std::string& path, std::string& query);
/// RFC 9110 token: a method or a field name.
bool is_token(std::string_view text);
/// A field value without control characters; tabs are allowed.
bool is_field_value(std::string_view text);

/// Reads one request. It refuses each ambiguity that lets two programs see different requests: bare CR or LF, folded
/// lines, a space before a colon, two lengths, a length with chunks, codings other than chunked, and bad hosts.
class RequestParser {
  public:
    RequestParser(size_t header_bytes, size_t body_bytes) : header_limit_(header_bytes), body_limit_(body_bytes) {}

    /// Takes bytes up to the end of the request and returns how many. Takes none once `done` or `refused`.
    size_t feed(std::string_view bytes);
    bool started() const { return state_ != State::request_line || head_bytes_ > 0; }
    /// The header is complete: what follows is the body.
    bool head_done() const { return state_ >= State::body; }
    bool done() const { return state_ == State::done; }
    bool refused() const { return refusal_.status != 0; }
    const Refusal& refusal() const { return refusal_; }
    /// The client waits for "100 Continue" before it sends the body.
    bool expects_continue() const { return expects_continue_; }
    /// The client takes further answers on this connection.
    bool keeps_alive() const { return keep_alive_ && !refused(); }
    bool version_1_0() const { return minor_version_ == 0; }
    bool is_head() const { return request_.method == "HEAD"; }
    /// The request; once, when `done`.
    Request take() { return std::move(request_); }

  private:
    enum class State { request_line, fields, body, chunk_size, chunk_data, chunk_end, trailers, done };

    size_t feed_line(std::string_view bytes);
    size_t feed_body(std::string_view bytes);
    void take_line(std::string_view line);
    void request_line(std::string_view line);
    void field(std::string_view line);
    void end_of_fields();
    void connection_options(std::string_view value);
    void chunk_size(std::string_view line);
    void refuse(int status, const char* message) { refusal_ = {status, message}; }

    size_t header_limit_, body_limit_;
    State state_ = State::request_line;
    std::string line_;       // the part of a line that has arrived
    size_t head_bytes_ = 0;  // bytes of lines so far, those of chunk sizes and trailers included
    uint64_t remaining_ = 0;
    Request request_;
    Refusal refusal_;
    int minor_version_ = 1;
    int hosts_ = 0;
    bool has_length_ = false, chunked_ = false, expects_continue_ = false;
    bool keep_alive_ = true;
};

}  // namespace unsloth::http
