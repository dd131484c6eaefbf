#include "http/connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "unsloth/core/log.h"

namespace unsloth::http {
namespace {

constexpr std::string_view http2_preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Input that waits while an answer runs; more stays in the socket.
constexpr size_t most_waiting_input = size_t{64} << 10;
/// How long a closed connection takes input, so that the client reads the last answer before it sees a reset.
constexpr std::chrono::seconds linger_time{1};

}  // namespace

Connection::Connection(Descriptor socket, int epoll, Shared& shared, std::unique_ptr<TlsSession> tls, std::string peer)
    : socket_(std::move(socket)), epoll_(epoll), shared_(shared), tls_(std::move(tls)), peer_(std::move(peer)) {
    watch();
}
Connection::~Connection() {
    die();
}

void Connection::on_events(uint32_t events) {
    if (dead_) return;
    if ((events & (EPOLLERR | EPOLLHUP)) != 0) return die();
    if ((events & EPOLLIN) != 0)
        read_some();
    else if ((events & EPOLLRDHUP) != 0)
        client_left();  // what is unread no longer matters
    if (!dead_ && (events & EPOLLOUT) != 0) pump();
    watch();
}

void Connection::read_some() {
    static thread_local std::array<char, size_t{64} << 10> buffer;
    const ssize_t count = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (count > 0) return lingering_ ? void() : take({buffer.data(), static_cast<size_t>(count)});
    if (count == 0) return client_left();
    if (errno != EAGAIN && errno != EINTR) die();
}

void Connection::take(std::string_view arrived) {
    bool alive = true;
    if (tls_)
        alive = tls_->receive(arrived, in_, wire_);
    else
        in_ += arrived;
    if (alive) return pump();
    pump();  // what had arrived before, and the alert
    if (!dead_) client_left();
}

void Connection::choose_protocol() {
    if (protocol_ || (tls_ && !tls_->established())) return;
    if (tls_ && tls_->http2()) {
        protocol_ = make_http2(shared_, *this, peer_);
    } else if (!in_.empty()) {
        const bool perhaps = !tls_ && http2_preface.starts_with(std::string_view(in_).substr(0, http2_preface.size()));
        if (perhaps && in_.size() < http2_preface.size()) return;
        protocol_ = perhaps ? make_http2(shared_, *this, peer_) : make_http1(shared_, *this, peer_);
    }
}

/// Moves what can move: input to the protocol, its output to the socket.
void Connection::pump() {
    try {
        for (;;) {
            choose_protocol();
            size_t used = 0;
            const size_t before = out_.size();
            if (protocol_ && !lingering_) {
                if (!in_.empty()) used = protocol_->receive(in_);
                in_.erase(0, used);
                protocol_->fill(out_);
                if (protocol_->aborted()) return die();
            }
            const bool grew = out_.size() > before;
            if (!flush()) return die();
            if (used == 0 && !grew) break;
        }
    } catch (const std::exception& error) {
        log::error("http: the connection of ", peer_, " failed: ", error.what());
        return die();
    }
    finish_if_done();
    watch();
}

/// False when the connection is broken.
bool Connection::flush() {
    for (;;) {
        if (tls_ && wire_.size() < high_water && !out_.empty() && tls_->established()) {
            if (!tls_->send(out_, wire_)) return false;
            out_.clear();
        }
        std::string& bytes = tls_ ? wire_ : out_;
        if (bytes.empty()) return true;
        const ssize_t count = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (count < 0) return errno == EAGAIN || errno == EINTR;
        bytes.erase(0, static_cast<size_t>(count));
        sent_ = Clock::now();
    }
}

void Connection::finish_if_done() {
    if (lingering_ || !out_.empty() || !wire_.empty()) return;
    if (!protocol_ ? !left_ : !protocol_->finished()) return;
    if (left_) return die();
    lingering_ = true;
    linger_until_ = Clock::now() + linger_time;
    in_.clear();
    if (tls_) {
        tls_->shut_down(wire_);
        if (!flush()) return die();
    }
    ::shutdown(socket_.get(), SHUT_WR);
}

/// The client has closed its side: running answers end, ended ones are still sent.
void Connection::client_left() {
    left_ = true;
    if (lingering_) return die();
    if (protocol_) protocol_->client_left();
    pump();
}

void Connection::changed(Exchange& exchange) {
    if (dead_ || !protocol_) return;
    protocol_->changed(exchange);
    pump();
}

void Connection::drain() {
    if (!dead_ && !left_ && !lingering_) read_some();  // a request on its way gets an answer
    if (dead_ || lingering_) return;
    if (!protocol_ && in_.empty() && !tls_) return die();
    if (protocol_) protocol_->drain();
    pump();
}

void Connection::check_time(Clock::time_point now) {
    if (dead_) return;
    const auto& options = shared_.options;
    if (lingering_) {
        if (now > linger_until_) die();
        return;
    }
    if (out_.empty() && wire_.empty())
        sent_ = now;
    else if (now - sent_ > options.idle_time)
        return die();  // the client takes nothing
    if (protocol_)
        protocol_->check_time(now);
    else if (now - began_ > (tls_ || !in_.empty() ? options.header_time : options.idle_time))
        return die();
    pump();
}

void Connection::watch() {
    if (dead_) return;
    const bool pending = !wire_.empty() || (!tls_ && !out_.empty());
    const bool room = lingering_ || in_.size() < most_waiting_input;
    const uint32_t events = (left_ ? 0U : EPOLLRDHUP | (room ? EPOLLIN : 0U)) | (pending ? EPOLLOUT : 0U);
    if (watched_ != 0 && events == (watched_ & ~EPOLLET)) return;
    epoll_event event{};
    event.events = events;
    event.data.ptr = this;
    if (::epoll_ctl(epoll_, watched_ == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, socket_.get(), &event) != 0) return die();
    watched_ = events | EPOLLET;  // never 0 once it is watched
}

void Connection::die() {
    if (std::exchange(dead_, true)) return;
    if (protocol_) protocol_->close();
    socket_.close();
}

}  // namespace unsloth::http
