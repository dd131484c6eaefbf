// One client's connection: its socket, TLS, and the protocol it chose. The server's thread alone uses it.
#pragma once

#include <memory>
#include <string>

#include "http/protocol.h"
#include "http/tls.h"
#include "unsloth/core/open_file.h"

namespace unsloth::http {

class Connection : public Carrier {
  public:
    /// `tls` may be null. `epoll` is where the socket is watched, with `this` as its data.
    Connection(Descriptor socket, int epoll, Shared& shared, std::unique_ptr<TlsSession> tls, std::string peer);
    ~Connection() override;
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    /// `events` of epoll_wait.
    void on_events(uint32_t events);
    void changed(Exchange& exchange) override;
    void drain();
    void check_time(Clock::time_point now);
    /// It is closed: only its memory remains.
    bool dead() const { return dead_; }

  private:
    void read_some();
    void take(std::string_view arrived);
    void choose_protocol();
    void pump();
    bool flush();
    void finish_if_done();
    void client_left();
    void watch();
    void die();

    Descriptor socket_;
    const int epoll_;
    Shared& shared_;
    const std::unique_ptr<TlsSession> tls_;
    const std::string peer_;
    std::unique_ptr<Protocol> protocol_;  // null until the first bytes tell which
    std::string in_, out_, wire_;         // plain input, plain output, encrypted output
    uint32_t watched_ = 0;
    Clock::time_point began_ = Clock::now(), sent_ = began_, linger_until_;
    bool left_ = false, lingering_ = false, dead_ = false;
};

}  // namespace unsloth::http
