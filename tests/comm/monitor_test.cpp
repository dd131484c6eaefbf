// Two ranks' monitors, each with threads beside the one that trains.
#include "comm/monitor.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "comm/store_server.h"
#include "unsloth/core/error.h"

namespace unsloth::comm {
namespace {

const std::string run_secret = "a secret of sixteen or more";
constexpr std::chrono::seconds timeout(4);

LaunchEnvironment rank_of_two(int rank) {
    LaunchEnvironment environment;
    environment.rank = rank;
    environment.world_size = 2;
    return environment;
}

struct Two {
    Rendezvous rendezvous(uint32_t rank) const { return {loopback(server.port()), rank, 2, 1, run_secret}; }

    StoreServer server{listen_at(0, /*anywhere=*/false), {run_secret, 2, 1, true}};
    Monitor zero{rank_of_two(0), rendezvous(0), timeout}, one{rank_of_two(1), rendezvous(1), timeout};
};

/// False when it does not come true.
template <class Condition>
bool soon(Condition condition) {
    const auto give_up = Clock::now() + 2 * timeout;
    while (!condition() && Clock::now() < give_up) std::this_thread::sleep_for(milliseconds(5));
    return condition();
}

TEST(Monitor, KnowsWhoIsBusyWhileBothWork) {
    std::atomic<int> asked{0};
    Two two;
    const auto work = [&](Monitor& own, int other) {
        for (int step = 0; step < 200; ++step) {
            own.begin(cat("step ", step), [&] { return ++asked > 0; });
            own.set_busy(step % 20 == 0 ? "saving" : "");
            own.busy(other);
            own.check();
            std::this_thread::sleep_for(milliseconds(1));
        }
        own.set_busy("");
    };
    std::thread beside([&] { work(two.one, 0); });
    work(two.zero, 1);
    beside.join();
    EXPECT_TRUE(soon([&] { return asked == 400; })) << "each is asked until it has ended, and no longer";
    EXPECT_TRUE(soon([&] { return !two.zero.busy(1); }));
    EXPECT_EQ(two.one.set_busy("reading"), "");
    two.zero.begin("the next step");
    EXPECT_TRUE(soon([&] { return two.zero.busy(1); }));
    EXPECT_EQ(two.one.set_busy(""), "reading");
    EXPECT_TRUE(soon([&] { return !two.zero.busy(1); }));
}

TEST(Monitor, TellsWhatAnotherRankFailedWith) {
    Two two;
    std::atomic<bool> released{false};
    two.zero.on_failure([&] { released = true; });
    two.one.announce("no\x1b[2J room\nmore");
    std::string said;
    const auto told = [&] {
        try {
            two.zero.check();
        } catch (const Error& error) {
            said = error.what();
        }
        return !said.empty();
    };
    ASSERT_TRUE(soon(told));
    EXPECT_NE(said.find("rank 1 ("), std::string::npos) << said;
    EXPECT_NE(said.find(") failed: no\\u001b[2J room\n"), std::string::npos) << said;
    EXPECT_TRUE(soon([&] { return released.load(); }));
}

TEST(Monitor, ADriverThatDoesNotAnswerHidesNoLoss) {
    std::atomic<bool> answers{false};
    Two two;
    two.zero.begin("a sum", [&] {
        while (!answers) std::this_thread::sleep_for(milliseconds(5));
        return true;
    });
    two.one.announce("a fault");
    EXPECT_TRUE(soon([&] {
        try {
            two.zero.check();
            two.zero.begin("another sum");
        } catch (const Error&) {
            return true;
        }
        return false;
    }));
    answers = true;
}

TEST(Monitor, TheRankThatAnnouncesAnErrorIsReleasedToo) {
    Two two;
    std::atomic<bool> released{false};
    two.one.on_failure([&] { released = true; });
    two.one.announce("a fault");
    EXPECT_TRUE(soon([&] { return released.load(); }));
}

void hang() {
    for (;;) ::pause();
}

void wait_for_loss(Monitor& own) {
    for (;;) {
        try {
            own.check();
        } catch (const Error&) {
            return;
        }
        std::this_thread::sleep_for(milliseconds(5));
    }
}

/// A process of rank 0, to which rank 1 never sends a heartbeat.
void lose_a_rank(std::function<void()> release, const std::function<void(Monitor&)>& main_thread) {
    const StoreServer server(listen_at(0, /*anywhere=*/false), {run_secret, 2, 1, true});
    LaunchEnvironment environment = rank_of_two(0);
    environment.owns_process = true;
    Monitor own(environment, {loopback(server.port()), 0, 2, 1, run_secret}, std::chrono::seconds(1));
    own.on_failure(std::move(release));
    main_thread(own);
}

class MonitorDeathTest : public testing::Test {
  protected:
    MonitorDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
    const testing::ExitedWithCode failed{static_cast<int>(ErrorKind::runtime)};
    const std::string words = "rank 1 .* has sent no heartbeat .*did not end by itself within 1 s";
};

TEST_F(MonitorDeathTest, TheProcessEndsWhenADestructorHangs) {
    EXPECT_EXIT(lose_a_rank(hang, wait_for_loss), failed, words);
}

TEST_F(MonitorDeathTest, TheProcessEndsWhenItsExitHangs) {
    EXPECT_EXIT((lose_a_rank(nullptr, wait_for_loss), hang()), failed, words);
}

TEST_F(MonitorDeathTest, TheProcessEndsWhenNoCallToTheDeviceReturns) {
    const auto asks = [](Monitor& own) {
        own.begin("a sum", [] { return hang(), true; });
        hang();
    };
    EXPECT_EXIT(lose_a_rank(hang, asks), failed, words);
}

}  // namespace
}  // namespace unsloth::comm
