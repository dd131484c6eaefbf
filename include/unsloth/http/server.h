#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// An HTTP/1.1 and HTTP/2 server on one listener (RFC 9112, RFC 9113), with TLS where a certificate is given.
namespace unsloth::http {

/// Field names are in lower case.
using Headers = std::vector<std::pair<std::string, std::string>>;

/// One request, whole: its body has arrived.
struct Request
{
    std::string method;
    std::string path;   ///< decoded, without the query
    std::string query;  ///< as sent, without '?'
    Headers headers;
    std::string body;
    std::string peer;  ///< address and port, for the log
};

/// The answer to one request. Copies share the exchange; any thread may call it. The exchange ends with `send` or `end`.
class Response
{
public:
    virtual ~Response() = default;
    /// Sends a whole answer.
    virtual void send(int status, Headers headers, std::string body) = 0;
    /// Begins a streamed answer.
    virtual void begin(int status, Headers headers) = 0;
    /// Sends a piece of a streamed answer. False once the client has left.
    virtual bool write(std::string_view piece) = 0;
    /// Ends a streamed answer, with trailers (gRPC's status).
    virtual void end(Headers trailers = {}) = 0;
    /// Calls `f` once, on the server's thread, if the client leaves before the end; at once if it has left.
    virtual void on_gone(std::function<void()> f) = 0;
};

/// Called on the server's thread for each request; must return soon. Work goes to other threads with the response.
using Handler = std::function<void(Request, std::shared_ptr<Response>)>;

}  // namespace unsloth::http
