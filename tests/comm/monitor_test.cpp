// Two ranks' monitors, each a thread beside the one that trains.
#include "comm/monitor.h"

#include <gtest/gtest.h>

#include <atomic>
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
    Meeting meeting(uint32_t rank) const { return {loopback(server.port()), rank, 2, 1, run_secret}; }

    StoreServer server{listen_at(0, /*anywhere=*/false), {run_secret, 2, 1, true}};
    Monitor zero{rank_of_two(0), meeting(0), timeout}, one{rank_of_two(1), meeting(1), timeout};
};

/// False when it does not come true.
template <class Condition>
bool soon(Condition condition) {
    const auto give_up = Clock::now() + 2 * timeout;
    while (!condition() && Clock::now() < give_up) std::this_thread::sleep_for(milliseconds(5));
    return condition();
}

TEST(Monitor, KnowsWhoIsBusyWhileBothWork) {
    Two two;
    std::atomic<int> asked{0};
    const auto work = [&](Monitor& own, int other) {
        for (int step = 0; step < 200; ++step) {
            own.begin(cat("step ", step), [&] { return ++asked > 0; });
            own.set_busy(step % 20 == 0 ? "saving" : "");
            own.busy(other);
            own.check();
            own.forget_done();
            std::this_thread::sleep_for(milliseconds(1));
        }
        own.set_busy("");
    };
    std::thread beside([&] { work(two.one, 0); });
    work(two.zero, 1);
    beside.join();
    EXPECT_GE(asked.load(), 400);
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

}  // namespace
}  // namespace unsloth::comm
