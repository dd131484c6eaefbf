#include "comm/store.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include <c10/util/Flags.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <thread>

#include "unsloth/core/error.h"
#include "unsloth/core/host.h"
#include "unsloth/core/log.h"

C10_DECLARE_int(caffe2_log_level);

namespace unsloth::comm {
namespace {

std::string place_of(const LaunchEnvironment& e) {
    return cat(e.master_address, ":", e.master_port);
}

/// Whether somebody listens there.
bool listens(const addrinfo& address) {
    const int fd = ::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol);
    if (fd < 0) return false;
    constexpr int answer_ms = 1000;
    int error = ::connect(fd, address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
        pollfd waits{fd, POLLOUT, 0};
        socklen_t size = sizeof error;
        if (::poll(&waits, 1, answer_ms) != 1 || ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
            error = ETIMEDOUT;
    }
    ::close(fd);
    return error == 0;
}

/// c10d's client pauses longer and longer between its attempts, seconds in the end: it is started when there is
/// something to reach.
bool await_listener(const std::string& host, int port, std::chrono::seconds timeout) {
    constexpr auto pause = std::chrono::milliseconds(20);
    const auto give_up = std::chrono::steady_clock::now() + timeout;
    for (bool found = false; std::chrono::steady_clock::now() < give_up;) {
        addrinfo hints{}, *all = nullptr;
        hints.ai_socktype = SOCK_STREAM;
        if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &all) == 0) {
            for (const addrinfo* one = all; one != nullptr && !found; one = one->ai_next) found = listens(*one);
            ::freeaddrinfo(all);
        }
        if (found) return true;
        std::this_thread::sleep_for(pause);
    }
    return false;
}

}  // namespace

c10::intrusive_ptr<c10d::Store> connect_to_store(const LaunchEnvironment& e, std::chrono::seconds timeout,
                                                 bool serves) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(e.master_port);
    options.isServer = serves;
    options.waitWorkers = false;  // the first exchange waits, and knows who is missing
    options.timeout = timeout;
    if (!serves && !await_listener(e.master_address, e.master_port, timeout))
        throw runtime_failure(cat("nobody listens at ", place_of(e)));
    // An agent's store outlives restarts: each has keys of its own.
    return c10::make_intrusive<c10d::PrefixStore>(cat("unsloth/", e.restarts),
                                                  c10::make_intrusive<c10d::TCPStore>(e.master_address, options));
}

Exchange::Exchange(const LaunchEnvironment& e, std::chrono::seconds timeout)
    : rank_(e.rank), size_(e.world_size), serves_(e.rank == 0 && !e.agent_hosts_store), timeout_(timeout) {
    // What c10d prints about a store that does not answer, with its own stack, is said by our errors.
    if (log::level() > log::Level::debug) FLAGS_caffe2_log_level = 3;  // fatal ones alone
    try {
        store_ = connect_to_store(e, timeout, serves_);
    } catch (const std::exception& error) {
        if (serves_)
            throw runtime_failure(cat("rank 0 cannot serve the ranks' store at port ", e.master_port, ": ",
                                      std::string(error.what()).substr(0, 200)),
                                  "Is another run using the port? Choose another MASTER_PORT.");
        throw runtime_failure(
            cat("rank ", e.rank, " did not reach rank 0's store at ", place_of(e), " within ", timeout.count(), " s"),
            "Is rank 0 running, and does MASTER_ADDR name a host that this machine can reach?");
    }
    const std::string host = host_name();
    all({host.begin(), host.end()}, "the start of all ranks",
        [&](int, const std::vector<uint8_t>& name) { hosts_.emplace_back(name.begin(), name.end()); });
    try {
        monitor_ = std::make_unique<Monitor>(e, timeout);
    } catch (const std::exception& error) {
        log::debug("the ranks' store: ", error.what());
        throw runtime_failure(
            cat("rank 0 is gone: the ranks' store does not answer (at the start); seen by rank ", rank_));
    }
}

Exchange::~Exchange() {
    constexpr auto patience = std::chrono::seconds(5);
    try {
        const auto give_up = std::chrono::steady_clock::now() + patience;
        store_->add("left", 1);
        while (serves_ && store_->add("left", 0) < size_ && std::chrono::steady_clock::now() < give_up)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
    } catch (const std::exception& error) {
        log::debug("the ranks' store: ", error.what());  // it is gone, and so is everyone's interest in it
    }
}

std::string Exchange::key(int64_t number, int rank) const {
    return cat(number, "/", rank);
}

void Exchange::begin(std::vector<uint8_t> own, const std::string& what) {
    if (monitor_) {
        monitor_->check();
        monitor_->begin(what);
    }
    own_ = std::move(own);
    own_.push_back(0);  // a value of no bytes is none
    try {
        store_->set(key(number_, rank_), own_);
    } catch (const std::exception&) {
        throw runtime_failure(cat("rank 0 is gone: the ranks' store does not answer (", what, ")"));
    }
}

std::vector<uint8_t> Exchange::read(int rank, const std::string& what) {
    if (rank == rank_) {
        own_.pop_back();
        return std::move(own_);
    }
    // In slices, between which the monitor may know more.
    constexpr std::chrono::milliseconds slice(1000);
    const auto deadline = std::chrono::steady_clock::now() + timeout_;
    for (;;) {
        try {
            store_->wait({key(number_, rank)},
                         std::min(slice, std::chrono::duration_cast<std::chrono::milliseconds>(timeout_)));
            std::vector<uint8_t> bytes = store_->get(key(number_, rank));
            bytes.pop_back();
            return bytes;
        } catch (const std::exception& error) {
            if (monitor_) monitor_->check();
            if (std::string(error.what()).find("imeout") == std::string::npos)
                throw runtime_failure(
                    cat("rank 0 is gone: the ranks' store does not answer (", what, "); seen by rank ", rank_));
        }
        if (std::chrono::steady_clock::now() >= deadline)
            throw runtime_failure(
                cat("rank ", rank, " did not come to ", what, " within ", timeout_.count(),
                    " s (distributed.ddp_timeout); seen by rank ", rank_),
                "Look at that rank's output: it may have ended, or it works on something that takes longer.");
    }
}

/// When this rank has read everyone's value of one exchange, everyone has read those of the exchange before.
void Exchange::end() {
    if (number_ > 0) store_->deleteKey(key(number_ - 1, rank_));
    ++number_;
}

}  // namespace unsloth::comm
