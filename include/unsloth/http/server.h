#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
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

/// One request, whole: its body has arrived, unless ServerOptions::takes_pieces says otherwise.
struct Request {
    std::string method;
    std::string path;   ///< decoded, without the query
    std::string query;  ///< as sent, without '?'
    Headers headers;
    std::string body;
    std::string peer;  ///< address and port, for the log
};

/// The answer to one request. Copies share the exchange; any thread may call it. The exchange ends with `send` or
/// `end`.
class Response {
  public:
    virtual ~Response() = default;
    /// Sends a whole answer, which may be larger than ServerOptions::buffered_bytes. `trailers`: of HTTP/2, and of a
    /// body that is not empty.
    virtual void send(int status, Headers headers, std::string body, Headers trailers) = 0;
    void send(int status, Headers headers, std::string body) { send(status, std::move(headers), std::move(body), {}); }
    /// Begins a streamed answer.
    virtual void begin(int status, Headers headers) = 0;
    /// Sends a piece of a streamed answer. False once the client has left.
    virtual bool write(std::string_view piece) = 0;
    /// Ends a streamed answer, with trailers (gRPC's status).
    virtual void end(Headers trailers = {}) = 0;
    /// Calls `f` once, on the server's thread, if the client leaves before the end; at once if it has left.
    virtual void on_gone(std::function<void()> f) = 0;
    /// Of a request whose body comes in pieces: calls `f` on the server's thread with each piece that comes from now
    /// on. The last call, perhaps without bytes, says `ends`. Call it before the handler returns.
    virtual void on_body(std::function<void(std::string_view piece, bool ends)> f) = 0;
};

/// Called on the server's thread for each request; must return soon. Work goes to other threads with the response.
using Handler = std::function<void(Request, std::shared_ptr<Response>)>;

/// Where a server listens, its certificate and its limits.
struct ServerOptions {
    std::string host = "127.0.0.1";  ///< an address or a name; its first address counts
    int port = 0;                    ///< 0: any free one, which Server::port tells
    /// PEM files; without a certificate, no TLS. With a client CA, clients must present a certificate of it. Changed
    /// files are read again for new connections; where they cannot be read, the ones before remain in use.
    std::filesystem::path certificate, key, client_ca;
    size_t header_bytes = size_t{64} << 10;   ///< of one request's header, else 431
    size_t body_bytes = size_t{32} << 20;     ///< of one request's body, else 413
    size_t held_bytes = size_t{256} << 20;    ///< of all requests that have not arrived whole, together, else 503
    size_t buffered_bytes = size_t{4} << 20;  ///< of one streamed answer that wait for the client, who is dropped above
    std::chrono::milliseconds header_time{10'000};  ///< for TLS and a request's header to arrive, else 408
    std::chrono::milliseconds body_time{60'000};    ///< for its body to arrive, else 408
    std::chrono::milliseconds idle_time{75'000};    ///< a connection without a request, or that takes no output
    size_t connections = 4096;                      ///< at a time; further ones are answered 503
    size_t streams = 1024;                          ///< HTTP/2 requests of one connection at a time
    /// Asked with a request's header. True: the handler gets the request at once, and its body by Response::on_body.
    /// HTTP/2 alone; null: none.
    std::function<bool(const Request& header)> takes_pieces = nullptr;
};

/// Listens on one port; a thread of its own runs all connections. Errors that it finds itself (400, 408, 413, 431, 503)
/// have OpenAI's form of a body. All methods may be called from any thread but the server's own.
class Server {
  public:
    /// Listens and starts the thread. Usage Error when it cannot listen, input Error when the certificate is unusable.
    Server(ServerOptions options, Handler handler);
    /// stop() at once.
    ~Server();
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    int port() const;
    /// Takes no more connections or requests: HTTP/1.1 is answered 503 with Connection: close, HTTP/2 gets GOAWAY.
    /// Running answers end.
    void drain();
    /// drain(), waits for running answers until `deadline`, then closes what is left (on_gone is called) and returns.
    void stop(std::chrono::steady_clock::time_point deadline);

  private:
    class Loop;
    std::unique_ptr<Loop> loop_;
};

}  // namespace unsloth::http
