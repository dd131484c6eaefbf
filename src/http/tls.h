// TLS over bytes in memory, and a certificate that may be replaced while the server runs.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "unsloth/http/server.h"

struct ssl_st;
struct ssl_ctx_st;

namespace unsloth::http {

/// One connection's TLS: encrypted bytes on one side, plain ones on the other.
class TlsSession {
  public:
    explicit TlsSession(ssl_ctx_st* context);
    ~TlsSession();
    TlsSession(const TlsSession&) = delete;
    TlsSession& operator=(const TlsSession&) = delete;

    /// Takes what arrived; appends what it means to `plain` and what must be sent to `wire`. False: the connection is
    /// of no more use (an alert may be in `wire`).
    bool receive(std::string_view arrived, std::string& plain, std::string& wire);
    bool send(std::string_view plain, std::string& wire);
    /// Says that no more follows.
    void shut_down(std::string& wire);
    bool established() const;
    /// The client asked for HTTP/2 and got it.
    bool http2() const;

  private:
    void collect(std::string& wire);
    ssl_st* ssl_;
};

/// The certificate's files and what OpenSSL made of them.
class TlsFiles {
  public:
    /// Input Error when a file is unusable.
    explicit TlsFiles(const ServerOptions& options);
    /// Reads the files again if they changed. Keeps the earlier ones, with a warning, where they are unusable.
    void refresh();
    std::unique_ptr<TlsSession> session() const { return std::make_unique<TlsSession>(context_.get()); }

  private:
    std::string stamp() const;
    std::shared_ptr<ssl_ctx_st> load() const;

    const std::filesystem::path certificate_, key_, client_ca_;
    std::string stamp_;
    std::shared_ptr<ssl_ctx_st> context_;
};

}  // namespace unsloth::http
