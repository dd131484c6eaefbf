// What HTTP/1.1 and HTTP/2 share: bytes in, exchanges with the handler, bytes out.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "http/exchange.h"

namespace unsloth::http {

using Clock = std::chrono::steady_clock;

/// Output that a connection keeps ready; more is taken from the exchanges once this is sent.
constexpr size_t high_water = size_t{64} << 10;

/// What the connections of a server share. The server's thread alone uses it.
struct Shared {
    ServerOptions options;
    Handler handler;
    std::shared_ptr<Mailbox> mailbox;
    bool draining = false;
    size_t held_bytes = 0;  ///< of requests that have not arrived whole
};

/// A request's share of Shared::held_bytes.
class HeldBytes {
  public:
    explicit HeldBytes(Shared& shared) : shared_(shared) {}
    ~HeldBytes() { set(0); }
    HeldBytes(const HeldBytes&) = delete;
    HeldBytes& operator=(const HeldBytes&) = delete;
    /// False where all of them exceed the limit.
    bool set(size_t bytes) {
        shared_.held_bytes += bytes - std::exchange(mine_, bytes);
        return shared_.held_bytes <= shared_.options.held_bytes;
    }

  private:
    Shared& shared_;
    size_t mine_ = 0;
};
constexpr const char* too_much_held = "too many requests arrive at a time";

/// One connection's protocol.
class Protocol {
  public:
    virtual ~Protocol() = default;
    /// Takes bytes and calls the handler with the requests that they complete. Returns how many it took.
    virtual size_t receive(std::string_view bytes) = 0;
    /// Appends output while `out` is below high_water.
    virtual void fill(std::string& out) = 0;
    /// An exchange's answer has more to send, has ended or is broken.
    virtual void changed(Exchange& exchange) = 0;
    virtual void drain() = 0;
    /// The client sends no more: answers that have not ended are of no use to it.
    virtual void client_left() = 0;
    /// The connection is closed: no exchange remains.
    virtual void close() = 0;
    /// Ends what exceeds its time.
    virtual void check_time(Clock::time_point now) = 0;
    /// Nothing follows what `fill` gave.
    virtual bool finished() const = 0;
    /// The connection must close, whatever waits to be sent.
    virtual bool aborted() const = 0;
};

std::unique_ptr<Protocol> make_http1(Shared& shared, Carrier& carrier, std::string peer);
std::unique_ptr<Protocol> make_http2(Shared& shared, Carrier& carrier, std::string peer);

/// Calls the handler, which may fail: that is answered 500. A server that drains answers 503 itself.
std::shared_ptr<Exchange> start_exchange(Shared& shared, Carrier& carrier, int stream, Request request);
/// An exchange that the server answers itself with an error.
std::shared_ptr<Exchange> refuse_exchange(Shared& shared, Carrier& carrier, int stream, bool head_only, int status,
                                          std::string_view message);
/// The value of a Date field: the present time.
std::string date_now();
/// A field that concerns a connection, which the server sets itself.
bool is_connection_field(std::string_view name);

}  // namespace unsloth::http
