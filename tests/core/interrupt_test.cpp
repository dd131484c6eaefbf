#include "unsloth/core/interrupt.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace unsloth {
namespace {

// Each case runs in a child process, so that handlers and remembered signals do not leak into other tests.
void stop_once(int signal) {
    std::signal(signal, SIG_DFL);  // whoever runs the tests may ignore it
    install_interrupt_handlers();
    if (interrupt_requested() != 0) std::_Exit(1);
    std::raise(signal);
    std::_Exit(interrupt_requested() == signal ? 42 : 2);
}

void stop_twice(int first, int second) {
    install_interrupt_handlers();
    std::raise(first);
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    std::raise(second);
    std::_Exit(3);  // not reached
}

void sent_to_process_and_group(int signal) {
    install_interrupt_handlers();
    std::raise(signal);
    std::raise(signal);
    std::_Exit(interrupt_requested() == signal ? 42 : 2);
}

void hung_up_under_nohup() {
    std::signal(SIGHUP, SIG_IGN);
    install_interrupt_handlers();
    std::raise(SIGHUP);
    std::_Exit(interrupt_requested() == 0 ? 42 : 2);
}

// As when a terminal is closed: what reads our output through a pipe is gone too.
void hung_up_without_a_reader() {
    int ends[2];
    if (::pipe(ends) != 0) std::_Exit(1);
    ::close(ends[0]);
    std::signal(SIGHUP, SIG_DFL);
    std::signal(SIGPIPE, SIG_DFL);
    install_interrupt_handlers();
    std::raise(SIGHUP);
    const bool refused = ::write(ends[1], "x", 1) < 0;
    std::_Exit(refused && interrupt_requested() == SIGHUP ? 42 : 2);
}

TEST(InterruptDeathTest, AHangUpIsASignalToSaveUnlessItIsIgnored) {
    EXPECT_EXIT(stop_once(SIGHUP), ::testing::ExitedWithCode(42), "Stopping after this step");
    EXPECT_EXIT(hung_up_under_nohup(), ::testing::ExitedWithCode(42), "");
    EXPECT_EXIT(hung_up_without_a_reader(), ::testing::ExitedWithCode(42), "");
}

TEST(InterruptDeathTest, TheFirstSignalIsRemembered) {
    EXPECT_EXIT(stop_once(SIGINT), ::testing::ExitedWithCode(42), "Stopping after this step");
    EXPECT_EXIT(stop_once(SIGTERM), ::testing::ExitedWithCode(42), "Stopping after this step");
}

TEST(InterruptDeathTest, TheSecondSignalEndsTheProcess) {
    EXPECT_EXIT(stop_twice(SIGINT, SIGINT), ::testing::ExitedWithCode(130), "");
    EXPECT_EXIT(stop_twice(SIGINT, SIGTERM), ::testing::ExitedWithCode(143), "");
}

TEST(InterruptDeathTest, TheSameSignalTwiceAtOnceIsOneRequest) {
    EXPECT_EXIT(sent_to_process_and_group(SIGTERM), ::testing::ExitedWithCode(42), "Stopping after this step");
}

TEST(InterruptDeathTest, AnotherSignalAtOnceIsASecondRequest) {
    EXPECT_EXIT((install_interrupt_handlers(), std::raise(SIGTERM), std::raise(SIGINT)), ::testing::ExitedWithCode(130),
                "");
}

TEST(Interrupted, CarriesTheShellsExitCode) {
    EXPECT_EQ(Interrupted(SIGINT, "saved").exit_code(), 130);
    EXPECT_EQ(Interrupted(SIGTERM, "saved").exit_code(), 143);
    EXPECT_EQ(Interrupted(SIGHUP, "saved").exit_code(), 129);
    EXPECT_STREQ(Interrupted(SIGTERM, "saved").what(), "saved");
}

}  // namespace
}  // namespace unsloth
