// A thread that sees when ranks are gone or stuck, so that no rank waits for them without a word.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "unsloth/comm/launch.h"

namespace unsloth::comm {

/// Every rank writes a sign of life into the ranks' store every few seconds, with what it is on its way to, and reads
/// the others'. A rank is lost when its sign stands still for 12 s (or the timeout, if that is less), when it says that
/// it failed, and when the rest waits for a collective longer than the timeout. Then check() throws, the release hook
/// ends what blocks the main thread (NCCL's kernels wait for ever otherwise), and if the main thread does not come to
/// check() within 20 s the process ends with the message and exit code 4, as it does when the store itself does not
/// answer. The thread has a connection of its own: the main thread's may be blocked.
class Monitor {
  public:
    /// All ranks must have met at the store. runtime Error when it does not answer.
    Monitor(const LaunchEnvironment& environment, std::chrono::seconds timeout);
    /// Tells the others that this rank leaves in order, unless it failed before.
    ~Monitor();
    Monitor(const Monitor&) = delete;
    Monitor& operator=(const Monitor&) = delete;

    /// This rank begins the next collective. `done`, where the collective goes on after the call: whether it has ended;
    /// called by the monitor's thread.
    void begin(const std::string& what, std::function<bool()> done = nullptr);
    /// runtime Error when a rank is lost.
    void check();
    /// Tells the others that this rank ends by an error; the reason is known to all of them then.
    void announce(const std::string& error) noexcept;
    /// Called once, by the monitor's thread, when a rank is lost; nullptr: nothing any more (returns when no call is
    /// under way).
    void on_failure(std::function<void()> release);

  private:
    using Clock = std::chrono::steady_clock;
    /// What is known of another rank.
    struct Peer {
        std::string sign, host, what;
        int64_t number = 0;
        Clock::time_point changed;
        bool left = false;
    };
    struct Pending {
        std::string what;
        int64_t number;
        Clock::time_point since;
        std::function<bool()> done;
    };

    void watch();
    void supervise();
    std::optional<std::string> look();
    void beat();
    std::optional<std::string> read_peers();
    std::optional<std::string> overdue();
    void fail(const std::string& message);

    const int rank_, size_;
    const std::string place_, host_;
    const std::chrono::seconds timeout_, lost_after_;
    c10::intrusive_ptr<c10d::Store> store_;
    std::mutex mutex_;  ///< guards what follows
    std::condition_variable wake_;
    bool ends_ = false;
    uint64_t beats_ = 0;
    int64_t number_ = 0;  ///< collectives begun
    std::string what_ = "the start";
    std::deque<Pending> pending_;
    std::optional<std::string> failure_;
    bool said_ = false;  ///< the main thread has seen the failure
    bool announced_ = false;
    std::function<void()> release_;
    std::map<int, Peer> peers_;                ///< of the monitor's thread alone
    std::optional<Clock::time_point> looked_;  ///< when watch() last came back from the store; nullopt: it asks no more
    std::thread thread_, supervisor_;
};

}  // namespace unsloth::comm
