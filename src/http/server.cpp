#include "unsloth/http/server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <thread>
#include <unordered_map>

#include "http/connection.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"

namespace unsloth::http {
namespace {

struct Closer {
    void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

Descriptor listen_at(const std::string& host, int port) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    addrinfo* found = nullptr;
    const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (status != 0)
        throw Error("network.cannot-listen", cat("cannot listen at ", host, ": ", ::gai_strerror(status)),
                    "Give an address of this machine.");
    const std::unique_ptr<addrinfo, Closer> list(found);
    Descriptor socket(::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int yes = 1;
    if (socket.open()) ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (!socket.open() || ::bind(socket.get(), list->ai_addr, list->ai_addrlen) != 0 ||
        ::listen(socket.get(), 1024) != 0)
        throw Error("network.cannot-listen", cat("cannot listen at ", host, " port ", port, ": ", std::strerror(errno)),
                    "Give an address of this machine and a free port, or port 0 for any.");
    return socket;
}

int port_of(int socket) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    UNSLOTH_CHECK(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0, std::strerror(errno));
    return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                               : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

std::string name_of(const sockaddr_storage& address, socklen_t size) {
    std::array<char, NI_MAXHOST> host{};
    std::array<char, NI_MAXSERV> port{};
    if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(), port.data(),
                      port.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return "unknown";
    return address.ss_family == AF_INET6 ? cat('[', host.data(), "]:", port.data())
                                         : cat(host.data(), ':', port.data());
}

/// Small answers leave at once; a client whose machine vanished is noticed within two minutes.
void set_socket_options(int socket) {
    const int yes = 1, idle = 60, interval = 15, probes = 4;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

}  // namespace

class Server::Loop {
  public:
    Loop(ServerOptions options, Handler handler);
    ~Loop() { stop(Clock::now()); }
    Loop(const Loop&) = delete;
    Loop& operator=(const Loop&) = delete;

    int port() const { return port_; }
    void drain() {
        drain_ = true;
        shared_.mailbox->post(nullptr);
    }
    void stop(Clock::time_point deadline);

  private:
    void run();
    void turn();
    void accept_some();
    void accept_one(Descriptor socket, std::string peer);
    void watch_listener(bool on);
    void begin_drain();
    void collect_mail();
    void tick();
    void bury();

    Shared shared_;
    std::optional<TlsFiles> tls_;
    Descriptor listener_;
    const int port_;
    Descriptor epoll_;
    std::unordered_map<Connection*, std::unique_ptr<Connection>> connections_;
    std::chrono::milliseconds tick_time_;
    Clock::time_point next_tick_;
    bool accepting_ = false;
    std::atomic<bool> drain_ = false, stop_ = false;
    std::mutex stopping_;  // of stop()
    std::atomic<Clock::rep> deadline_ = Clock::time_point::max().time_since_epoch().count();
    std::thread thread_;
};

Server::Loop::Loop(ServerOptions options, Handler handler)
    : shared_{std::move(options), std::move(handler), std::make_shared<Mailbox>()},
      listener_(listen_at(shared_.options.host, shared_.options.port)),
      port_(port_of(listener_.get())),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (!epoll_.open()) throw Error("process.system-call", cat("epoll: ", std::strerror(errno)));
    if (!shared_.options.certificate.empty()) tls_.emplace(shared_.options);
    const auto& limits = shared_.options;
    tick_time_ = std::clamp(std::min({limits.header_time, limits.body_time, limits.idle_time}) / 4,
                            std::chrono::milliseconds(5), std::chrono::milliseconds(1000));
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = nullptr;  // the mailbox
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, shared_.mailbox->fd(), &event);
    watch_listener(true);
    // Signals are other threads'.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Server::Loop::stop(Clock::time_point deadline) {
    const std::lock_guard lock(stopping_);
    deadline_ = deadline.time_since_epoch().count();
    stop_ = true;
    drain();
    if (thread_.joinable()) thread_.join();
}

void Server::Loop::run() {
    ::pthread_setname_np(::pthread_self(), "http");
    next_tick_ = Clock::now() + tick_time_;
    while (!stop_ || (!connections_.empty() && Clock::now() < Clock::time_point(Clock::duration(deadline_)))) turn();
    connections_.clear();
    shared_.mailbox->close();
    listener_.close();
}

void Server::Loop::turn() {
    std::array<epoll_event, 256> events;
    auto wake = connections_.empty() && accepting_ ? Clock::now() + std::chrono::hours(1) : next_tick_;
    if (stop_) wake = std::min(wake, Clock::time_point(Clock::duration(deadline_)));
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(wake - Clock::now()).count();
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   static_cast<int>(std::clamp<int64_t>(wait, 0, 3'600'000)));
    for (int i = 0; i < count; ++i) {
        void* of = events[static_cast<size_t>(i)].data.ptr;
        if (of == &listener_)
            accept_some();
        else if (of != nullptr)
            static_cast<Connection*>(of)->on_events(events[static_cast<size_t>(i)].events);
    }
    collect_mail();
    if (drain_ && !shared_.draining) begin_drain();
    if (Clock::now() >= next_tick_) tick();
    bury();
}

/// An answer given on this thread is more mail; each turn takes what was there when it began.
void Server::Loop::collect_mail() {
    for (const auto& exchange : shared_.mailbox->take()) {
        exchange->collected();
        if (Carrier* carrier = exchange->carrier()) carrier->changed(*exchange);
    }
}

void Server::Loop::accept_some() {
    for (int i = 0; i < 64; ++i) {
        sockaddr_storage address{};
        socklen_t size = sizeof address;
        Descriptor socket(
            ::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!socket.open()) {
            // Without descriptors or memory, the next tick tries again.
            if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) watch_listener(false);
            return;
        }
        accept_one(std::move(socket), name_of(address, size));
    }
}

void Server::Loop::accept_one(Descriptor socket, std::string peer) {
    set_socket_options(socket.get());
    if (connections_.size() >= shared_.options.connections) {
        const std::string body = error_body(503, "too many connections");
        const std::string answer =
            cat("HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
                "connection: close\r\ncontent-length: ",
                body.size(), "\r\n\r\n", body);
        if (!tls_) [[maybe_unused]]
            const ssize_t sent = ::send(socket.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
        return;
    }
    try {
        if (tls_) tls_->refresh();
        auto made = std::make_unique<Connection>(std::move(socket), epoll_.get(), shared_,
                                                 tls_ ? tls_->session() : nullptr, std::move(peer));
        Connection* key = made.get();
        connections_.emplace(key, std::move(made));
    } catch (const std::exception& error) {
        log::error("http: a connection failed: ", error.what());
    }
}

void Server::Loop::watch_listener(bool on) {
    if (on == accepting_ || !listener_.open()) return;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.ptr = &listener_;
    ::epoll_ctl(epoll_.get(), on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listener_.get(), &event);
    accepting_ = on;
}

void Server::Loop::begin_drain() {
    accept_some();  // who had connected gets an answer
    watch_listener(false);
    listener_.close();
    shared_.draining = true;
    for (const auto& [key, connection] : connections_) connection->drain();
}

void Server::Loop::tick() {
    const auto now = Clock::now();
    next_tick_ = now + tick_time_;
    watch_listener(true);
    for (const auto& [key, connection] : connections_) connection->check_time(now);
}

void Server::Loop::bury() {
    std::erase_if(connections_, [](const auto& entry) { return entry.second->dead(); });
}

Server::Server(ServerOptions options, Handler handler)
    : loop_(std::make_unique<Loop>(std::move(options), std::move(handler))) {}
Server::~Server() = default;
int Server::port() const {
    return loop_->port();
}
void Server::drain() {
    loop_->drain();
}
void Server::stop(std::chrono::steady_clock::time_point deadline) {
    loop_->stop(deadline);
}

}  // namespace unsloth::http
