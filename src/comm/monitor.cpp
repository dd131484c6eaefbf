#include "comm/monitor.h"

#include <sys/prctl.h>

#include <algorithm>
#include <sstream>

#include "unsloth/core/awake_clock.h"
#include "unsloth/core/error.h"
#include "unsloth/core/host.h"
#include "unsloth/core/log.h"
#include "unsloth/core/utf8.h"

namespace unsloth::comm {
namespace {

using std::chrono::seconds;

constexpr seconds silence_allowed(12), end_allowed(10), orderly_end_allowed(300);
// States of a rank; the last: it ends because another was lost.
constexpr const char *alive = "alive", *left = "left", *failed = "failed", *lost_another = "lost another";

}  // namespace

std::string one_line(std::string text) {
    constexpr std::size_t enough = 500;
    if (text.size() > enough) text.resize(enough);
    std::replace(text.begin(), text.end(), '\n', ' ');
    return printable(text);
}

Monitor::Monitor(const LaunchEnvironment& e, const Rendezvous& rendezvous, seconds timeout)
    : environment_(e),
      rank_(e.rank),
      size_(e.world_size),
      place_(cat(host_of(rendezvous.address), ":", port_of(rendezvous.address))),
      host_(host_name()),
      timeout_(timeout),
      lost_after_(std::min(timeout, silence_allowed)),
      end_after_(std::min(timeout, end_allowed)),
      pause_(std::max(std::chrono::duration_cast<milliseconds>(lost_after_) / 8, milliseconds(200))),
      client_(rendezvous, Clock::now() + timeout) {
    client_.set_patience(lost_after_);  // a store whose process was stopped takes what we send and answers nothing
    const auto now = Clock::now();
    for (int r = 0; r < size_; ++r)
        if (r != rank_) peers_[r].changed = peers_[r].said = now;
    client_.signs(own_sign());
    if (environment_.owns_process) prepare_end_of_process();
    watching_ = std::thread([this] { watch(); });
    asking_ = std::thread([this] { ask(); });
}

Monitor::~Monitor() {
    {
        const std::lock_guard lock(mutex_);
        ends_ = true;
    }
    wake_.notify_all();
    watching_.join();
    asking_.join();
    if (releasing_.joinable()) releasing_.join();
    if (!announcement_.empty()) return;
    try {
        client_.signs(failure_ ? cat(failure_->lost ? lost_another : failed, "\n", host_, "\n", failure_->message)
                               : left);
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

/// Logs it now and then, so that no rank waits silently. One of the waiting ranks is enough.
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
    throw Error(failure_->id, failure_->message,
                failure_->said_why ? "That rank's output says what to do."
                                   : "Look at that rank's output. Saved checkpoints are whole; start "
                                     "again with resume_from_checkpoint auto.");
}

void Monitor::lose(const std::string& message) {
    {
        const std::lock_guard lock(mutex_);
        if (failure_ || !announcement_.empty()) return;
        failure_ = Failure{message};
        end_within(*failure_);
    }
    wake_.notify_all();
}

void Monitor::announce(const std::string& error) noexcept {
    try {
        {
            const std::lock_guard lock(mutex_);
            if (failure_ || !announcement_.empty()) return;
            announcement_ = cat(failed, "\n", host_, "\n", error.substr(0, error.find('\n')));
            end_within({error, /*lost=*/false});
        }
        const std::lock_guard signing(sign_mutex_);
        client_.signs(own_sign());
    } catch (...) {
        // The store is gone: the others see that for themselves.
    }
    {
        const std::lock_guard lock(mutex_);
        failure_published_ = true;
    }
    wake_.notify_all();
}

void Monitor::on_failure(std::function<void()> release) {
    const std::lock_guard lock(release_mutex_);
    release_ = std::move(release);
}

/// Until a rank is lost. Also one that has announced an error looks: its main thread may wait for a rank that is lost.
void Monitor::watch() {
    ::prctl(PR_SET_NAME, "ranks' monitor");
    std::unique_lock lock(mutex_);
    std::string busy = busy_;
    const auto has_to_release = [&] { return (failure_ || failure_published_) && !releasing_.joinable(); };
    while (!failure_) {
        wake_.wait_for(lock, pause_, [&] { return ends_ || has_to_release() || busy_ != busy; });
        if (ends_) return;
        busy = busy_;
        if (has_to_release()) release();
        if (failure_) return;
        lock.unlock();
        const std::optional<Failure> failure = look();
        lock.lock();
        if (ends_) return;
        if (!failure || failure_) continue;
        end_within(*failure);
        failure_ = failure;
    }
    if (has_to_release()) release();
}

/// On a thread of its own: NCCL's abort may not come back.
void Monitor::release() {
    releasing_ = std::thread([this] {
        const std::lock_guard held(release_mutex_);
        if (release_) release_();
    });
}

/// Whatever blocks: the driver, a destructor, the handlers of exit().
void Monitor::end_within(const Failure& failure) const {
    if (!environment_.owns_process) return;
    const seconds patience = failure.lost ? end_after_ : orderly_end_allowed;
    end_process_within(
        patience, static_cast<int>(ErrorKind::runtime),
        error_line(failure.id, cat(failure.message, "\n  This process did not end by itself within ", patience.count(),
                                   " s: a call to the device or the disk does not return. It is ended.")));
}

/// Asks whether the collectives in flight have ended, without the mutex: while another thread is blocked within the
/// driver, a query may block, too.
void Monitor::ask() {
    ::prctl(PR_SET_NAME, "ranks' asker");
    std::unique_lock lock(mutex_);
    while (!ends_) {
        wake_.wait_for(lock, pause_, [&] { return ends_; });
        while (!ends_ && !pending_.empty()) {
            const std::function<bool()>& done = pending_.front().done;  // it stays where it is while others are added
            lock.unlock();
            const bool ended = done();
            lock.lock();
            if (!ended) break;
            std::optional<Pending> gone(std::move(pending_.front()));
            pending_.pop_front();
            if (!pending_.empty()) pending_.front().since = Clock::now();  // what is queued next had no chance before
            lock.unlock();
            gone.reset();
            lock.lock();
        }
    }
}

/// After this process was suspended the others may continue a little later.
void Monitor::forgive() {
    const int64_t suspensions = Clock::suspensions();
    if (suspensions == suspensions_) return;
    suspensions_ = suspensions;
    const std::lock_guard lock(mutex_);
    for (auto& [rank, peer] : peers_) peer.changed = Clock::now();
    if (!pending_.empty()) pending_.front().since = Clock::now();
}

/// What went wrong, if something did.
std::optional<Monitor::Failure> Monitor::look() {
    std::vector<std::string> signs;
    try {
        const std::lock_guard signing(sign_mutex_);
        signs = client_.signs(own_sign());
    } catch (const std::exception& error) {
        log::debug("the ranks' store: ", error.what());
        const std::lock_guard lock(mutex_);
        if (rank_ != 0 && peers_[0].left) return std::nullopt;  // in order, and the store with it
        if (rank_ != 0) tell_launcher(environment_, "lost 0");
        return Failure{cat("rank 0 is gone: the ranks' store at ", place_, " does not answer; seen by rank ", rank_,
                           " at ", what_)};
    }
    forgive();
    const std::lock_guard lock(mutex_);
    for (auto& [rank, peer] : peers_) {
        if (peer.left) continue;
        if (auto lost = read_peer(rank, peer, std::move(signs[static_cast<std::size_t>(rank)]))) return lost;
    }
    return overdue();
}

std::string Monitor::own_sign() {
    const std::lock_guard lock(mutex_);
    if (!announcement_.empty()) return announcement_;
    return cat(alive, "\n", host_, "\n", number_, "\n", one_line(what_), "\n", one_line(busy_), "\n", ++beats_);
}

std::optional<Monitor::Failure> Monitor::read_peer(int rank, Peer& peer, std::string sign) {
    const auto now = Clock::now();
    if (sign == peer.sign) {
        const auto silent = std::chrono::duration_cast<seconds>(now - peer.changed);
        if (silent < lost_after_) return std::nullopt;
        tell_launcher(environment_, cat("lost ", rank));
        return Failure{cat("rank ", rank, " (", peer.host, ") has sent no heartbeat for ", silent.count(),
                           " s: it ended or was stopped; it was last seen at ", peer.what, "; seen by rank ", rank_,
                           " at ", what_)};
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
    if (state == failed || state == lost_another)
        return Failure{cat("rank ", rank, " (", peer.host, ") failed: ", line()), state == lost_another,
                       /*said_why=*/state == failed};
    peer.number = std::atoll(line().c_str());
    peer.what = line();
    const std::string busy = line();
    if (busy != peer.busy) peer.said = now;
    peer.busy = busy;
    return std::nullopt;
}

/// The mutex is held. What has ended may be known two pauses later.
std::optional<Monitor::Failure> Monitor::overdue() {
    if (pending_.empty()) return std::nullopt;
    Pending& oldest = pending_.front();
    for (auto& [rank, peer] : peers_)
        if (busy_locked(rank, peer, oldest.number)) oldest.since = Clock::now();
    if (Clock::now() - oldest.since < timeout_ + 2 * pause_) return std::nullopt;
    std::string late;
    for (const auto& [rank, peer] : peers_)
        if (peer.left || peer.number < oldest.number)
            late += cat(late.empty() ? "" : ", ", "rank ", rank, " (", peer.host, ", ",
                        peer.left ? "has left" : cat("still at ", peer.what), ")");
    Failure overdue{cat(oldest.what, " takes longer than ", timeout_.count(), " s (distributed.ddp_timeout): ",
                        late.empty() ? "all ranks came, and the network does not finish it" : cat("waiting for ", late),
                        "; seen by rank ", rank_)};
    overdue.id = "rank.late";
    return overdue;
}

}  // namespace unsloth::comm
