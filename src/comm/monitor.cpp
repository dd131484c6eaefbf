#include "comm/monitor.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <sstream>

#include "comm/store.h"
#include "unsloth/core/error.h"
#include "unsloth/core/host.h"
#include "unsloth/core/log.h"

namespace unsloth::comm {
namespace {

using std::chrono::seconds;

constexpr seconds silence_allowed(12), answer_allowed(3), patience_with_main_thread(20);
constexpr const char *alive = "alive", *left = "left", *failed = "failed";

[[noreturn]] void end_process(const std::string& error) {
    std::fprintf(stderr, "unsloth-train: error: %s\n", error.c_str());
    std::fflush(stderr);
    ::_exit(static_cast<int>(ErrorKind::runtime));
}

std::string key_of(int rank) {
    return cat("life/", rank);
}
std::vector<uint8_t> bytes_of(const std::string& text) {
    return {text.begin(), text.end()};
}

}  // namespace

Monitor::Monitor(const LaunchEnvironment& e, seconds timeout)
    : rank_(e.rank),
      size_(e.world_size),
      place_(cat(e.master_address, ":", e.master_port)),
      host_(host_name()),
      timeout_(timeout),
      lost_after_(std::min(timeout, silence_allowed)),
      store_(connect_to_store(e, timeout, /*serves=*/false)) {
    store_->setTimeout(std::chrono::duration_cast<std::chrono::milliseconds>(lost_after_));
    const auto now = Clock::now();
    for (int r = 0; r < size_; ++r)
        if (r != rank_) peers_[r].changed = now;
    beat();
    looked_ = now;
    thread_ = std::thread([this] { watch(); });
    supervisor_ = std::thread([this] { supervise(); });
}

Monitor::~Monitor() {
    {
        const std::lock_guard lock(mutex_);
        ends_ = true;
    }
    wake_.notify_all();
    thread_.join();
    supervisor_.join();
    if (announced_) return;
    try {
        store_->set(key_of(rank_), bytes_of(left));
    } catch (const std::exception& error) {
        log::debug("the ranks' store: ", error.what());  // it is gone, and so is everyone's interest in it
    }
}

void Monitor::begin(const std::string& what, std::function<bool()> done) {
    const std::lock_guard lock(mutex_);
    ++number_;
    what_ = what;
    if (done) pending_.push_back({what, number_, Clock::now(), std::move(done)});
}

void Monitor::check() {
    const std::lock_guard lock(mutex_);
    if (!failure_) return;
    said_ = true;
    throw runtime_failure(
        *failure_,
        "Look at that rank's output. Saved checkpoints are whole; start again with resume_from_checkpoint auto.");
}

void Monitor::announce(const std::string& error) noexcept {
    try {
        {
            const std::lock_guard lock(mutex_);
            if (announced_ || failure_) return;
            announced_ = true;
            said_ = true;
        }
        store_->set(key_of(rank_), bytes_of(cat(failed, "\n", host_, "\n", error.substr(0, error.find('\n')))));
    } catch (...) {
        // The store is gone: the others see that for themselves.
    }
}

void Monitor::on_failure(std::function<void()> release) {
    const std::lock_guard lock(mutex_);
    release_ = std::move(release);
}

void Monitor::watch() {
    ::prctl(PR_SET_NAME, "ranks' monitor");
    const auto pause = std::max<std::chrono::milliseconds>(
        std::chrono::duration_cast<std::chrono::milliseconds>(lost_after_) / 8, std::chrono::milliseconds(200));
    std::unique_lock lock(mutex_);
    while (!ends_) {
        wake_.wait_for(lock, pause, [&] { return ends_; });
        if (ends_) return;
        lock.unlock();
        const std::optional<std::string> failure = look();
        lock.lock();
        looked_ = Clock::now();
        if (ends_) return;
        if (!failure) continue;
        looked_.reset();
        fail(*failure);
        if (wake_.wait_for(lock, patience_with_main_thread, [&] { return ends_ || said_; })) return;
        end_process(cat(*failure_, "\n  The main thread does not come back from the device: the process ends here."));
    }
}

/// A store whose host was stopped takes what we send and answers nothing: neither thread that asks it comes back.
void Monitor::supervise() {
    ::prctl(PR_SET_NAME, "monitor's watch");
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, std::chrono::milliseconds(500), [&] { return ends_; }))
        if (looked_ && Clock::now() - *looked_ > lost_after_ + answer_allowed)
            end_process(cat("rank 0 is gone: the ranks' store at ", place_, " does not answer for ",
                            lost_after_.count(), " s; seen by rank ", rank_, " at ", what_));
}

void Monitor::fail(const std::string& message) {
    if (announced_) return;
    failure_ = message;
    if (release_) release_();
}

/// What went wrong, if something did.
std::optional<std::string> Monitor::look() {
    try {
        beat();
        if (auto lost = read_peers()) return lost;
    } catch (const std::exception& error) {
        log::debug("the ranks' store: ", error.what());
        return cat("rank 0 is gone: the ranks' store at ", place_, " does not answer; seen by rank ", rank_);
    }
    return overdue();
}

void Monitor::beat() {
    std::string sign;
    {
        const std::lock_guard lock(mutex_);
        if (announced_) return;
        sign = cat(alive, "\n", host_, "\n", number_, "\n", what_, "\n", ++beats_);
    }
    store_->set(key_of(rank_), bytes_of(sign));
}

std::optional<std::string> Monitor::read_peers() {
    std::vector<std::string> keys;
    std::vector<int> ranks;
    for (const auto& [rank, peer] : peers_) {
        if (peer.left) continue;
        keys.push_back(key_of(rank));
        ranks.push_back(rank);
    }
    if (keys.empty()) return std::nullopt;
    const std::vector<std::vector<uint8_t>> signs = store_->multiGet(keys);
    const auto now = Clock::now();
    for (std::size_t i = 0; i < ranks.size(); ++i) {
        Peer& peer = peers_[ranks[i]];
        const std::string sign(signs[i].begin(), signs[i].end());
        if (sign != peer.sign) {
            peer.sign = sign;
            peer.changed = now;
            std::istringstream lines(sign);
            std::string state, number;
            std::getline(lines, state);
            peer.left = state == left;
            if (peer.left) continue;
            std::getline(lines, peer.host);
            if (state == failed) {
                std::string reason;
                std::getline(lines, reason);
                return cat("rank ", ranks[i], " (", peer.host, ") failed: ", reason);
            }
            std::getline(lines, number);
            std::getline(lines, peer.what);
            peer.number = std::atoll(number.c_str());
            continue;
        }
        const auto silent = std::chrono::duration_cast<seconds>(now - peer.changed);
        if (silent >= lost_after_)
            return cat("rank ", ranks[i], " (", peer.host, ") gives no sign of life for ", silent.count(),
                       " s: it ended or was stopped; it was last seen at ", peer.what, "; seen by rank ", rank_);
    }
    return std::nullopt;
}

std::optional<std::string> Monitor::overdue() {
    Pending oldest;
    {
        const std::lock_guard lock(mutex_);
        while (!pending_.empty() && pending_.front().done()) {
            pending_.pop_front();
            if (!pending_.empty()) pending_.front().since = Clock::now();  // what is queued behind had no chance before
        }
        if (pending_.empty() || Clock::now() - pending_.front().since < timeout_) return std::nullopt;
        oldest = pending_.front();
    }
    std::string late;
    for (const auto& [rank, peer] : peers_)
        if (peer.left || peer.number < oldest.number)
            late += cat(late.empty() ? "" : ", ", "rank ", rank, " (", peer.host, ", ",
                        peer.left ? "has left" : cat("still at ", peer.what), ")");
    return cat(oldest.what, " takes longer than ", timeout_.count(), " s (distributed.ddp_timeout): ",
               late.empty() ? "all ranks came, and the network does not finish it" : cat("waiting for ", late),
               "; seen by rank ", rank_);
}

}  // namespace unsloth::comm
