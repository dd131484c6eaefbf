#include "comm/store_client.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "unsloth/core/error.h"

namespace unsloth::comm {
namespace {

constexpr milliseconds poll_slice(200);

/// The connection was closed, or is silent: during the handshake a reason to try again.
struct Closed : StoreGone {
    using StoreGone::StoreGone;
};

}  // namespace

StoreClient::StoreClient(const Rendezvous& rendezvous, Clock::time_point give_up) : rendezvous_(rendezvous) {
    constexpr milliseconds pause(20), answer(1000);
    for (;;) {
        socket_ = connect_to(rendezvous_.address, answer);
        if (socket_.open() && shake_hands(give_up)) return;
        if (Clock::now() >= give_up)
            throw StoreGone(socket_.open() ? "the store does not let this rank in" : "no one listens");
        std::this_thread::sleep_for(pause);
    }
}

/// False: it was closed, and another try may do better.
bool StoreClient::shake_hands(Clock::time_point give_up) {
    constexpr milliseconds usual(5000);
    const milliseconds normal = std::exchange(
        patience_, std::clamp(std::chrono::duration_cast<milliseconds>(give_up - Clock::now()), poll_slice, usual));
    Hello hello{wire_magic, rendezvous_.rank, rendezvous_.size, rendezvous_.run, random_bytes()};
    Welcome welcome{};
    try {
        write_all({reinterpret_cast<const uint8_t*>(&hello), sizeof hello});
        read_all({reinterpret_cast<uint8_t*>(&welcome), sizeof welcome}, milliseconds(0));
        if (welcome.magic != wire_magic) throw StoreGone("what listens there is no store of ranks");
        if (!same(welcome.proof, derive(rendezvous_.secret, "store", hello, welcome)))
            throw StoreGone("the store there does not know this run's secret");
        write_all(derive(rendezvous_.secret, "rank", hello, welcome));
    } catch (const Closed&) {
        return false;
    }
    Seal in;
    if (welcome.seals == 1) {
        out_ = Seal(derive(rendezvous_.secret, "to the store", hello, welcome));
        in = Seal(derive(rendezvous_.secret, "to the rank", hello, welcome));
    }
    in_.emplace(in, /*takes_requests=*/false);
    patience_ = normal;
    return true;
}

/// Receives into `in`, or sends `out`, at least a byte; `done` counts on.
void StoreClient::transfer(std::span<uint8_t> in, Bytes out, milliseconds wait, std::size_t& done) {
    auto give_up = Clock::now() + patience_ + wait;
    for (int64_t suspensions = Clock::suspensions();;) {
        const ssize_t moved = in.empty() ? ::send(socket_.fd(), out.data(), out.size(), MSG_NOSIGNAL)
                                         : ::recv(socket_.fd(), in.data(), in.size(), 0);
        if (moved > 0) {
            done += static_cast<std::size_t>(moved);
            return;
        }
        if (moved == 0) throw Closed("the store has closed the connection");
        if (errno != EAGAIN && errno != EINTR) throw Closed(std::strerror(errno));
        if (suspensions != Clock::suspensions()) {
            suspensions = Clock::suspensions();
            give_up = Clock::now() + patience_ + wait;
        }
        if (Clock::now() >= give_up)
            throw Closed(cat("the store does not answer for ",
                             std::chrono::duration_cast<std::chrono::seconds>(patience_ + wait).count(), " s"));
        pollfd waits{socket_.fd(), static_cast<short>(in.empty() ? POLLOUT : POLLIN), 0};
        ::poll(&waits, 1, static_cast<int>(poll_slice.count()));
        if (look_) look_();
    }
}

void StoreClient::read_all(std::span<uint8_t> bytes, milliseconds wait) {
    for (std::size_t done = 0; done < bytes.size();) transfer(bytes.subspan(done), {}, wait, done);
}

void StoreClient::write_all(Bytes bytes) {
    for (std::size_t done = 0; done < bytes.size();) transfer({}, bytes.subspan(done), milliseconds(0), done);
}

FrameReader& StoreClient::request(Head head, const std::string& key, Bytes body) {
    if (broken_) throw StoreGone("the connection to the store was given up");
    UNSLOTH_CHECK(key.size() <= longest_key, "a key of ", key.size(), " bytes");
    broken_ = true;  // until the reply is whole
    if (in_->whole()) in_->reset();
    FrameWriter frame(out_, head, key, body);
    for (Bytes next = frame.next(); !next.empty(); next = frame.next()) {
        std::size_t sent = 0;
        transfer({}, next, milliseconds(0), sent);
        frame.sent(sent);
    }
    for (bool whole = false; !whole;) {
        std::size_t got = 0;
        transfer(in_->room(), {}, milliseconds(head.wait_ms), got);
        try {
            whole = in_->filled(got);
        } catch (const Garbled& error) {
            throw StoreGone(error.what());
        }
    }
    broken_ = false;
    return *in_;
}

void StoreClient::set(const std::string& key, Bytes value) {
    const std::lock_guard lock(one_at_a_time_);
    request({Op::set}, key, value);
}

std::optional<std::vector<uint8_t>> StoreClient::get(const std::string& key, milliseconds wait) {
    const std::lock_guard lock(one_at_a_time_);
    FrameReader& reply = request({.op = Op::get, .wait_ms = static_cast<uint32_t>(wait.count())}, key, {});
    if (reply.head().op == Op::absent) return std::nullopt;
    return std::move(reply.body());
}

int64_t StoreClient::add(const std::string& key, int64_t more) {
    const std::lock_guard lock(one_at_a_time_);
    return number_in(request({Op::add}, key, {reinterpret_cast<const uint8_t*>(&more), sizeof more}));
}

bool StoreClient::remove(const std::string& key) {
    const std::lock_guard lock(one_at_a_time_);
    return number_in(request({Op::remove}, key, {})) > 0;
}

int64_t StoreClient::number_in(FrameReader& reply) {
    int64_t number = 0;
    if (reply.body().size() != sizeof number) throw StoreGone("a reply that is no number");
    std::memcpy(&number, reply.body().data(), sizeof number);
    return number;
}

std::vector<std::string> StoreClient::signs(const std::string& own) {
    const std::lock_guard lock(one_at_a_time_);
    FrameReader& reply = request({Op::signs}, "", bytes_of(std::string_view(own).substr(0, longest_sign)));
    std::vector<std::string> all;
    for (Bytes left = reply.body(); !left.empty();) {
        uint32_t size = 0;
        if (left.size() < sizeof size) throw StoreGone("truncated heartbeats");
        std::memcpy(&size, left.data(), sizeof size);
        left = left.subspan(sizeof size);
        if (size > left.size()) throw StoreGone("truncated heartbeats");
        all.emplace_back(left.begin(), left.begin() + size);
        left = left.subspan(size);
    }
    if (all.size() != rendezvous_.size) throw StoreGone("heartbeats of another number of ranks");
    return all;
}

}  // namespace unsloth::comm
