#include "comm/store.h"

#include <algorithm>
#include <thread>

#include "unsloth/core/error.h"
#include "unsloth/core/host.h"
#include "unsloth/core/log.h"

namespace unsloth::comm {
namespace {

constexpr int start_factor = 5;

std::string lines_of_none(const std::vector<uint8_t>& bytes) {
    return one_line({bytes.begin(), bytes.end()});
}

}  // namespace

/// What the request gives; where the store is gone, what the monitor knows is the better error.
template <class Ask>
auto Exchange::ask(const std::string& what, const Ask& request) {
    try {
        return request();
    } catch (const StoreGone& error) {
        if (monitor_) monitor_->check();
        log::debug("the ranks' store: ", error.what());
        throw Error("rank.failed",
                    cat("rank 0 is gone: the ranks' store does not answer (", what, "); seen by rank ", rank_));
    }
}

Exchange::Exchange(const LaunchEnvironment& e, std::chrono::seconds timeout)
    : rank_(e.rank), size_(e.world_size), timeout_(timeout), allowed_(start_factor * timeout) {
    const auto give_up = Clock::now() + allowed_;
    if (rank_ == 0 && !e.one_machine && e.secret.empty())
        log::warning(
            "the ranks meet over the network without a secret: anyone who reaches the port of rank 0's store can alter "
            "the run. Set UNSLOTH_SECRET, or UNSLOTH_SECRET_FILE, to the same for all ranks (openssl rand -hex "
            "32), or trust this network.");
    rendezvous_ = meet(e, give_up, server_);
    try {
        client_ = std::make_unique<StoreClient>(rendezvous_, give_up);
    } catch (const StoreGone& error) {
        throw Error(
            "rank.no-rendezvous",
            cat("rank ", rank_, " did not reach rank 0's store at ", host_of(rendezvous_.address), ":",
                port_of(rendezvous_.address), " within ", allowed_.count(), " s: ", error.what()),
            "Is rank 0 running, does MASTER_ADDR name a host that this machine can reach, and is UNSLOTH_SECRET the "
            "same for all ranks?");
    }
    const std::string host = host_name();
    all({host.begin(), host.end()}, "the start of all ranks",
        [&](int, const std::vector<uint8_t>& name) { hosts_.push_back(lines_of_none(name)); });
    allowed_ = timeout_;
    monitor_ = ask("the start of all ranks", [&] { return std::make_unique<Monitor>(e, rendezvous_, timeout); });
    client_->while_waiting([this] {
        if (monitor_) monitor_->check();
    });
}

Exchange::~Exchange() {
    constexpr auto patience = std::chrono::seconds(5);
    monitor_.reset();
    client_.reset();
    if (!server_) return;
    const auto give_up = Clock::now() + patience;
    while (server_->others_connected() && Clock::now() < give_up) std::this_thread::sleep_for(milliseconds(5));
}

std::string Exchange::name_of(int rank) const {
    const auto place = static_cast<std::size_t>(rank);
    return cat("rank ", rank, place < hosts_.size() ? cat(" (", hosts_[place], ")") : "");
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
    ask(what, [&] { client_->set(key(number_, rank_), own_); });
}

std::vector<uint8_t> Exchange::read(int rank, const std::string& what) {
    if (rank == rank_) return std::move(own_);
    constexpr milliseconds slice(1000);  // between which the monitor may know more
    auto deadline = Clock::now() + allowed_;
    for (;;) {
        if (auto bytes = ask(what, [&] { return client_->get(key(number_, rank), slice); })) return std::move(*bytes);
        if (monitor_) monitor_->check();
        if (monitor_ && monitor_->busy(rank)) deadline = Clock::now() + allowed_;
        if (Clock::now() < deadline) continue;
        const std::string late =
            cat(name_of(rank), " did not come to ", what, " within ", allowed_.count(), " s (distributed.ddp_timeout",
                monitor_ ? "" : " five times: the start", "); seen by rank ", rank_);
        if (monitor_) monitor_->lose(late);
        throw Error("rank.late", late,
                    "Look at that rank's output: it may have ended, or it works on something that takes longer.");
    }
}

/// When this rank has read everyone's value of one exchange, everyone has read those of the exchange before.
void Exchange::end() {
    if (number_ > 0) ask("the end of an exchange", [&] { return client_->remove(key(number_ - 1, rank_)); });
    ++number_;
}

}  // namespace unsloth::comm
