// Reward functions in helper processes: how each of their failures ends.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "reward/helper_fixture.h"

namespace unsloth::reward {
namespace {

/// Until no process holds a lock of the file: all processes that had it open are gone.
void wait_until_unlocked(const std::filesystem::path& path) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0);
    EXPECT_EQ(::flock(fd, LOCK_EX), 0);
    ::close(fd);
}

TEST_F(RewardHelpers, WhatCannotBeLoadedIsSaidBeforeTheRun) {
    expect_has(load_failure("def g(): pass\n"), "has no attribute 'f'");
    const std::string import = load_failure("import no_such_module_here\n");
    expect_has(import, "ModuleNotFoundError");
    expect_has(import, "rewards.py\", line 1");
    expect_has(load_failure("def f(:\n"), "SyntaxError");
    expect_has(load_failure("f = 3\n"), "not a function");
    expect_has(load_failure("def f(x, /): return x\n"), "called by names");
    expect_has(load_failure("import os; os._exit(3)\n"), "exit status 3");
    settings_.columns = {"answer"};
    expect_has(load_failure("def f(prompts, solution): return []\n", "reward.missing-column"),
               "needs the column 'solution'");
    settings_.python = "/nowhere/python";
    expect_has(load_failure("def f(prompts): return []\n", "process.cannot-start"), "/nowhere/python");
}

TEST_F(RewardHelpers, ASlowImportEnds) {
    settings_.limits.start = 300ms;
    expect_has(load_failure("import time; time.sleep(1000)\n"), "its helper did not load within 0.3 s");
}

TEST_F(RewardHelpers, AnExceptionStopsTheRunOrLeavesRowsOut) {
    const std::string python = "def f(prompts):\n    return [1 / 0]\n";
    settings_.rank = 3, settings_.ranks = 8;
    const std::string failed = failure(python, batch_of(4, 9), json::object(), "reward.failed");
    for (const char* part : {"reward 'f' failed on rank 3 at step 10: ZeroDivisionError: division by zero",
                             "rewards.py\", line 2, in f", "prompt 0", "completion 0"})
        expect_has(failed, part);
    EXPECT_EQ(failed.find("<string>"), std::string::npos) << failed;

    folder_.write("rewards.py", python);
    Rewards kept(json::array({json{{"py", "rewards.py:f"}, {"on_error", "none"}}, json{{"regex", "completion"}}}),
                 settings_);
    const Scored scored = kept.score(batch_of(4));
    EXPECT_EQ(scored.scores, (std::vector<Scores>{Scores(4), {1, 1, 1, 1}}));
    EXPECT_EQ(scored.unscored_rows, 0);

    Rewards dropping(json::array({json{{"py", "rewards.py:f"}, {"on_error", "drop"}}, json{{"regex", "completion"}}}),
                     settings_);
    const Scored dropped = dropping.score(batch_of(4));
    EXPECT_EQ(dropped.scores, (std::vector<Scores>{Scores(4), Scores(4)}));
    EXPECT_EQ(dropped.dropped, std::vector<bool>(4, true));
    EXPECT_EQ(dropped.unscored_rows, 4);
}

TEST_F(RewardHelpers, ExitsOfTheInterpreterAreExceptions) {
    expect_has(failure("import sys\ndef f(prompts): sys.exit(3)\n", batch_of(2)), "SystemExit: 3");
}

TEST_F(RewardHelpers, AHangEndsAndIsTriedOnceMore) {
    const std::string hangs =
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ndef f(prompts):\n    while True: pass\n";
    const std::string failed = failure(hangs, batch_of(2), {{"timeout", 0.2}});
    expect_has(failed, "did not answer within 0.2 s, for the second time");
    const std::string once = R"(
import os, time
def f(prompts):
    if not os.path.exists("tried"):
        open("tried", "w").close()
        time.sleep(1000)
    return [4] * len(prompts)
)";
    EXPECT_EQ(scores(once, batch_of(2), {{"timeout", 1}}), (Scores{4, 4}));
}

TEST_F(RewardHelpers, ADeathIsSaidAndTriedOnceMore) {
    expect_has(failure("import os\ndef f(prompts): os._exit(3)\n", batch_of(2)),
               "its helper died: exit status 3, for the second time");
    const std::string once = R"(
import os, signal
def f(prompts):
    if not os.path.exists("tried"):
        open("tried", "w").close()
        os.kill(os.getpid(), signal.SIGSEGV)
    return [4] * len(prompts)
)";
    EXPECT_EQ(scores(once, batch_of(2)), (Scores{4, 4}));
}

TEST_F(RewardHelpers, TooManyDeathsStopTheRun) {
    folder_.write("rewards.py",
                  "import os\ndef f(prompts, trainer_state):\n    if trainer_state.global_step < 20: os._exit(3)\n    "
                  "return [1, 1]\n");
    Rewards rewards(json::array({json{{"py", "rewards.py:f"}, {"on_error", "none"}}}), settings_);
    EXPECT_EQ(rewards.score(batch_of(2, 1)).unscored_rows, 2);  // two deaths
    EXPECT_EQ(rewards.score(batch_of(2, 20)).unscored_rows, 0);
    EXPECT_EQ(rewards.score(batch_of(2, 12)).unscored_rows, 2);  // the first two were long ago
    try {
        rewards.score(batch_of(2, 13));
        FAIL();
    } catch (const Error& error) {
        expect_has(error.what(), "3 helpers died within 10 steps");
    }
}

TEST_F(RewardHelpers, ADeathBetweenTwoCallsIsNoticed) {
    folder_.write("rewards.py", "import os\ndef f(prompts): return [os.getpid()] * len(prompts)\n");
    Rewards rewards(json::array({"rewards.py:f"}), settings_);
    const auto first = rewards.score(batch_of(2, 1)).scores[0][0];
    ASSERT_TRUE(first);
    EXPECT_EQ(::kill(static_cast<pid_t>(*first), SIGKILL), 0);
    const auto second = rewards.score(batch_of(2, 2)).scores[0][0];
    EXPECT_NE(first, second);
}

TEST_F(RewardHelpers, WrongAnswersAreFailures) {
    const std::vector<std::pair<std::string, std::string>> cases{
        {"[1] * 7", "returned 7 for 8 rows"},
        {"[0] * 7 + [float('nan')]", "returned nan for row 7"},
        {"[0] * 7 + [float('-inf')]", "returned -inf for row 7"},
        {"['1'] + [0] * 7", "returned '1' for row 0, a str"},
        {"[[1]] * 8", "a list and no number"},
        {"None", "returned a NoneType"},
        {"5", "returned an int"},
        {"log_extra('x', [1])", "1 values for 8 rows"},
        {"log_metric('x', float('nan'))", "no finite number"},
    };
    std::string python = "CASES = [\n";
    for (const auto& [value, ignored] : cases) python += cat("    lambda log_extra, log_metric: ", value, ",\n");
    python +=
        "]\ndef f(prompts, trainer_state, log_extra, log_metric):\n"
        "    return CASES[trainer_state.global_step](log_extra, log_metric)\n";
    folder_.write("rewards.py", python);
    Rewards rewards(json::array({"rewards.py:f"}), settings_);
    for (std::size_t i = 0; i < cases.size(); ++i) {
        try {
            rewards.score(batch_of(8, static_cast<int64_t>(i)));
            ADD_FAILURE() << cases[i].first;
        } catch (const Error& error) {
            expect_has(error.what(), cases[i].second);
        }
    }
}

TEST_F(RewardHelpers, StepsWithoutAnyScoreStopTheRun) {
    folder_.write("rewards.py", "def f(prompts): return [None] * len(prompts)\n");
    settings_.limits.unscored_steps = 3;
    Rewards rewards(json::array({"rewards.py:f"}), settings_);
    EXPECT_EQ(rewards.score(batch_of(2, 1)).unscored_rows, 2);
    EXPECT_EQ(rewards.score(batch_of(2, 2)).unscored_rows, 2);
    EXPECT_THROW(rewards.score(batch_of(2, 3)), Error);
}

TEST_F(RewardHelpers, ABrokenProtocolIsShownEscaped) {
    const std::string head = "import os\ndef f(prompts):\n    os.write(3, ";
    const std::string garbage =
        failure(head + "b'\\x1b[31mgarbage \\xff\\n')\n", batch_of(2), json::object(), "reward.bad-message");
    expect_has(garbage, R"(sent what is no answer to the message: '\x1b[31mgarbage \xff', for the second time)");
    const std::string half = failure(head + "b'{\"half')\n    os._exit(0)\n", batch_of(2));
    expect_has(half, "sent a line without an end: '{\"half'");
    const std::string other =
        failure(head + "b'{\"type\":\"scores\",\"id\":999,\"function\":0,\"rewards\":[1,1]}\\n')\n", batch_of(2));
    expect_has(other, "\"id\":999");
    const std::string deep = failure(head + "b'[' * 100000 + b'\\n')\n", batch_of(2));
    expect_has(deep, "(100000 bytes or more)");
}

TEST_F(RewardHelpers, LinesHaveABound) {
    settings_.limits.line_bytes = 100'000;
    const std::string failed =
        failure("def f(prompts, log_extra):\n    log_extra('x', ['a' * 200000] * 2)\n    return [1, 1]\n", batch_of(2));
    expect_has(failed, "sent a line without an end: '{\"type\":\"scores\"");
}

TEST_F(RewardHelpers, FloodsAreReadAndBounded) {
    settings_.limits.log_bytes = 1000;
    EXPECT_EQ(scores(R"(
import os, sys
def f(prompts):
    for i in range(2000):
        print("x" * 999)
        sys.stderr.write("y" * 999)
    os.write(1, b"\xff\x1b[31m")
    return [1, 1]
)",
                     batch_of(2)),
              (Scores{1, 1}));
    const std::string text = log();
    EXPECT_LT(text.size(), 2500U);
    EXPECT_TRUE(text.starts_with("[reward] xxx") || text.starts_with("[reward] yyy")) << text;
    expect_has(text, "[reward] … omitted ");
}

TEST_F(RewardHelpers, NothingIsLeft) {
    const std::string python = R"(
import fcntl, os, subprocess, sys
lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
os.set_inheritable(lock.fileno(), True)
subprocess.Popen([sys.executable, '-c', 'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(1000)'], close_fds=False)
def f(prompts): return [1] * len(prompts)
)";
    EXPECT_EQ(scores(python, batch_of(2)), (Scores{1, 1}));
    wait_until_unlocked(folder_ / "lock");
}

TEST_F(RewardHelpers, NothingIsLeftOfARunThatIsKilled) {
    folder_.write("rewards.py", R"(
import fcntl, os, subprocess, sys
lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
os.set_inheritable(lock.fileno(), True)
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], close_fds=False)
def f(prompts):
    while True: pass
)");
    const pid_t run = ::fork();
    if (run == 0) {
        Rewards rewards(json::array({"rewards.py:f"}), settings_);
        rewards.start();
        ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(run, &status, 0), run);
    ASSERT_TRUE(WIFSIGNALED(status));
    wait_until_unlocked(folder_ / "lock");
}

TEST_F(RewardHelpers, MemoryHasABound) {
    settings_.memory_gib = 1;
    expect_has(failure("def f(prompts): return bytearray(2 << 30)\n", batch_of(2)), "MemoryError");
}

TEST_F(RewardHelpers, AnyTextArrives) {
    Batch batch = batch_of(2);
    batch.completions = {"cut \xF0\x9F\x98", std::string("nul \0 line\nend \xE2\x80\xA8", 18)};
    const Scored scored = score(R"(
def f(completions, log_extra):
    assert completions[0] == "cut \ufffd", ascii(completions[0])
    assert completions[1] == "nul \0 line\nend \u2028", ascii(completions[1])
    log_extra("odd", ["\ud800", float("nan")])
    return [1, 1]
)",
                                batch);
    EXPECT_EQ(scored.scores[0], (Scores{1, 1}));
    EXPECT_TRUE(scored.extra.at(0).second[0].is_string());
    EXPECT_TRUE(scored.extra.at(0).second[1].is_null());
    expect_has(failure("def f(prompts): raise ValueError('\\udc80')\n", batch_of(2)), "ValueError");
}

TEST_F(RewardHelpers, LargeBatchesGoBothWays) {
    Batch batch = batch_of(2);
    batch.completions = {std::string(10 << 20, 'a'), "b"};
    const Scored scored = score(R"(
def f(completions, log_extra):
    log_extra("again", completions)
    return [len(c) for c in completions]
)",
                                batch);
    EXPECT_EQ(scored.scores[0], (Scores{10 << 20, 1}));
    EXPECT_EQ(scored.extra.at(0).second[0].get<std::string>().size(), std::size_t(10 << 20));
}

TEST_F(RewardHelpers, FunctionsSeeWhatOthersChanged) {
    folder_.write("rewards.py", R"(
def f(prompts, completions):
    completions[:] = []
    prompts.clear()
    return [1, 2]
def g(completions): return [len(c) for c in completions]
)");
    Rewards rewards(json::array({"rewards.py:f", "rewards.py:g"}), settings_);
    EXPECT_EQ(rewards.score(batch_of(2)).scores, (std::vector<Scores>{{1, 2}, {12, 12}}));
}

TEST_F(RewardHelpers, ADescriptorThatIsClosedIsSaid) {
    expect_has(failure("import os, time\ndef f(prompts):\n    os.close(3)\n    time.sleep(1000)\n", batch_of(2)),
               "its helper died: it closed the descriptor of its messages");
}

TEST_F(RewardHelpers, ModulesOfTheUserHideNoneOfTheHelper) {
    folder_.write("random.py", "VALUE = 6\n");
    folder_.write("json.py", "");
    EXPECT_EQ(scores("import os\nos.environ['X'] = '1'\ndef f(prompts): return [1] * len(prompts)\n", batch_of(2)),
              (Scores{1, 1}));
}

TEST_F(RewardHelpers, ARequestToStopEndsACall) {
    folder_.write("rewards.py", "import os\ndef f(prompts):\n    open('at work', 'w')\n    while True: pass\n");
    settings_.give_up = [this] { return std::filesystem::exists(folder_ / "at work"); };
    Rewards rewards(json::array({"rewards.py:f"}), settings_);
    EXPECT_THROW(rewards.score(batch_of(2)), GivenUp);
}

}  // namespace
}  // namespace unsloth::reward
