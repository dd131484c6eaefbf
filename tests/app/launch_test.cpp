// The parts of the launcher that need no processes: variables, pins, lines, and what an end means.
// tests/e2e/launch_test.py runs the rest.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>

#include "app/launch/environment.h"
#include "app/launch/lines.h"
#include "app/launch/outcome.h"
#include "app/launch/pinning.h"
#include "app/machine/limits.h"
#include "common/files.h"

namespace unsloth::app {
namespace {

// --- environment ---

std::string value_in(const std::vector<std::string>& variables, const std::string& name) {
    std::string value = "(unset)";
    int count = 0;
    for (const std::string& variable : variables)
        if (variable.starts_with(name + "=")) value = variable.substr(name.size() + 1), ++count;
    EXPECT_LE(count, 1) << name << " stands there twice";
    return value;
}

TEST(RankEnvironment, CountsOverMachines) {
    Place place;
    place.local_rank = 1, place.ranks_here = 4, place.node = 2, place.nodes = 3;
    place.master_address = "node0", place.master_port = 29500, place.restarts = 1, place.max_restarts = 2,
    place.threads = 8;
    const auto env =
        rank_environment({"HOME=/root", "RANK=77", "RANKS=kept", "TORCHELASTIC_USE_AGENT_STORE=True"}, place);
    for (const auto& [name, value] :
         std::vector<std::pair<std::string, std::string>>{{"RANK", "9"},
                                                          {"WORLD_SIZE", "12"},
                                                          {"LOCAL_RANK", "1"},
                                                          {"LOCAL_WORLD_SIZE", "4"},
                                                          {"GROUP_RANK", "2"},
                                                          {"GROUP_WORLD_SIZE", "3"},
                                                          {"MASTER_ADDR", "node0"},
                                                          {"MASTER_PORT", "29500"},
                                                          {"TORCHELASTIC_RESTART_COUNT", "1"},
                                                          {"TORCHELASTIC_MAX_RESTARTS", "2"},
                                                          {"OMP_NUM_THREADS", "8"},
                                                          {"HOME", "/root"},
                                                          {"RANKS", "kept"},
                                                          {"TORCHELASTIC_USE_AGENT_STORE", "(unset)"}})
        EXPECT_EQ(value_in(env, name), value) << name;
}

TEST(RankEnvironment, TheUsersThreadsStay) {
    EXPECT_EQ(value_in(rank_environment({"OMP_NUM_THREADS=3"}, Place{}), "OMP_NUM_THREADS"), "3");
}

TEST(RankEnvironment, ARunHasASecretAndASocketOfItsOwn) {
    Place place;
    place.secret = make_secret(), place.store_fd = 7, place.launcher_fd = 8;
    const auto env = rank_environment({"UNSLOTH_STORE_FD=3", "UNSLOTH_SECRET_FILE=/etc/secret"}, place);
    EXPECT_EQ(value_in(env, "UNSLOTH_SECRET").size(), 64U);
    EXPECT_NE(make_secret(), make_secret());
    EXPECT_EQ(value_in(env, "UNSLOTH_STORE_FD"), "7");
    EXPECT_EQ(value_in(env, "UNSLOTH_LAUNCHER_FD"), "8");
    const auto other = rank_environment({"UNSLOTH_STORE_FD=3", "UNSLOTH_LAUNCHER_FD=4"}, Place{});
    EXPECT_EQ(value_in(other, "UNSLOTH_STORE_FD"), "(unset)") << "another launcher's";
    EXPECT_EQ(value_in(other, "UNSLOTH_LAUNCHER_FD"), "(unset)");
    EXPECT_FALSE(has_secret({"UNSLOTH_SECRET=", "HOME=/root"}));
    EXPECT_TRUE(has_secret({"UNSLOTH_SECRET_FILE=/etc/secret"}));
    const Descriptor one = listen_on_loopback(), two = listen_on_loopback();
    EXPECT_NE(port_of(one), port_of(two)) << "a port is taken from the moment on that it is chosen";
}

TEST(RankEnvironment, FreePortsAreNoPrivilegedOnes) {
    EXPECT_GT(free_port(), 1023);
}

// --- pins ---

void write_gpu(const test::ScratchFolder& root, const std::string& pci, const std::string& node,
               const std::string& cpus) {
    root.write("sys/bus/pci/devices/" + pci + "/numa_node", node + "\n");
    root.write("sys/bus/pci/devices/" + pci + "/local_cpulist", cpus + "\n");
}

TEST(Pin, TakesTheNodesCpusWithinTheMask) {
    const test::ScratchFolder root;
    root.write("sys/devices/system/node/online", "0-1\n");
    write_gpu(root, "0000:17:00.0", "1", "4-7,12-15");
    const Pin pin = plan_pin("0000:17:00.0", {0, 1, 2, 3, 4, 5, 12}, root.path());
    EXPECT_EQ(pin.node, 1);
    EXPECT_EQ(pin.cpus, (CpuList{4, 5, 12}));
    EXPECT_NE(pin.reason.find("NUMA node 1, CPUs 4-5,12"), std::string::npos) << pin.reason;
}

TEST(Pin, LeavesWhatIsNotClear) {
    const test::ScratchFolder root;
    write_gpu(root, "0000:17:00.0", "1", "4-7");
    write_gpu(root, "0000:18:00.0", "-1", "0-7");
    const CpuList all{0, 1, 2, 3, 4, 5, 6, 7};
    const auto reason = [&](const std::string& pci, const CpuList& allowed) {
        const Pin pin = plan_pin(pci, allowed, root.path());
        EXPECT_EQ(pin.node, -1);
        EXPECT_TRUE(pin.cpus.empty());
        return pin.reason;
    };
    EXPECT_EQ(reason("0000:17:00.0", all), "one NUMA node: not pinned") << "no node is listed";
    root.write("sys/devices/system/node/online", "0\n");
    EXPECT_EQ(reason("0000:17:00.0", all), "one NUMA node: not pinned");
    root.write("sys/devices/system/node/online", "0-1\n");
    EXPECT_NE(reason("", all).find("address is not known"), std::string::npos);
    EXPECT_NE(reason("0000:18:00.0", all).find("names no NUMA node"), std::string::npos);
    EXPECT_NE(reason("0000:99:00.0", all).find("names no NUMA node"), std::string::npos);
    EXPECT_NE(reason("0000:17:00.0", {0, 1}).find("none of NUMA node 1's CPUs 4-7 is among the allowed 0-1"),
              std::string::npos);
}

TEST(Pin, IsInForceWhileItLives) {
    const CpuList before = allowed_cpus();
    if (before.size() < 2) GTEST_SKIP() << "one CPU";
    {
        const ScopedPin pin({0, {before.back()}, ""});
        EXPECT_EQ(allowed_cpus(), CpuList{before.back()}) << pin.problem();
    }
    EXPECT_EQ(allowed_cpus(), before);
    {
        const ScopedPin none({-1, {}, ""});
        EXPECT_EQ(allowed_cpus(), before);
    }
}

TEST(Pin, WhatTheKernelRefusesIsSaid) {
    const CpuList before = allowed_cpus();
    {
        const ScopedPin pin({1000, {1 << 12}, ""});  // neither that node nor that CPU
        EXPECT_NE(pin.problem().find("CPUs: "), std::string::npos) << pin.problem();
        EXPECT_NE(pin.problem().find("memory: "), std::string::npos) << pin.problem();
        EXPECT_EQ(allowed_cpus(), before);
    }
    EXPECT_EQ(allowed_cpus(), before);
}

// --- lines ---

TEST(Lines, AreCompleteWhateverThePieces) {
    const std::string input = "one\n\ntwo and more\nlast";
    const std::string expected = "> one\n> \n> two and more\n> last\n";
    for (std::size_t piece = 1; piece <= input.size(); ++piece) {
        LineCutter cutter("> ");
        std::string out;
        for (std::size_t at = 0; at < input.size(); at += piece)
            cutter.feed(std::string_view(input).substr(at, piece), out);
        EXPECT_EQ(out, expected.substr(0, expected.size() - 7)) << "the last line has no end yet";
        cutter.finish(out);
        EXPECT_EQ(out, expected) << piece;
        cutter.finish(out);
        EXPECT_EQ(out, expected) << "nothing is left";
    }
}

TEST(Lines, TooLongOnesAreCut) {
    const auto cut = [](const std::string& input, std::size_t piece) {
        LineCutter cutter("", 4);
        std::string out;
        for (std::size_t at = 0; at < input.size(); at += piece)
            cutter.feed(std::string_view(input).substr(at, piece), out);
        cutter.finish(out);
        return out;
    };
    for (std::size_t piece = 1; piece <= 12; ++piece) {
        EXPECT_EQ(cut("abcdefghij\nk\n", piece), "abcd\nefgh\nij\nk\n") << piece;
        EXPECT_EQ(cut("abcd\nefgh\n", piece), "abcd\nefgh\n")
            << "a line of just that length has one end, in pieces of " << piece;
        EXPECT_EQ(cut("abcde", piece), "abcd\ne\n") << piece;
    }
}

TEST(Lines, TheLastOnesAreKept) {
    LastLines last(2, 10);
    last.add("a\nb\nc\n");
    EXPECT_EQ(last.text(), "b\nc\n");
    last.add("12345678\n");
    EXPECT_EQ(last.text(), "12345678\n") << "ten bytes at most";
    last.add("far longer than ten bytes\n");
    EXPECT_EQ(last.text(), "12345678\n");
}

TEST(Lines, Prefixes) {
    EXPECT_EQ(prefix_of("[rank {rank}] ", 12, 4), "[rank 12] ");
    EXPECT_EQ(prefix_of("{local_rank}/{rank}/{rank}", 12, 4), "4/12/12");
    EXPECT_EQ(prefix_of("{other}", 1, 1), "{other}");
}

// --- ends ---

const auto start = AwakeClock::time_point{} + std::chrono::hours(1);

RankEnd ended(int rank, int code, double seconds = 0, bool by_us = false) {
    const int signal = code > 200 ? code - 200 : 0;  // 209: died of signal 9
    return {rank,   1000 + rank, signal != 0 ? 128 + signal : code,
            signal, by_us,       start + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000))};
}

TEST(Outcome, TheFirstFailureCounts) {
    EXPECT_EQ(exit_code({ended(0, 0), ended(1, 0)}, 0), 0);
    EXPECT_EQ(exit_code({ended(0, 0), ended(1, 3), ended(2, 4, 20)}, 0), 3);
    EXPECT_EQ(exit_code({ended(2, 209), ended(0, 4, 20), ended(1, 4, 21)}, 0), 137);
    EXPECT_EQ(exit_code({ended(1, 4), ended(0, 206, 120)}, 0), 4)
        << "a watchdog's abort two minutes later is a consequence";
    EXPECT_EQ(exit_code({ended(1, 2), ended(0, 3)}, 0), 2);
}

TEST(Outcome, AFourGivesWayToWhatItNoticed) {
    const std::vector<RankEnd> ends{ended(0, 4), ended(2, 4, 0.1), ended(1, 211, 3)};
    EXPECT_EQ(most_telling(ends), 2);
    EXPECT_EQ(exit_code(ends, 0), 139);
    EXPECT_EQ(most_telling({ended(0, 4), ended(1, 211, 6)}), 0);
}

TEST(Outcome, WhatTheLauncherDidIsNoCause) {
    EXPECT_EQ(exit_code({ended(1, 4), ended(0, 209, 2, true)}, 0), 4);
    EXPECT_EQ(exit_code({ended(0, 143), ended(1, 209, 2, true)}, SIGTERM), 143);
    EXPECT_EQ(most_telling({ended(0, 215, 0, true), ended(1, 215, 0, true)}), -1);
    EXPECT_EQ(exit_code({ended(0, 215, 0, true), ended(1, 215, 0, true)}, SIGTERM), 143) << "before they listened";
}

TEST(Outcome, AStuckRankIsTheCauseOfTheOthersEnd) {
    RankEnd stuck = ended(1, 209, 0, true), killed = ended(2, 209, 12, true);
    stuck.stuck = killed.stuck = true;
    const std::vector<RankEnd> ends{stuck, ended(0, 4, 1), killed};
    EXPECT_EQ(exit_code(ends, 0), 4);
    EXPECT_EQ(exit_code(ends, SIGTERM), 4) << "nothing was saved";
    EXPECT_EQ(
        summary(ends, 0),
        "rank 1 (pid 1001) was stuck, and the launcher killed it; rank 0: exit code 4; rank 2: signal 9 (Killed), "
        "from the launcher");
    EXPECT_EQ(exit_code({stuck, ended(0, 211, 1)}, 0), 139) << "a crash is its own";
}

TEST(Outcome, OrderlyStopsKeepTheirCodes) {
    EXPECT_EQ(exit_code({ended(0, 143), ended(1, 143)}, 0), 143) << "a signal to one rank: all agreed";
    EXPECT_EQ(exit_code({ended(0, 130), ended(1, 130)}, SIGINT), 130);
    EXPECT_EQ(exit_code({ended(0, 0), ended(1, 0)}, SIGTERM), 0) << "they had finished anyway";
    EXPECT_EQ(exit_code({ended(0, 143), ended(1, 4)}, SIGTERM), 4) << "the save failed";
    EXPECT_EQ(exit_code({ended(0, 129), ended(1, 129)}, 0), 129) << "a rank's machine was hung up on";
    EXPECT_EQ(summary({ended(0, 129), ended(1, 129)}, SIGHUP),
              "stopped by signal 1 (Hangup); ranks 0, 1: exit code 129");
    EXPECT_TRUE(in_order(ended(0, 130)));
    EXPECT_TRUE(in_order(ended(0, 129)));
    EXPECT_FALSE(in_order(ended(0, 215))) << "death by SIGTERM is not the exit code 143";
}

TEST(Outcome, TheSummaryNamesRankProcessAndReason) {
    EXPECT_EQ(summary({ended(1, 3), ended(2, 4, 9), ended(0, 4, 9), ended(3, 209, 40, true)}, 0),
              "rank 1 (pid 1001) failed with exit code 3; ranks 0, 2: exit code 4; rank 3: signal 9 (Killed), from the "
              "launcher");
    EXPECT_EQ(
        summary({ended(1, 209), ended(0, 0)}, 0),
        "rank 1 (pid 1001) was ended by signal 9 (Killed), often sent by the kernel when memory runs out (dmesg); rank "
        "0: exit code 0");
    EXPECT_EQ(summary({ended(0, 143), ended(1, 143)}, SIGTERM),
              "stopped by signal 15 (Terminated); ranks 0, 1: exit code 143");
    EXPECT_EQ(summary({ended(0, 143)}, 0), "a rank was stopped, and the others with it; rank 0: exit code 143");
}

}  // namespace
}  // namespace unsloth::app
