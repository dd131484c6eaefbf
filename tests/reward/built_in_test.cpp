// Built-in rewards: against TRL's (golden/rl/rewards.json, made by golden/make_reward_golden.py), and what TRL has not.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "reward/built_in.h"
#include "unsloth/core/error.h"
#include "unsloth/reward/rewards.h"

namespace unsloth::reward {
namespace {

using nlohmann::json;

constexpr auto unscored = std::nullopt;

Batch batch_of(const std::vector<std::string>& completions, std::vector<Column> columns = {}) {
    Batch batch;
    batch.completions = completions;
    batch.prompts.assign(completions.size(), "question");
    batch.completion_ids.assign(completions.size(), {1, 2, 3});
    batch.columns = std::move(columns);
    return batch;
}

Scores score_one(const json& entry, const Batch& batch, int64_t max_completion_length = 0) {
    Settings settings;
    settings.max_completion_length = max_completion_length;
    return Rewards(json::array({entry}), settings).score(batch).scores.at(0);
}

/// The message of the error.
std::string refusal(const json& list) {
    try {
        Rewards(list, {});
    } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::usage);
        return error.what();
    }
    return "not refused";
}

TEST(BuiltInRewards, AreTrls) {
    std::ifstream file(test::golden("rl/rewards.json"));
    for (const json& one : json::parse(file)) {
        SCOPED_TRACE(one["entry"].dump());
        std::vector<std::string> texts;
        if (one.contains("texts"))
            texts = one["texts"].get<std::vector<std::string>>();
        else
            texts.assign(one["ids"].size(), "yes");
        Batch batch = batch_of(texts);
        if (one.contains("ids")) batch.completion_ids = one["ids"].get<std::vector<std::vector<int32_t>>>();
        if (one.contains("answers")) batch.columns = {{"answer", one["answers"].get<std::vector<json>>()}};
        const Scores scores = score_one(one["entry"], batch);
        ASSERT_EQ(scores.size(), one["expected"].size());
        for (std::size_t i = 0; i < scores.size(); ++i) {
            const json& expected = one["expected"][i];
            ASSERT_EQ(scores[i].has_value(), !expected.is_null()) << i;
            if (scores[i]) {
                EXPECT_NEAR(*scores[i], expected.get<double>(), 1e-15) << i;
            }
        }
    }
}

TEST(BuiltInRewards, LastNumber) {
    const std::vector<std::pair<std::string, std::optional<double>>> cases{
        {"", unscored},      {"none", unscored},   {"72", 72},      {"#### 1,234.50.", 1234.5},
        {"it is -3", -3},    {"3-4", 4},           {"(2)-7", 7},    {"−12 °C", -12},
        {"$.5", 0.5},        {"1e3", 1000},        {"2E-2x", 0.02}, {"5e", 5},
        {"1, 2", 2},         {"10,", 10},          {"a1b22c", 22},  {"1.2.3", 0.3},
        {"1e999", unscored}, {"x = -1,000", -1000}};
    for (const auto& [text, expected] : cases) EXPECT_EQ(last_number(text), expected) << text;
}

TEST(BuiltInRewards, Numeric) {
    const Batch batch = batch_of({"so 1,234", "1234.0000001", "1235", "nothing", "7"},
                                 {{"answer", {"work #### 1234", 1234, "1234", "1234", nullptr}}});
    EXPECT_EQ(score_one("numeric", batch), (Scores{1, 1, 0, 0, unscored}));
    EXPECT_EQ(score_one({{"numeric", {{"tolerance", 0}}}}, batch), (Scores{1, 0, 0, 0, unscored}));
    const Batch marked = batch_of({"#### 5 or 6", "5", "#### 6"}, {{"gold", {"#### 5", "5", "no number"}}});
    EXPECT_EQ(score_one({{"numeric", {{"answer", "gold"}, {"pattern", R"(#### (-?[\d,.]+))"}}}}, marked),
              (Scores{1, 0, unscored}));
}

TEST(BuiltInRewards, Exact) {
    const Batch batch =
        batch_of({" Paris\n", "paris", "In Paris", ""}, {{"answer", {"Paris", "Paris", "Paris", nullptr}}});
    EXPECT_EQ(score_one("exact", batch), (Scores{1, 0, 0, unscored}));
    EXPECT_EQ(score_one({{"exact", {{"ignore_case", true}}}}, batch), (Scores{1, 1, 0, unscored}));
    EXPECT_EQ(score_one({{"exact", {{"pattern", "(Paris)"}}}}, batch), (Scores{1, 0, 1, unscored}));
}

TEST(BuiltInRewards, RegexAndItsBound) {
    const Batch batch = batch_of({"<think>x</think>", "x", std::string(4000, 'a') + "!"});
    EXPECT_EQ(score_one({{"regex", "^<think>.+</think>"}}, batch), (Scores{1, 0, 0}));
    // A search without end is no verdict.
    EXPECT_EQ(score_one({{"regex", {{"pattern", "^(a+)+$"}}}}, batch), (Scores{0, 0, unscored}));
}

TEST(BuiltInRewards, LengthAndJson) {
    Batch batch = batch_of({"äöü", "{}", "```json\n[1]\n```", "[1,", "```", std::string(1 << 20, '[')});
    EXPECT_EQ(score_one({{"length", {{"target", 2}}}}, batch)[0], -0.5);
    EXPECT_EQ(score_one({{"length", {{"target", 4}, {"scale", 2}, {"unit", "characters"}}}}, batch)[0], -2.0);
    EXPECT_EQ(score_one("json_valid", batch), (Scores{0, 1, 1, 0, 0, 0}));
    EXPECT_EQ(score_one({{"json_valid", {{"object", true}}}}, batch), (Scores{0, 1, 0, 0, 0, 0}));
}

TEST(BuiltInRewards, TakeTheRunsLongestCompletion) {
    Batch batch = batch_of({"x"});
    EXPECT_EQ(score_one({{"overlong", {{"cache", 2}}}}, batch, 4), (Scores{-0.5}));
    EXPECT_NE(refusal({{{"overlong", {{"cache", 2}}}}}).find("max_length"), std::string::npos);
}

TEST(BuiltInRewards, NameTheMissingColumn) {
    try {
        score_one("exact", batch_of({"x"}, {{"solution", {"x"}}}));
        FAIL();
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("no column 'answer'"), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("solution"), std::string::npos);
    }
    Settings settings;
    settings.columns = {"solution"};
    EXPECT_THROW(Rewards(json::array({"exact"}), settings), Error);
}

TEST(RewardOptions, AreRefusedByName) {
    const std::vector<std::pair<json, std::string>> cases{
        {json::object(), "list"},
        {json::array(), "list"},
        {json::array({3}), "rewards[0]"},
        {json::array({"exactt"}), "exact"},
        {json::array({"exact", "exact"}), "second reward has the name 'exact'"},
        {json::array({json{{"weight", 1}}}), "does not say what it is"},
        {json::array({json{{"exact", json::object()}, {"regex", "x"}}}), "both"},
        {json::array({json{{"regex", "("}}}), "regular expression"},
        {json::array({json{{"exact", {{"anwser", "x"}}}}}), "anwser"},
        {json::array({json{{"exact", json::object()}, {"weight", "x"}}}), "weight"},
        {json::array({json{{"exact", json::object()}, {"timeout", 0}}}), "timeout"},
        {json::array({json{{"exact", json::object()}, {"on_error", "x"}}}), "stop, none or drop"},
        {json::array({json{{"py", "nowhere.py:f"}}}), "there is no file"},
        {json::array({json{{"py", "nowhere"}}}), "neither a built-in reward nor a function"},
        {json::array({"rew.py"}), "Write it as 'rew.py:FUNCTION'"},
        {json::array({json{{"py", "os.path:join"}, {"style", "x"}}}), "style"},
        {json::array({json{{"py", "os.path:join"}, {"timout", 1}}}), "timeout"},
        {json::array({json{{"command", json::array()}}}), "list of the program"},
        {json::array({json{{"http", "ftp://x/"}}}), "no address"},
        {json::array({json{{"http", "http://user@x/"}}}), "no address"},
        {json::array({json{{"http", "http:///x"}}}), "no address"},
        {json::array({json{{"repetition", {{"max_penalty", 1}}}}}), "max_penalty"},
    };
    for (const auto& [list, words] : cases) {
        const std::string found = refusal(list);
        EXPECT_NE(found.find(words), std::string::npos) << list << ": " << found;
    }
}

TEST(RewardOptions, NamesAndWeights) {
    const Rewards rewards(json::array({"think_format", json{{"regex", "x"}, {"name", "marked"}, {"weight", 0.2}}}), {});
    EXPECT_EQ(rewards.names(), (std::vector<std::string>{"think_format", "marked"}));
    EXPECT_EQ(rewards.weights(), (std::vector<double>{1, 0.2}));
}

}  // namespace
}  // namespace unsloth::reward
