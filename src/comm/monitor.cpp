#include "comm/monitor.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "unsloth/core/error.h"
#include "unsloth/core/host.h"
#include "unsloth/core/log.h"
#include "unsloth/core/utf8.h"

namespace unsloth::comm {
namespace {

using std::chrono::seconds;

constexpr seconds silence_allowed(12), patience_with_main_thread(20);
constexpr const char *alive = "alive", *left = "left", *failed = "failed";

[[noreturn]] void end_process(const std::string& error) {
    log::last_words(cat("error: ", error));
    ::_exit(static_cast<int>(ErrorKind::runtime));
}

}  // namespace

std::string one_line(std::string text) {
    constexpr std::size_t enough = 500;
    if (text.size() > enough) text.resize(enough);
    std::replace(text.begin(), text.end(), '\n', ' ');
    return printable(text);
}

Monitor::Monitor(const LaunchEnvironment& e, const Meeting& meeting, seconds timeout)
    : environment_(e),
      rank_(e.rank),
      size_(e.world_size),
      place_(cat(host_of(meeting.address), ":", port_of(meeting.address))),
      host_(host_name()),
      timeout_(timeout),
      lost_after_(std::min(timeout, silence_allowed)),
      client_(meeting, Clock::now() + timeout) {
    client_.set_patience(lost_after_);  // a store whose process was stopped takes what we send and answers nothing
    const auto now = Clock::now();
    for (int r = 0; r < size_; ++r)
        if (r != rank_) peers_[r].changed = peers_[r].said = now;
    client_.signs(own_sign());
    thread_ = std::thread([this] { watch(); });
}

Monitor::~Monitor() {
    {
        const std::lock_guard lock(mutex_);
        ends_ = true;
    }
    wake_.notify_all();
    thread_.join();
    if (announced_) return;
    try {
        client_.signs(failure_ ? cat(failed, "\n", host_, "\n", *failure_) : left);
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

void Monitor::begin_message(const std::string& what, std::function<bool()> done) {
    const std::lock_guard lock(mutex_);
    what_ = what;
    if (done) pending_.push_back({what, number_ + 1, Clock::now(), std::move(done)});
}

void Monitor::forget_done() {
    const std::lock_guard lock(mutex_);
    std::erase_if(pending_, [](const Pending& pending) { return pending.done(); });
}

std::string Monitor::set_busy(std::string what) {
    {
        const std::lock_guard lock(mutex_);
        what.swap(busy_);
    }
    wake_.notify_all();  // the others learn of it before they lose their patience
    return what;
}

bool Monitor::busy(int rank) {
    const std::lock_guard lock(mutex_);
    const auto peer = peers_.find(rank);
    return peer != peers_.end() && busy_locked(rank, peer->second, number_);
}

bool Monitor::busy_before_next(int rank) {
    const std::lock_guard lock(mutex_);
    const auto peer = peers_.find(rank);
    return peer != peers_.end() && busy_locked(rank, peer->second, number_ + 1);
}

/// Says so now and then: nobody waits without a word. One of the waiting is enough.
bool Monitor::busy_locked(int rank, Peer& peer, int64_t number) {
    if (peer.left || peer.busy.empty() || peer.number >= number) return false;
    if (Clock::now() - peer.said >= timeout_) {
        peer.said = Clock::now();
        if (rank_ == (rank == 0 ? 1 : 0))
            log::warning("rank ", rank, " (", peer.host, ") is busy with ", peer.busy, "; the others wait for it at ",
                         what_);
    }
    return true;
}

void Monitor::check() {
    const std::lock_guard lock(mutex_);
    if (!failure_) return;
    said_ = true;
    wake_.notify_all();
    throw runtime_failure(*failure_, peer_said_why_
                                         ? "That rank's output says what to do."
                                         : "Look at that rank's output. Saved checkpoints are whole; start again with "
                                           "resume_from_checkpoint auto.");
}

void Monitor::announce(const std::string& error) noexcept {
    try {
        {
            const std::lock_guard lock(mutex_);
            if (announced_ || failure_) return;
            announced_ = true;
            said_ = true;
        }
        const std::lock_guard signing(sign_mutex_);
        client_.signs(cat(failed, "\n", host_, "\n", error.substr(0, error.find('\n'))));
    } catch (...) {
        // The store is gone: the others see that for themselves.
    }
}

void Monitor::on_failure(std::function<void()> release) {
    const std::lock_guard lock(release_mutex_);
    release_ = std::move(release);
}

void Monitor::watch() {
    ::prctl(PR_SET_NAME, "ranks' monitor");
    const auto pause = std::max(std::chrono::duration_cast<milliseconds>(lost_after_) / 8, milliseconds(200));
    std::unique_lock lock(mutex_);
    std::string busy = busy_;
    while (!ends_) {
        wake_.wait_for(lock, pause, [&] { return ends_ || busy_ != busy; });
        if (ends_) return;
        busy = busy_;
        lock.unlock();
        const std::optional<std::string> failure = look();
        lock.lock();
        if (ends_) return;
        if (failure && !announced_) return end_by(*failure, lock);
    }
}

/// The hook has a thread of its own: NCCL's abort may not come back, and the process must end all the same.
void Monitor::end_by(const std::string& message, std::unique_lock<std::mutex>& lock) {
    failure_ = message;
    bool released = false;
    std::thread release([&] {
        {
            const std::lock_guard held(release_mutex_);
            if (release_) release_();
        }
        const std::lock_guard held(mutex_);
        released = true;
        wake_.notify_all();
    });
    if (!wake_.wait_for(lock, patience_with_main_thread, [&] { return released && (ends_ || said_); }))
        end_process(cat(*failure_, "\n  The main thread does not come back from the device: the process ends here."));
    lock.unlock();
    release.join();
    lock.lock();
}

/// What went wrong, if something did.
std::optional<std::string> Monitor::look() {
    std::vector<std::string> signs;
    try {
        const std::lock_guard signing(sign_mutex_);
        const std::string own = own_sign();
        if (own.empty()) return std::nullopt;
        signs = client_.signs(own);
    } catch (const std::exception& error) {
        log::debug("the ranks' store: ", error.what());
        const std::lock_guard lock(mutex_);
        if (rank_ != 0 && peers_[0].left) return std::nullopt;  // in order, and the store with it
        if (rank_ != 0) tell_launcher(environment_, "lost 0");
        return cat("rank 0 is gone: the ranks' store at ", place_, " does not answer; seen by rank ", rank_, " at ",
                   what_);
    }
    const std::lock_guard lock(mutex_);
    for (auto& [rank, peer] : peers_) {
        if (peer.left) continue;
        if (auto lost = read_peer(rank, peer, std::move(signs[static_cast<std::size_t>(rank)]))) return lost;
    }
    return overdue();
}

/// Empty when this rank has announced its failure.
std::string Monitor::own_sign() {
    const std::lock_guard lock(mutex_);
    if (announced_) return "";
    return cat(alive, "\n", host_, "\n", number_, "\n", one_line(what_), "\n", one_line(busy_), "\n", ++beats_);
}

std::optional<std::string> Monitor::read_peer(int rank, Peer& peer, std::string sign) {
    const auto now = Clock::now();
    if (sign == peer.sign) {
        const auto silent = std::chrono::duration_cast<seconds>(now - peer.changed);
        if (silent < lost_after_) return std::nullopt;
        tell_launcher(environment_, cat("lost ", rank));
        return cat("rank ", rank, " (", peer.host, ") gives no sign of life for ", silent.count(),
                   " s: it ended or was stopped; it was last seen at ", peer.what, "; seen by rank ", rank_, " at ",
                   what_);
    }
    peer.sign = std::move(sign);
    peer.changed = now;
    std::istringstream lines(peer.sign);
    const auto line = [&] {
        std::string text;
        std::getline(lines, text);
        return one_line(std::move(text));
    };
    const std::string state = line();
    peer.left = state == left;
    if (peer.left) return std::nullopt;
    peer.host = line();
    peer_said_why_ = state == failed;
    if (peer_said_why_) return cat("rank ", rank, " (", peer.host, ") failed: ", line());
    peer.number = std::atoll(line().c_str());
    peer.what = line();
    const std::string busy = line();
    if (busy != peer.busy) peer.said = now;
    peer.busy = busy;
    return std::nullopt;
}

/// The mutex is held.
std::optional<std::string> Monitor::overdue() {
    while (!pending_.empty() && pending_.front().done()) {
        pending_.pop_front();
        if (!pending_.empty()) pending_.front().since = Clock::now();  // what is queued behind had no chance before
    }
    if (pending_.empty()) return std::nullopt;
    Pending& oldest = pending_.front();
    for (auto& [rank, peer] : peers_)
        if (busy_locked(rank, peer, oldest.number)) oldest.since = Clock::now();
    if (Clock::now() - oldest.since < timeout_) return std::nullopt;
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
