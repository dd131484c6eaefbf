// A thread that sees when ranks are gone or stuck, so that no rank waits for them without a word.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <thread>

#include "comm/store_client.h"

namespace unsloth::comm {

/// What another rank wrote, for messages: printable(), on one line, and 500 bytes of it are enough.
std::string one_line(std::string text);

/// Every rank leaves a sign of life in the ranks' store every few seconds, with what it is on its way to and what it is
/// busy with, and reads the others'. A rank is lost when its sign stands still for 12 s (or the timeout, if that is
/// less), when it says that it failed, and when the rest waits for it at a collective longer than the timeout while it
/// is not busy with anything that it names. Then check() throws, the release hook ends what blocks the main thread
/// (NCCL's kernels wait for ever otherwise), and if the main thread does not come to check() within 20 s the process
/// ends with the message and exit code 4. The thread has a connection of its own: the main thread's may be in use.
class Monitor {
  public:
    /// All ranks must have met at the store. StoreGone when it does not answer.
    Monitor(const LaunchEnvironment& environment, const Meeting& meeting, std::chrono::seconds timeout);
    /// Tells the others that this rank leaves in order, unless it failed before.
    ~Monitor();
    Monitor(const Monitor&) = delete;
    Monitor& operator=(const Monitor&) = delete;

    /// This rank begins the next collective. `done`, where the collective goes on after the call: whether it has ended;
    /// called by the monitor's thread.
    void begin(const std::string& what, std::function<bool()> done = nullptr);
    /// The same of a message between two ranks, which is no collective: the others do not count it.
    void begin_message(const std::string& what, std::function<bool()> done = nullptr);
    /// Returns when the monitor will not ask again those that are done.
    void forget_done();
    /// What this rank does from now on that may take long ("" : nothing); what it did until now.
    std::string set_busy(std::string what);
    /// Whether a rank that has not come yet to the collective that this one is at is busy.
    bool busy(int rank);
    /// Whether a rank that this one waits for a message of is busy before its next collective.
    bool busy_before_next(int rank);
    /// runtime Error when a rank is lost.
    void check();
    /// Tells the others that this rank ends by an error; the reason is known to all of them then.
    void announce(const std::string& error) noexcept;
    /// Called once, by a thread of the monitor's, when a rank is lost; nullptr: nothing any more (returns when no call
    /// is under way).
    void on_failure(std::function<void()> release);

  private:
    /// What is known of another rank.
    struct Peer {
        std::string sign, host, what, busy;
        int64_t number = 0;
        Clock::time_point changed;
        Clock::time_point said;  ///< when its being busy was last told
        bool left = false;
    };
    struct Pending {
        std::string what;
        int64_t number;
        Clock::time_point since;
        std::function<bool()> done;
    };

    void watch();
    std::optional<std::string> look();
    std::string own_sign();
    std::optional<std::string> read_peer(int rank, Peer& peer, std::string sign);
    std::optional<std::string> overdue();
    bool busy_locked(int rank, Peer& peer, int64_t number);
    void end_by(const std::string& message, std::unique_lock<std::mutex>& lock);

    const LaunchEnvironment environment_;
    const int rank_, size_;
    const std::string place_, host_;
    const std::chrono::seconds timeout_, lost_after_;
    StoreClient client_;
    std::mutex sign_mutex_;  ///< held while a sign is made and sent: that of a failure is the last
    std::mutex mutex_;       ///< guards what follows
    std::condition_variable wake_;
    bool ends_ = false;
    uint64_t beats_ = 0;
    int64_t number_ = 0;  ///< collectives begun
    std::string what_ = "the start", busy_;
    std::deque<Pending> pending_;
    std::optional<std::string> failure_;
    bool peer_said_why_ = false;  ///< failure_ is an error of a rank, whose own message has the advice
    bool said_ = false;           ///< the main thread has seen the failure
    bool announced_ = false;
    std::map<int, Peer> peers_;
    std::mutex release_mutex_;  ///< held while the hook is called
    std::function<void()> release_;
    std::thread thread_;
};

}  // namespace unsloth::comm
