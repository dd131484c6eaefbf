// The supervisor's deadlines, with shells in the ranks' place that end by nothing but SIGKILL.
#include "app/launch/supervisor.h"

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "app/launch/environment.h"
#include "unsloth/core/error.h"

namespace unsloth::app {
namespace {

using std::chrono::milliseconds, std::chrono::seconds;

constexpr auto soon = seconds(20);  // on a busy machine; no deadline of a test is that long
const std::string deaf = "trap '' TERM INT HUP; ready; while :; do sleep 1; done", stopped = "ready; kill -STOP $$";

/// Ranks that run these scripts, and have all called `ready`, under a supervisor whose words come through a pipe.
struct Supervised {
    explicit Supervised(SupervisorOptions options, const std::vector<std::string>& scripts)
        : supervisor(options, inbox, out, err) {
        const Pipe ready = make_pipe();
        const std::string function = cat("ready() { echo > /dev/fd/", ready.write.get(), "; }; ");
        for (const std::string& script : scripts) {
            const Program program{"/bin/sh", {"sh", "-c", function + script}, own_environment(), {ready.write.get()}};
            RunningProcess process = start_process(program, Output::piped, inbox.before());
            pids.push_back(process.pid);
            supervisor.add(static_cast<int>(pids.size()) - 1, std::move(process), "", /*shown=*/true);
        }
        for (char line = 0; const pid_t pid : pids)
            if (::read(ready.read.get(), &line, 1) != 1) ADD_FAILURE() << pid << " does not begin";
        supervisor.listen(std::move(told.read));
    }
    ~Supervised() {
        for (const pid_t pid : pids) ::kill(-pid, SIGKILL);
    }
    /// As a rank does it.
    void tell(const std::string& line) const {
        ASSERT_EQ(::write(told.write.get(), (line + "\n").data(), line.size() + 1),
                  static_cast<ssize_t>(line.size() + 1));
    }
    std::vector<RankEnd> run() {
        const auto begin = Supervisor::Clock::now();
        const std::vector<RankEnd> ends = supervisor.run();
        EXPECT_LT(Supervisor::Clock::now() - begin, soon);
        return ends;
    }
    std::string said() const {
        std::string text(1 << 16, '\0');
        const ssize_t got = ::read(words.read.get(), text.data(), text.size());
        text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
        return text;
    }

    SignalInbox inbox;
    Pipe told = make_pipe(), words = make_pipe();
    Outlet out{words.write.get()}, err{words.write.get()};
    Supervisor supervisor;
    std::vector<pid_t> pids;
};

TEST(Supervisor, ALostRankIsKilledAndTheOthersHaveADeadline) {
    for (const int lost : {1, 7}) {  // 7: of another machine
        Supervised ranks({.grace = seconds(1000), .after_loss = milliseconds(300)}, {deaf, deaf});
        ranks.tell("step");
        ranks.tell(cat("lost ", lost));
        const std::vector<RankEnd> ends = ranks.run();
        ASSERT_EQ(ends.size(), 2U);
        for (const RankEnd& end : ends) EXPECT_EQ(end.signal, SIGKILL);
        EXPECT_EQ(exit_code(ends, 0), static_cast<int>(ErrorKind::runtime));
        if (lost == 1) {
            EXPECT_NE(ranks.said().find(cat("rank 1 (pid ", ranks.pids[1], ") sends no heartbeat")), std::string::npos);
            EXPECT_TRUE(summary(ends, 0).starts_with(cat("rank 1 (pid ", ranks.pids[1], ") was stuck")))
                << summary(ends, 0);
        }
    }
}

TEST(Supervisor, AfterTheFirstRequestRanksHaveADeadline) {
    Supervised ranks({.until_stopped = milliseconds(300)}, {deaf, stopped, deaf});
    siginfo_t state{};  // a request that comes before the rank has stopped itself would end it
    ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(ranks.pids[1]), &state, WSTOPPED | WEXITED | WNOWAIT), 0);
    ASSERT_EQ(state.si_code, CLD_STOPPED);
    ranks.tell("step");
    ::kill(::getpid(), SIGTERM);
    const std::vector<RankEnd> ends = ranks.run();
    ASSERT_EQ(ends.size(), 3U);
    for (const RankEnd& end : ends) EXPECT_EQ(end.signal, SIGKILL);
    EXPECT_EQ(exit_code(ends, ranks.supervisor.asked_to_stop()), 128 + SIGTERM);
    EXPECT_NE(ranks.said().find("stop in order within 0.3 s, or are killed"), std::string::npos);
}

TEST(Supervisor, AFailureAfterARequestDoesNotPutOffTheDeadline) {
    Supervised ranks({.grace = seconds(1000), .until_stopped = milliseconds(300)},
                     // `wait` ends with the signal; a foreground `sleep` forked meanwhile would outlast the deadline.
                     {deaf, "trap 'exit 4' TERM; sleep 1000 > /dev/null 2>&1 & ready; wait"});
    ranks.tell("step");
    ::kill(::getpid(), SIGTERM);
    EXPECT_EQ(exit_code(ranks.run(), SIGTERM), static_cast<int>(ErrorKind::runtime));
}

/// A process that a tracer holds at its exit does not end by SIGKILL, as one in a driver's call does not.
class HeldAtExit {
  public:
    explicit HeldAtExit(pid_t pid) : pid_(pid) {
        Pipe answer = make_pipe();
        tracer_ = ::fork();
        if (tracer_ == 0) {
            const char traced = ::ptrace(PTRACE_SEIZE, pid, nullptr, PTRACE_O_TRACEEXIT) == 0 ? 'y' : 'n';
            if (::write(answer.write.get(), &traced, 1) == 1)
                for (;;) ::pause();
            ::_exit(1);
        }
        char traced = 'n';
        traced_ = ::read(answer.read.get(), &traced, 1) == 1 && traced == 'y';
    }
    bool traced() const { return traced_; }
    ~HeldAtExit() {
        ::kill(tracer_, SIGKILL);
        ::waitpid(tracer_, nullptr, 0);
        ::kill(-pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }

  private:
    pid_t pid_, tracer_ = 0;
    bool traced_ = false;
};

TEST(Supervisor, ARankThatSIGKILLDoesNotEndIsNamedAndLeft) {
    Supervised ranks({.until_stopped = milliseconds(100), .until_left = milliseconds(300)}, {deaf});
    const HeldAtExit held(ranks.pids[0]);
    if (!held.traced()) GTEST_SKIP() << "ptrace is not allowed here";
    ranks.tell("step");
    ::kill(::getpid(), SIGTERM);
    const std::vector<RankEnd> ends = ranks.run();
    ASSERT_EQ(ends.size(), 1U);
    EXPECT_TRUE(ranks.supervisor.left_one());
    EXPECT_NE(ranks.said().find(cat("rank 0 (pid ", ranks.pids[0], ") does not end, not even by SIGKILL")),
              std::string::npos);
    EXPECT_EQ(exit_code(ends, SIGTERM), static_cast<int>(ErrorKind::runtime));
}

}  // namespace
}  // namespace unsloth::app
