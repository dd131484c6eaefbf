// Watching the ranks of one machine from their start to the end of the last: output, signals, deadlines.
#pragma once

#include <signal.h>

#include <chrono>
#include <deque>
#include <string>
#include <vector>

#include "app/launch/lines.h"
#include "app/launch/outcome.h"
#include "app/launch/outlet.h"
#include "app/launch/process.h"

namespace unsloth::app {

/// The signals that concern the launcher come as data while this lives; SIGPIPE is ignored. Afterwards all is as
/// before. To be made before any other thread: those that are there already would take signals, too.
class SignalInbox {
  public:
    SignalInbox();
    ~SignalInbox();
    SignalInbox(const SignalInbox&) = delete;
    SignalInbox& operator=(const SignalInbox&) = delete;

    int fd() const { return fd_.get(); }
    /// The next one, or 0.
    int take();
    /// The mask from before, for the ranks.
    const sigset_t& before() const { return before_; }

  private:
    sigset_t before_{};
    struct sigaction pipe_before_{}, child_before_{};
    Descriptor fd_;
};

struct SupervisorOptions {
    std::chrono::milliseconds grace{30000};       ///< from the first failure to SIGTERM for the others
    std::chrono::milliseconds until_kill{10000};  ///< from there to SIGKILL
    /// Both, as long as the ranks have done no step: there is nothing to save.
    std::chrono::milliseconds early_grace{1500};
    /// From the first request to stop to SIGKILL: for the current step, and for saving.
    std::chrono::milliseconds until_stopped{49000};
    /// From the loss of a rank to SIGKILL for the others, which end by themselves before (comm/monitor.h).
    std::chrono::milliseconds after_loss{12000};
    /// From SIGKILL to the launcher's own end: a process that waits within the kernel does not end by it.
    std::chrono::milliseconds until_left{3000};
};

class Supervisor {
  public:
    using Clock = AwakeClock;
    /// `out` and `err` may be the same object, and must be where both descriptors are one file.
    Supervisor(SupervisorOptions options, SignalInbox& inbox, Outlet& out, Outlet& err)
        : options_(options), inbox_(inbox), out_(out), err_(err) {}

    /// A rank that start_process() has started. `shown`: its lines go out with `prefix`; otherwise the last of stderr
    /// are kept.
    void add(int rank, RunningProcess process, const std::string& prefix, bool shown);
    /// The end of a pipe into which the ranks write lines: "step" after the first one, "lost N" when rank N sends no
    /// heartbeats. Without it, steps are assumed to run from the start.
    void listen(Descriptor ranks);
    /// Until all ranks have ended, or do not end even by SIGKILL. May be called again after further add()s.
    std::vector<RankEnd> run();
    /// Ends the ranks that were added, at once: another could not be started.
    void kill_all();

    /// The signal that asked the launcher to stop (the second one, where there were two); 0: none.
    int asked_to_stop() const { return asked_; }
    /// Whether a rank did not end by SIGKILL, and may still hold its GPU.
    bool left_one() const { return left_one_; }
    /// The last lines that a rank of the latest run() wrote to stderr unseen.
    std::string unseen(int rank) const;
    /// A line of the launcher's own on stderr.
    void say(const std::string& text);

  private:
    struct Stream {
        Descriptor from;
        LineCutter cutter;
        Outlet* to;
    };
    struct Rank {
        int number;
        pid_t pid;
        /// `orphans`: a shell in front of the program died of the request to stop; the program is still at it.
        enum class State { running, orphans, ended } state = State::running;
        bool shown = true;
        bool lost = false;  ///< as the others say; killed
        std::vector<Stream> streams;
        LastLines unseen{40};
    };

    void wait_for_events(Clock::time_point until);
    void read_stream(Rank& rank, Stream& stream);
    void read_reports();
    void hear(const std::string& line);
    void end_lost(int number);
    void handle_signals();
    void handle_request(int signal);
    void suspend();
    void bury();
    void note_end(Rank& rank, RankEnd end);
    void enforce_deadlines();
    void kill_ranks();
    void leave_ranks();
    void signal_ranks(int signal);
    bool any(Rank::State state) const;
    bool any_left() const { return any(Rank::State::running) || any(Rank::State::orphans); }
    bool any_stream() const;
    int milliseconds_to(Clock::time_point until) const;

    SupervisorOptions options_;
    SignalInbox& inbox_;
    Outlet &out_, &err_;
    std::deque<Rank> ranks_;
    Descriptor reports_;
    std::string heard_;     ///< of a line that is not whole yet
    bool stepping_ = true;  ///< a rank has done a step, as far as is known
    std::vector<RankEnd> ends_;
    Clock::time_point asked_at_;
    int asked_ = 0;
    bool leaving_ = false;  ///< asked twice
    /// What comes to the ranks that are left, and when; never: max().
    struct Deadlines {
        static constexpr auto never = Clock::time_point::max();
        Clock::time_point terminate = never, kill = never, leave = never;
    } deadlines_;
    bool failed_ = false, lost_ = false;        ///< a rank, which the others follow
    bool terminated_ = false, killed_ = false;  ///< those that were left then
    bool left_one_ = false;
};

}  // namespace unsloth::app
