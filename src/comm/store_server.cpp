#include "comm/store_server.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"

namespace unsloth::comm {
namespace {

/// How many bytes went; 0: not now. Garbled when the connection is gone.
std::size_t receive(const Socket& socket, std::span<uint8_t> room) {
    const ssize_t got = ::recv(socket.fd(), room.data(), room.size(), 0);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    throw Garbled(got == 0 ? "closed" : std::strerror(errno));
}
std::size_t send(const Socket& socket, Bytes bytes) {
    const ssize_t sent = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno == EAGAIN || errno == EINTR) return 0;
    throw Garbled(std::strerror(errno));
}

}  // namespace

StoreServer::StoreServer(Socket listening, Settings settings)
    : listening_(std::move(listening)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      settings_(std::move(settings)),
      port_(port_of(own_address(listening_))),
      signs_(static_cast<std::size_t>(settings_.size)) {
    if (!wake_.open()) throw Error("process.system-call", std::strerror(errno));
    thread_ = std::thread([this] { serve(); });
}

StoreServer::~StoreServer() {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_.fd(), &one, sizeof one);
    thread_.join();
}

void StoreServer::serve() {
    ::prctl(PR_SET_NAME, "ranks' store");
    while (turn()) {
    }
    peers_.clear();
}

/// Waits for something to do, and does it; false: the server ends.
bool StoreServer::turn() {
    std::vector<pollfd> waits{{wake_.fd(), POLLIN, 0}, {deaf_until_ ? -1 : listening_.fd(), POLLIN, 0}};
    for (const Peer& peer : peers_) {
        const bool writes = peer.stage == Peer::Stage::rank ? peer.writer.has_value() : peer.sent < sizeof(Welcome);
        short events = POLLRDHUP;
        if (writes && peer.stage != Peer::Stage::hello) events |= POLLOUT;
        if (!peer.writer && !peer.waits_until) events |= POLLIN;
        waits.push_back({peer.socket.fd(), events, 0});
    }
    if (::poll(waits.data(), waits.size(), milliseconds_to_next()) < 0) return errno == EINTR;
    if (waits[0].revents != 0) return false;
    auto wait = waits.begin() + 2;
    for (Peer& peer : peers_) {
        const short events = (wait++)->revents;
        if (events != 0) step(peer, events);
    }
    look_at_deadlines();
    if (waits[1].revents != 0) accept_all();
    std::erase_if(peers_, [](const Peer& peer) { return peer.stage == Peer::Stage::gone; });
    others_connected_ = std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
        return peer.stage == Peer::Stage::rank && peer.hello.rank != 0;
    });
    return true;
}

int StoreServer::milliseconds_to_next() const {
    auto next = Clock::time_point::max();
    if (deaf_until_) next = *deaf_until_;
    for (const Peer& peer : peers_) {
        if (peer.stage != Peer::Stage::rank) next = std::min(next, peer.since + settings_.handshake_time);
        if (peer.waits_until) next = std::min(next, *peer.waits_until);
    }
    if (next == Clock::time_point::max()) return -1;
    const auto left = std::chrono::duration_cast<milliseconds>(next - Clock::now()).count();
    return static_cast<int>(std::clamp<int64_t>(left + 1, 0, 60000));
}

void StoreServer::look_at_deadlines() {
    const auto now = Clock::now();
    if (deaf_until_ && *deaf_until_ <= now) deaf_until_.reset();
    for (Peer& peer : peers_) {
        const bool unauthenticated = peer.stage == Peer::Stage::hello || peer.stage == Peer::Stage::proof;
        if (unauthenticated && now - peer.since > settings_.handshake_time) peer.stage = Peer::Stage::gone;
        if (peer.waits_until && *peer.waits_until <= now) reply(peer, Op::absent, nullptr);
    }
}

void StoreServer::accept_all() {
    constexpr int at_once = 64;  // ranks have their turn between unauthenticated peers
    constexpr milliseconds pause(100);
    for (int i = 0; i < at_once; ++i) {
        Socket socket(::accept4(listening_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (!socket.open()) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                make_room();
                deaf_until_ = Clock::now() + pause;
            }
            return;
        }
        const int yes = 1;
        ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        make_room();
        peers_.emplace_back().socket = std::move(socket);
    }
}

/// Drops the oldest of too many unauthenticated peers. A rank among them is done within milliseconds, or reconnects.
void StoreServer::make_room() {
    const auto unauthenticated = [](const Peer& peer) {
        return peer.stage == Peer::Stage::hello || peer.stage == Peer::Stage::proof;
    };
    if (static_cast<std::size_t>(std::count_if(peers_.begin(), peers_.end(), unauthenticated)) < most_unauthenticated)
        return;
    peers_.erase(std::find_if(peers_.begin(), peers_.end(), unauthenticated));
}

void StoreServer::step(Peer& peer, short events) {
    try {
        if ((events & (POLLERR | POLLHUP | POLLNVAL)) != 0 || (events & (POLLRDHUP | POLLIN)) == POLLRDHUP)
            throw Garbled("closed");
        if ((events & POLLOUT) != 0) write(peer);
        if ((events & POLLIN) == 0) return;
        if (peer.stage == Peer::Stage::rank)
            read(peer);
        else
            shake_hands(peer);
    } catch (const std::exception& error) {
        if (peer.stage == Peer::Stage::rank && std::strcmp(error.what(), "closed") != 0)
            log::debug("the ranks' store drops a connection of rank ", peer.hello.rank, ": ", error.what());
        peer.stage = Peer::Stage::gone;
        peer.waits_until.reset();
    }
}

void StoreServer::shake_hands(Peer& peer) {
    const bool hello = peer.stage == Peer::Stage::hello;
    auto* const message = hello ? reinterpret_cast<uint8_t*>(&peer.hello) : peer.proof.data();
    const std::size_t size = hello ? sizeof peer.hello : sizeof peer.proof;
    peer.got += receive(peer.socket, {message + peer.got, size - peer.got});
    if (hello && peer.got >= wire_magic.size() && peer.hello.magic != wire_magic) throw Garbled("no rank");
    if (peer.got < size) return;
    peer.got = 0;
    if (!hello) {
        if (!same(peer.proof, derive(settings_.secret, "rank", peer.hello, peer.welcome)))
            throw Garbled("a rank without the run's secret");
        admit(peer);
        return;
    }
    if (peer.hello.rank >= static_cast<uint32_t>(settings_.size) ||
        peer.hello.size != static_cast<uint32_t>(settings_.size) ||
        peer.hello.run != static_cast<uint32_t>(settings_.run))
        throw Garbled("a rank of another run");
    peer.welcome = {wire_magic, settings_.seals ? 1U : 0U, random_bytes(), {}};
    peer.welcome.proof = derive(settings_.secret, "store", peer.hello, peer.welcome);
    peer.stage = Peer::Stage::proof;
    write(peer);
}

void StoreServer::admit(Peer& peer) {
    const auto connections = std::count_if(peers_.begin(), peers_.end(), [&](const Peer& other) {
        return other.stage == Peer::Stage::rank && other.hello.rank == peer.hello.rank;
    });
    if (static_cast<std::size_t>(connections) >= most_connections_of_a_rank) throw Garbled("too many connections");
    Seal in;
    if (settings_.seals) {
        in = Seal(derive(settings_.secret, "to the store", peer.hello, peer.welcome));
        peer.seal = Seal(derive(settings_.secret, "to the rank", peer.hello, peer.welcome));
    }
    peer.reader.emplace(in, /*takes_requests=*/true);
    peer.stage = Peer::Stage::rank;
}

void StoreServer::read(Peer& peer) {
    if (peer.writer || peer.waits_until) return;  // one request at a time: unread replies do not pile up
    if (peer.reader->filled(receive(peer.socket, peer.reader->room()))) handle(peer);
}

void StoreServer::write(Peer& peer) {
    if (peer.stage != Peer::Stage::rank) {
        const auto* const message = reinterpret_cast<const uint8_t*>(&peer.welcome);
        peer.sent += send(peer.socket, {message + peer.sent, sizeof peer.welcome - peer.sent});
        return;
    }
    if (!peer.writer) return;
    if (const Bytes next = peer.writer->next(); !next.empty()) peer.writer->sent(send(peer.socket, next));
    if (peer.writer->next().empty()) peer.writer.reset();
}

void StoreServer::handle(Peer& peer) {
    FrameReader& request = *peer.reader;
    switch (request.head().op) {
        case Op::set: {
            values_[request.key()] = std::make_shared<const std::vector<uint8_t>>(std::move(request.body()));
            const std::string key = request.key();
            reply(peer, Op::done, nullptr);
            wake_those_that_wait_for(key);
            return;
        }
        case Op::get:
            if (const auto found = values_.find(request.key()); found != values_.end())
                return reply(peer, Op::done, found->second);
            peer.waits_until = Clock::now() + milliseconds(std::min(request.head().wait_ms, 3600000U));
            return;
        case Op::add: {
            int64_t more = 0;
            if (request.body().size() != sizeof more) throw Garbled("no number to add");
            std::memcpy(&more, request.body().data(), sizeof more);
            return reply_number(peer, add(request.key(), more));
        }
        case Op::remove:
            return reply_number(peer, static_cast<int64_t>(values_.erase(request.key())));
        case Op::signs:
            signs_[peer.hello.rank] = std::move(request.body());
            return reply(peer, Op::done, all_signs());
        default:
            throw Garbled("no request");
    }
}

void StoreServer::reply(Peer& peer, Op op, Value value) {
    peer.waits_until.reset();
    peer.reader->reset();
    peer.writer.emplace(peer.seal, Head{op}, std::move(value));
}

/// Kept in decimal digits, as c10d's stores keep it.
int64_t StoreServer::add(const std::string& key, int64_t more) {
    int64_t sum = 0;
    if (const auto found = values_.find(key); found != values_.end())
        sum = std::atoll(std::string(found->second->begin(), found->second->end()).c_str());
    sum += more;
    const std::string digits = std::to_string(sum);
    values_[key] = std::make_shared<const std::vector<uint8_t>>(digits.begin(), digits.end());
    wake_those_that_wait_for(key);
    return sum;
}

void StoreServer::reply_number(Peer& peer, int64_t number) {
    std::vector<uint8_t> bytes(sizeof number);
    std::memcpy(bytes.data(), &number, sizeof number);
    reply(peer, Op::done, std::make_shared<const std::vector<uint8_t>>(std::move(bytes)));
}

Value StoreServer::all_signs() const {
    std::vector<uint8_t> all;
    for (const std::vector<uint8_t>& sign : signs_) {
        const auto size = static_cast<uint32_t>(sign.size());
        const auto* const bytes = reinterpret_cast<const uint8_t*>(&size);
        all.insert(all.end(), bytes, bytes + sizeof size);
        all.insert(all.end(), sign.begin(), sign.end());
    }
    return std::make_shared<const std::vector<uint8_t>>(std::move(all));
}

void StoreServer::wake_those_that_wait_for(const std::string& key) {
    const Value value = values_.at(key);
    for (Peer& peer : peers_)
        if (peer.waits_until && peer.reader->key() == key) reply(peer, Op::done, value);
}

}  // namespace unsloth::comm
