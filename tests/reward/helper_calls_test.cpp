// Reward functions in helper processes: how they are called.
#include "reward/helper_fixture.h"

namespace unsloth::reward {
namespace {

TEST_F(RewardHelpers, CallAsTrlDoes) {
    settings_.python = "auto";
    Batch batch = batch_of(4, 17);
    batch.columns = {{"solution", {"a", json::array({1}), nullptr, json{{"x", 1}}}}};
    batch.trainer_state.max_steps = 90;
    batch.trainer_state.epoch = 0.5;
    const Scored scored = score(R"(
def f(prompts, completions, completion_ids, solution, trainer_state, log_extra, log_metric, **kwargs):
    assert prompts == ["prompt 0", "prompt 1", "prompt 2", "prompt 3"], prompts
    assert completions[3] == "completion 3"
    assert solution == ["a", [1], None, {"x": 1}], solution
    assert trainer_state.global_step == 17 and trainer_state.max_steps == 90 and trainer_state.epoch == 0.5
    assert kwargs == {"bonus": 2}, kwargs
    log_extra("parsed", [c.upper() for c in completions])
    log_metric("hits", 1)
    log_metric("hits", 3)
    print("scoring")
    return [float(len(ids)) for ids in completion_ids]
)",
                                batch, {{"kwargs", {{"bonus", 2}}}});
    EXPECT_EQ(scored.scores[0], (Scores{1, 2, 3, 4}));
    ASSERT_EQ(scored.extra.size(), 1U);
    EXPECT_EQ(scored.extra[0].first, "parsed");
    EXPECT_EQ(scored.extra[0].second[1], "COMPLETION 1");
    EXPECT_EQ(scored.metrics.at(0), (std::pair<std::string, std::optional<double>>("hits", 2.0)));
    EXPECT_EQ(scored.metrics.at(1).first, "reward/helper_rss_gib");
    EXPECT_GT(*scored.metrics.at(1).second, 0.001);
    EXPECT_EQ(log(), "[reward] scoring\n");
}

TEST_F(RewardHelpers, CompletionsOfConversationsAreMessages) {
    Batch batch = batch_of(2);
    batch.prompts.assign(2, json::array({json{{"role", "user"}, {"content", "hi"}}}));
    EXPECT_EQ(scores(R"(
def f(prompts, completions):
    assert prompts[0] == [{"role": "user", "content": "hi"}]
    assert completions[1] == [{"role": "assistant", "content": "completion 1"}], completions
    return [1, 2]
)",
                     batch),
              (Scores{1, 2}));
}

TEST_F(RewardHelpers, TakeAllKindsOfValues) {
    EXPECT_EQ(scores(R"(
class Scalar:
    def item(self): return 0.5
class Array:
    def tolist(self): return [True, None, 3, Scalar()]
def f(completions): return Array()
)",
                     batch_of(4)),
              (Scores{1, std::nullopt, 3, 0.5}));
}

TEST_F(RewardHelpers, AsyncFunctionsRunTogether) {
    folder_.write("rewards.py", R"(
import asyncio
arrived = None
async def meet(value, completions):
    global arrived
    if arrived is None:
        arrived = asyncio.Event()
        await asyncio.wait_for(arrived.wait(), 20)
    arrived.set()
    completions[0] = "changed"
    return [value] * len(completions)
async def f(completions): return await meet(1, completions)
async def g(completions): return await meet(2, completions)
def h(completions):
    assert completions[0] == "completion 0"
    asyncio.run(asyncio.sleep(0))
    return [3, 3]
)");
    Rewards rewards(json::array({"rewards.py:f", "rewards.py:g", "rewards.py:h"}), settings_);
    const Scored scored = rewards.score(batch_of(2));
    EXPECT_EQ(scored.scores, (std::vector<Scores>{{1, 1}, {2, 2}, {3, 3}}));
}

TEST_F(RewardHelpers, StyleSwift) {
    Batch batch = batch_of(2);
    batch.prompts.assign(2, json::array({json{{"role", "user"}, {"content", "hi"}}}));
    batch.columns = {{"solution", {"completion 0", "x"}}};
    const std::string python = R"(
class Accuracy:
    def __call__(self, completions, solution, **kwargs):
        return [float(c == s) for c, s in zip(completions, solution)]
orms = {"external": Accuracy}
)";
    EXPECT_EQ(scores(python, batch, {{"py", "rewards.py:Accuracy"}, {"style", "swift"}}), (Scores{1, 0}));
    EXPECT_EQ(scores(python, batch, {{"py", "rewards.py:external"}, {"style", "swift"}}), (Scores{1, 0}));
}

TEST_F(RewardHelpers, StyleVerl) {
    Batch batch = batch_of(2);
    batch.columns = {{"data_source", {"a", "b"}},
                     {"reward_model", {json{{"ground_truth", "0"}}, json{{"ground_truth", "7"}}}},
                     {"extra_info", {json{{"i", 0}}, nullptr}}};
    const Scored scored = score(R"(
def f(data_source, solution_str, ground_truth, extra_info=None, scale=1):
    return {"score": scale * solution_str.endswith(ground_truth), "source": data_source}
)",
                                batch, {{"style", "verl"}, {"kwargs", {{"scale", 3}}}});
    EXPECT_EQ(scored.scores[0], (Scores{3, 0}));
    EXPECT_EQ(scored.extra.at(0), (Column{"source", {"a", "b"}}));
    const std::string failed = failure(
        "def f(data_source, solution_str, ground_truth, extra_info):\n"
        "    return 1 / (ground_truth == '0')\n",
        batch, {{"style", "verl"}});
    expect_has(failed, "row 1");
    expect_has(failed, "ZeroDivisionError");
    expect_has(failed, "Completion: completion 1");
}

TEST_F(RewardHelpers, StyleOpenRlhf) {
    Batch batch = batch_of(2);
    batch.columns = {{"answer", {"0", "1"}}};
    const Scored scored = score(R"(
def f(queries, prompts, labels):
    assert queries == ["prompt 0completion 0", "prompt 1completion 1"], queries
    return {"rewards": [int(l) for l in labels], "scores": [0, 0], "extra_logs": {"mean": 0.5, "each": [5, 6]}}
)",
                                batch, {{"style", "openrlhf"}});
    EXPECT_EQ(scored.scores[0], (Scores{0, 1}));
    EXPECT_EQ(scored.extra.at(0), (Column{"each", {5, 6}}));
    EXPECT_EQ(scored.metrics.at(0).second, 0.5);
}

TEST_F(RewardHelpers, FactoriesAndModulesNextToTheFile) {
    folder_.write("common.py", "LIMIT = 3\n");
    const std::string python = R"(
import os, sys, common
assert os.getcwd() == sys.path[0] == os.path.dirname(__file__)
assert os.environ["CUDA_VISIBLE_DEVICES"] == "" and sys.stdin.read() == ""
def make(low):
    def reward(completion_ids): return [low if len(ids) > common.LIMIT else 0 for ids in completion_ids]
    return reward
)";
    EXPECT_EQ(scores(python, batch_of(4), {{"py", "rewards.py:make"}, {"factory", true}, {"kwargs", {{"low", -2}}}}),
              (Scores{0, 0, 0, -2}));
}

TEST_F(RewardHelpers, WorkersScoreWholeGroups) {
    settings_.workers = 2;
    const Scored scored = score(R"(
import os
def f(prompts, log_extra, log_metric):
    log_extra("pid", [os.getpid()] * len(prompts))
    log_metric("rows", len(prompts))
    return [float(p[-1]) for p in prompts]
)",
                                batch_of(6));
    EXPECT_EQ(scored.scores[0], (Scores{0, 1, 2, 3, 4, 5}));
    const auto& pids = scored.extra.at(0).second;
    EXPECT_EQ(pids[0], pids[1]);
    EXPECT_NE(pids[1], pids[2]);
    EXPECT_EQ(pids[2], pids[5]);
    EXPECT_DOUBLE_EQ(*scored.metrics.at(0).second, (2 * 2 + 4 * 4) / 6.0);
}

TEST_F(RewardHelpers, KeepStateFromStepToStep) {
    folder_.write("rewards.py",
                  "calls = 0\ndef f(prompts):\n    global calls; calls += 1\n    return [calls] * len(prompts)\n");
    Rewards rewards(json::array({"rewards.py:f"}), settings_);
    EXPECT_EQ(rewards.score(batch_of(2, 1)).scores[0], (Scores{1, 1}));
    EXPECT_EQ(rewards.score(batch_of(2, 2)).scores[0], (Scores{2, 2}));
}

TEST_F(RewardHelpers, SignalsWorkAsInAnyProgram) {
    EXPECT_EQ(scores(R"(
import signal
class Late(Exception): pass
def ring(*ignored): raise Late()
def f(prompts):
    signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        while True: sum(range(9))
    except Late:
        return [1] * len(prompts)
)",
                     batch_of(2)),
              (Scores{1, 1}));
}

// Commands: the same lines on stdin and stdout.

/// A command in Python, which answers as `score` says; `message` is the one to score.
std::string command_text(const std::string& score) {
    return cat(
        "#!/usr/bin/env python3\nimport json, sys\nfor line in sys.stdin:\n    message = json.loads(line)\n"
        "    if message['type'] == 'load':\n        kwargs = message['functions'][0]['kwargs']\n"
        "        answer = {'type': 'ready'}\n    elif message['type'] == 'score':\n"
        "        answer = {'type': 'scores', 'id': message['id'], 'function': message['functions'][0],\n"
        "                  'rewards': ",
        score, "}\n    else:\n        break\n    print(json.dumps(answer), flush=True)\n",
        "print('left', file=sys.stderr)\n");
}

TEST_F(RewardHelpers, Commands) {
    using std::filesystem::perms;
    const auto grade =
        folder_.write("grade", command_text("[len(ids) * kwargs['scale'] for ids in message['completion_ids']]"));
    std::filesystem::permissions(grade, perms::owner_all);
    const json entry{{"command", {"./grade", "--strict"}}, {"kwargs", {{"scale", 2}}}};
    {
        Rewards rewards(json::array({entry}), settings_);
        EXPECT_EQ(rewards.names(), std::vector<std::string>{"grade"});
        EXPECT_EQ(rewards.score(batch_of(3)).scores[0], (Scores{2, 4, 6}));
        EXPECT_EQ(rewards.score(batch_of(2)).scores[0], (Scores{2, 4}));
    }
    EXPECT_EQ(log(), "[reward] left\n");
    folder_.write("grade", command_text("[1]"));
    try {
        Rewards(json::array({entry}), settings_).score(batch_of(2));
        FAIL();
    } catch (const Error& error) {
        expect_has(error.what(), "reward 'grade' failed at step 2: returned 1 for 2 rows");
    }
    folder_.write("grade", "#!/bin/sh\nread line; echo '{\"type\":\"ready\"}'\n");  // ends when it is ready
    try {
        Rewards(json::array({entry}), settings_).score(batch_of(2));
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::runtime);
        expect_has(error.what(), "died");
    }
    for (const auto& [program, words] : std::vector<std::pair<json, std::string>>{
             {{"./nowhere"}, "nowhere"},
             {{"false"}, "exit status 1"},
             {{"echo", "$HOME `x`"}, "'$HOME `x`'"},
             {{"echo", R"({"type":"ready","functions":[{"id":0,"parameters":3}]})"}, "'ready' is wrong"}}) {
        try {
            Rewards(json::array({json{{"command", program}}}), settings_).start();
            ADD_FAILURE() << program;
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::usage);
            expect_has(error.what(), words);
        }
    }
}

TEST_F(RewardHelpers, TheLongestCallIsKnown) {
    settings_.limits = {};
    folder_.write("rewards.py", "def f(prompts): return []\n");
    const Rewards rewards(json::array({"rewards.py:f", "exact"}), settings_);
    EXPECT_EQ(rewards.longest_call(100), 2 * (60s + 10s + 2s) + 120s);
}

}  // namespace
}  // namespace unsloth::reward
