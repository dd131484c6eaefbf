// A thread that sees when ranks are gone or stuck, so that no rank waits for them without a word.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <thread>

#include "comm/store_client.h"
#include "unsloth/core/error_id.h"

namespace unsloth::comm {

/// What another rank wrote, for messages: printable(), on one line, and 500 bytes of it are enough.
std::string one_line(std::string text);

/// Every rank writes a heartbeat to the ranks' store every few seconds, with what it is on its way to and what it is
/// busy with, and reads the others'. A rank is lost when its heartbeat does not change for 12 s (or a shorter timeout),
/// when it says that it failed, and when the rest waits for it at a collective longer than the timeout while it
/// is not busy with anything that it names. Time in which this process was suspended does not count (AwakeClock), and
/// afterwards the others have their whole time again. When a rank is lost check() throws, and the release hook ends
/// what blocks the main thread (NCCL's kernels wait for ever otherwise). A process that the rank owns ends within 10 s
/// (or the timeout) with the message and exit code 4, whatever its threads do; where a rank says that it failed, within
/// five minutes: a checkpoint may be completed. The monitor has a connection of its own, because the main thread's may
/// be in use, and asks the device in a thread of its own, because a driver may not answer.
class Monitor {
  public:
    /// All ranks must have met at the store. StoreGone when it does not answer.
    Monitor(const LaunchEnvironment& environment, const Rendezvous& rendezvous, std::chrono::seconds timeout);
    /// Tells the others that this rank leaves in order, unless it failed before.
    ~Monitor();
    Monitor(const Monitor&) = delete;
    Monitor& operator=(const Monitor&) = delete;

    /// This rank begins the next collective. `done`, where the collective runs on after the call: whether it has ended;
    /// called, and destroyed, by a thread of the monitor's.
    void begin(const std::string& what, std::function<bool()> done = nullptr);
    /// The same of a message between two ranks, which is no collective: the others do not count it.
    void begin_message(const std::string& what, std::function<bool()> done = nullptr);
    /// What this rank does from now on that may take long ("" : nothing); what it did until now.
    std::string set_busy(std::string what);
    /// Whether a rank that has not come yet to the collective that this one is at is busy.
    bool busy(int rank);
    /// Whether a rank that this one waits for a message of is busy before its next collective.
    bool busy_before_next(int rank);
    /// runtime Error when a rank is lost.
    void check();
    /// This rank waited for another in vain: as if the monitor had found it lost, with this message.
    void lose(const std::string& message);
    /// Tells the others that this rank ends by an error; the reason is known to all of them then.
    void announce(const std::string& error) noexcept;
    /// Called once, by a thread of the monitor's, when a rank is lost or this one has announced an error; nullptr:
    /// nothing any more (returns when no call is running).
    void on_failure(std::function<void()> release);

  private:
    /// What is known of another rank.
    struct Peer {
        std::string sign, host, what, busy;
        int64_t number = 0;
        Clock::time_point changed;
        Clock::time_point said;  ///< when its being busy was last logged
        bool left = false;
    };
    struct Pending {
        std::string what;
        int64_t number;
        Clock::time_point since;
        std::function<bool()> done;
    };

    /// `lost`: a rank does not answer any more, and calls that wait for it may never return.
    struct Failure {
        std::string message;
        bool lost = true;
        bool said_why = false;  ///< it is a rank's own error, whose output has the advice
        ErrorId id = "rank.failed";
    };

    void watch();
    void release();
    void ask();
    void forgive();
    std::optional<Failure> look();
    std::string own_sign();
    std::optional<Failure> read_peer(int rank, Peer& peer, std::string sign);
    std::optional<Failure> overdue();
    bool busy_locked(int rank, Peer& peer, int64_t number);
    void end_within(const Failure& failure) const;

    const LaunchEnvironment environment_;
    const int rank_, size_;
    const std::string place_, host_;
    const std::chrono::seconds timeout_, lost_after_, end_after_;
    const milliseconds pause_;  ///< between two looks
    StoreClient client_;
    std::mutex sign_mutex_;  ///< held while a sign is made and sent: that of a failure is the last
    std::mutex mutex_;       ///< guards what follows
    std::condition_variable wake_;
    bool ends_ = false;
    uint64_t beats_ = 0;
    int64_t number_ = 0;  ///< collectives begun
    std::string what_ = "the start", busy_;
    std::deque<Pending> pending_;
    std::optional<Failure> failure_;
    std::string announcement_;        ///< the sign of this rank's own error
    bool failure_published_ = false;  ///< the others can read it
    std::map<int, Peer> peers_;
    int64_t suspensions_ = Clock::suspensions();  ///< of the watching thread
    std::mutex release_mutex_;                    ///< held while the hook is called
    std::function<void()> release_;
    std::thread watching_, asking_, releasing_;
};

}  // namespace unsloth::comm
