// The store at which the ranks of a run meet, hosted by rank 0: keys and values, and every rank's heartbeat.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <thread>

#include "comm/sockets.h"
#include "comm/wire.h"

namespace unsloth::comm {

/// One thread, which looks up no names. A peer that does not prove in `handshake_time` that it is a rank of this run
/// (that it knows the secret, where there is one) is dropped, and of those that have not yet, the oldest when there are
/// more than `most_unauthenticated`; until then each has the memory of a handshake. A rank that does not read its
/// replies is not read from. Only a rank itself can write its heartbeat.
class StoreServer {
  public:
    struct Settings {
        std::string secret;  ///< empty: none
        int size = 1;        ///< ranks
        int run = 0;         ///< Hello::run
        bool seals = false;  ///< frames carry MACs
        milliseconds handshake_time{5000};
    };
    static constexpr std::size_t most_unauthenticated = 64, most_connections_of_a_rank = 8;

    StoreServer(Socket listening, Settings settings);
    /// Connections are closed.
    ~StoreServer();
    StoreServer(const StoreServer&) = delete;
    StoreServer& operator=(const StoreServer&) = delete;

    int port() const { return port_; }
    /// Whether any rank but the one that hosts the store has a connection.
    bool others_connected() const { return others_connected_; }

  private:
    /// A connection: an unauthenticated peer's (`hello`, `proof`) or a rank's.
    struct Peer {
        Socket socket;
        enum class Stage { hello, proof, rank, gone } stage = Stage::hello;
        Clock::time_point since = Clock::now();
        Hello hello{};
        Welcome welcome{};
        Digest proof{};
        std::size_t got = 0, sent = 0;  ///< of the handshake's message
        Seal seal;                      ///< of what goes out
        std::optional<FrameReader> reader;
        std::optional<FrameWriter> writer;
        std::optional<Clock::time_point> waits_until;  ///< for the key that it asked for
    };

    void serve();
    bool turn();
    int milliseconds_to_next() const;
    void accept_all();
    void make_room();
    void step(Peer& peer, short events);
    void shake_hands(Peer& peer);
    void admit(Peer& peer);
    void read(Peer& peer);
    void write(Peer& peer);
    void handle(Peer& peer);
    void reply(Peer& peer, Op op, Value value);
    int64_t add(const std::string& key, int64_t more);
    void reply_number(Peer& peer, int64_t number);
    Value all_signs() const;
    void wake_those_that_wait_for(const std::string& key);
    void look_at_deadlines();

    Socket listening_, wake_;
    Settings settings_;
    int port_;
    std::list<Peer> peers_;
    std::map<std::string, Value> values_;
    std::vector<std::vector<uint8_t>> signs_;
    std::optional<Clock::time_point> deaf_until_;  ///< the process has no descriptor left for another connection
    std::atomic<bool> others_connected_{false};
    std::thread thread_;
};

}  // namespace unsloth::comm
