#include "unsloth/core/awake_clock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <thread>

namespace unsloth {
namespace {

using std::chrono::milliseconds, std::chrono::seconds, std::chrono::steady_clock;

// Each case runs in a process of its own, which is suspended, or ends.

/// Neither the clock nor a deadline counts the time.
void be_suspended() {
    end_process_within(milliseconds(2400), 4, "");
    const auto begin = AwakeClock::now();
    const auto truly = steady_clock::now();
    const pid_t own = ::getpid();
    if (::fork() == 0) {
        std::this_thread::sleep_for(milliseconds(2500));
        ::kill(own, SIGCONT);
        ::_exit(0);
    }
    ::kill(own, SIGSTOP);
    std::this_thread::sleep_for(milliseconds(300));
    if (steady_clock::now() - truly < milliseconds(2500)) std::_Exit(1);
    if (AwakeClock::now() - begin > milliseconds(2000)) std::_Exit(2);
    std::_Exit(AwakeClock::suspensions() == 1 ? 42 : 3);
}

void look_at_clocks_while_nobody_reads_them() {
    const auto begin = AwakeClock::now();
    std::this_thread::sleep_for(milliseconds(2500));
    std::_Exit(AwakeClock::now() - begin >= milliseconds(2500) && AwakeClock::suspensions() == 0 ? 42 : 1);
}

void hang() {
    end_process_within(seconds(1000), 5, "too late");
    end_process_within(milliseconds(50), 4, "error: a rank\x1b is gone\nReally.");
    end_process_within(milliseconds(500), 6, "later");
    for (;;) ::pause();
}

void hang_at_exit() {
    static_cast<void>(std::atexit([] { hang(); }));
    std::exit(0);
}

void hang_before_a_reader_that_does_not_read() {
    int ends[2];
    if (::pipe(ends) != 0 || ::fcntl(ends[1], F_SETFL, O_NONBLOCK) != 0) std::_Exit(1);
    while (::write(ends[1], "x", 1) == 1) {
    }
    if (::fcntl(ends[1], F_SETFL, 0) != 0 || ::dup2(ends[1], STDERR_FILENO) < 0) std::_Exit(1);
    hang();
}

class AwakeClockDeathTest : public testing::Test {
  protected:
    AwakeClockDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(AwakeClockDeathTest, StandsStillWhileTheProcessIsSuspended) {
    EXPECT_EXIT(be_suspended(), testing::ExitedWithCode(42), "");
}

TEST_F(AwakeClockDeathTest, GoesOnWhileNobodyReadsIt) {
    EXPECT_EXIT(look_at_clocks_while_nobody_reads_them(), testing::ExitedWithCode(42), "");
}

TEST_F(AwakeClockDeathTest, AProcessThatHangsEndsAtTheSoonestTime) {
    EXPECT_EXIT(hang(), testing::ExitedWithCode(4), "unsloth-train: error: a rank.* is gone\n  Really.\n");
    EXPECT_EXIT(hang_at_exit(), testing::ExitedWithCode(4), "a rank");
    EXPECT_EXIT(hang_before_a_reader_that_does_not_read(), testing::ExitedWithCode(4), "");
}

}  // namespace
}  // namespace unsloth
