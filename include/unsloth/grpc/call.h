// A gRPC call over HTTP/2: the messages of its request, and its answer.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "unsloth/grpc/status.h"
#include "unsloth/http/server.h"

namespace unsloth::grpc {

/// By the content type; its path names the method.
bool is_call(const http::Request& request);

/// The time that the client gives the call; nullopt: any. INVALID_ARGUMENT for a malformed one.
std::optional<std::chrono::microseconds> timeout_of(const http::Request& request);

/// A message with its prefix, as bodies have it.
std::string framed(std::string_view message);

/// Takes a body's bytes as they come and gives its messages.
class MessageReader {
  public:
    void add(std::string_view bytes) { bytes_ += bytes; }
    /// nullopt: none is complete. UNIMPLEMENTED for a compressed one.
    std::optional<std::string> next();
    bool empty() const { return bytes_.empty(); }
    /// Of what is kept: the part of a message that next() waits for.
    std::size_t size() const { return bytes_.size(); }

  private:
    std::string bytes_;
};

/// The one message of a body that is whole. INVALID_ARGUMENT for none, several, or a part of one.
std::string only_message(const http::Request& request);

/// Of one thread at a time.
class Answer {
  public:
    /// `metadata` comes before the first message.
    Answer(std::shared_ptr<http::Response> response, http::Headers metadata)
        : response_(std::move(response)), metadata_(std::move(metadata)) {}

    /// A message of a stream. False once the client has left.
    bool send(std::string_view message);
    /// The whole answer: one message, or several as framed() has them. It may be large.
    void reply(std::string messages);
    void end() { finish(Code::ok, ""); }
    void end(const Status& status) { finish(status.code(), status.what()); }
    http::Response& response() const { return *response_; }

  private:
    http::Headers head() const;
    void finish(Code code, std::string_view message);

    std::shared_ptr<http::Response> response_;
    http::Headers metadata_;
    bool begun_ = false;
};

}  // namespace unsloth::grpc
