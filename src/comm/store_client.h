// A rank's connection to the ranks' store.
#pragma once

#include <functional>
#include <mutex>

#include "comm/sockets.h"
#include "comm/wire.h"
#include "unsloth/comm/launch.h"

namespace unsloth::comm {

/// The store does not answer any more, or what answers is not the store.
struct StoreGone : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// Where the store is, and by what it knows a rank.
struct Rendezvous {
    Address address;
    uint32_t rank = 0, size = 1, run = 0;
    std::string secret;
};

/// Safe from several threads, one request at a time. Throws StoreGone.
class StoreClient {
  public:
    /// Connects, and proves who it is; retries until `give_up` where no server listens or the connection is closed.
    StoreClient(const Rendezvous& rendezvous, Clock::time_point give_up);

    /// Called several times a second while a request waits; what it throws ends the request (and, where it was under
    /// way, the connection).
    void while_waiting(std::function<void()> look) { look_ = std::move(look); }
    /// How long nothing at all may come from the store before it counts as gone.
    void set_patience(milliseconds patience) { patience_ = patience; }

    void set(const std::string& key, Bytes value);
    /// The value, once it is there; nothing when it is not after `wait`.
    std::optional<std::vector<uint8_t>> get(const std::string& key, milliseconds wait);
    int64_t add(const std::string& key, int64_t more);
    /// Whether it was there.
    bool remove(const std::string& key);
    /// Writes this rank's heartbeat (cut to longest_sign), and gives those of all.
    std::vector<std::string> signs(const std::string& own);

  private:
    bool shake_hands(Clock::time_point give_up);
    void transfer(std::span<uint8_t> in, Bytes out, milliseconds wait, std::size_t& done);
    void read_all(std::span<uint8_t> bytes, milliseconds wait);
    void write_all(Bytes bytes);
    FrameReader& request(Head head, const std::string& key, Bytes body);
    static int64_t number_in(FrameReader& reply);

    Rendezvous rendezvous_;
    std::mutex one_at_a_time_;
    Socket socket_;
    Seal out_;
    std::optional<FrameReader> in_;
    std::function<void()> look_;
    milliseconds patience_{15000};
    bool broken_ = false;
};

}  // namespace unsloth::comm
