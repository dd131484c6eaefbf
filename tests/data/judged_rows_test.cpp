// Rows with a verdict each, and pairs whose prompt stands once.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/preference_support.h"

namespace unsloth::data {
namespace {

using Ints = std::vector<int32_t>;

TEST(JudgedRows, KeepTheirVerdict) {
    const RowOptions kto = options_of(config::Objective::kto);
    for (const char* yes : {"true", "1", "\"True\"", "\"1\""})
        EXPECT_TRUE(pair_row(cat(R"({"prompt": "q", "completion": "a", "label": )", yes, "}"), kto).desirable) << yes;
    for (const char* no : {"false", "0", "\"false\""})
        EXPECT_FALSE(pair_row(cat(R"({"prompt": "q", "completion": "a", "label": )", no, "}"), kto).desirable) << no;
    for (const char* odd : {"2", "\"good\"", "null"})
        EXPECT_NE(pair_refusal(cat(R"({"prompt": "q", "completion": "a", "label": )", odd, "}"), kto).find("label"),
                  std::string::npos);
    EXPECT_NE(pair_refusal(R"({"prompt": "q", "completion": "a"})", kto).find("no verdict on its answer"),
              std::string::npos);
}

// The forms of LLaMA-Factory's kto data, each as its {prompt, completion, label}.
TEST(JudgedRows, MayBeConversationsAndInstructions) {
    const RowOptions kto = options_of(config::Objective::kto);
    const auto same = [&](const std::string& row, const std::string& plain, bool desirable) {
        SCOPED_TRACE(row);
        const FormattedRow got = pair_row(row, kto), expected = pair_row(plain, kto);
        EXPECT_EQ(got.ids, expected.ids);
        EXPECT_EQ(got.labels, expected.labels);
        EXPECT_GT(got.targets, 0);
        EXPECT_EQ(got.desirable, desirable);
    };
    const std::string talk = R"({"prompt": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
                                            {"role": "user", "content": "r"}],
                                 "completion": [{"role": "assistant", "content": "b"}], "label": false})";
    same(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
                          {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}], "label": false})",
         talk, false);
    same(R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"},
                               {"from": "human", "value": "r"}, {"from": "gpt", "value": "b"}], "kto_tag": true})",
         talk, true);
    same(R"({"instruction": "r", "output": "b", "history": [["q", "a"]], "kto_tag": false})", talk, false);
    same(R"({"instruction": "q", "input": "i", "system": "s", "output": "a", "kto_tag": "true"})",
         R"({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q\ni"}],
             "completion": [{"role": "assistant", "content": "a"}], "label": true})",
         true);
    same(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "system": "s",
             "label": true})",
         R"({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}],
             "completion": [{"role": "assistant", "content": "a"}], "label": true})",
         true);
    EXPECT_TRUE(pair_row(R"({"prompt": "q", "completion": "a", "kto_tag": true})", kto).desirable);
    EXPECT_NE(pair_refusal(R"({"messages": [{"role": "user", "content": "q"}], "label": true})", kto)
                  .find("does not end with an assistant's message"),
              std::string::npos);
    EXPECT_NE(
        pair_refusal(R"({"instruction": "q", "output": "a", "kto_tag": 7})", kto).find("\"kto_tag\": expected true"),
        std::string::npos);
    EXPECT_NE(pair_refusal(R"({"instruction": "q", "output": "", "kto_tag": true})", kto).find("completion is empty"),
              std::string::npos);
}

TEST(JudgedRows, GetTheAnswerOfTheRowBeforeThem) {
    const toy::Folder folder;
    DatasetOptions options;
    options.objective = config::Objective::kto;
    options.max_seq_length = 6;
    const auto file = folder.write("rows.jsonl", R"({"prompt": [10, 11], "completion": [12], "label": true}
{"prompt": [20], "completion": [21, 22], "label": false}
{"prompt": [30, 31, 32, 33], "completion": [34, 35], "label": true}
)");
    const Dataset rows = Dataset::load(file, options, nullptr).with_foreign_answers(6);
    ASSERT_EQ(rows.size(), 3);
    EXPECT_EQ(rows.sample(0).ids, (Ints{10, 11, 12, 10, 11, 34, 35}));
    EXPECT_EQ(rows.sample(0).labels, (Ints{-100, -100, 12, -100, -100, 34, 35}));
    EXPECT_EQ(rows.sample(0).positions, (Ints{0, 1, 2, 0, 1, 2, 3}));
    EXPECT_EQ(rows.sample(1).ids, (Ints{20, 21, 22, 20, 12}));
    EXPECT_EQ(rows.sample(2).ids, (Ints{30, 31, 32, 33, 34, 35, 30, 31, 32, 33, 21, 22}));
    EXPECT_EQ((std::vector<bool>{rows.sample(0).desirable, rows.sample(1).desirable, rows.sample(2).desirable}),
              (std::vector<bool>{true, false, true}));
    EXPECT_EQ(rows.sample(1).segments, (Segments{{0, 3}, {3, 2}}));
    const Dataset cut = Dataset::load(file, options, nullptr).with_foreign_answers(5);
    EXPECT_EQ(cut.sample(2).ids, (Ints{30, 31, 32, 33, 34, 35, 30, 31, 32, 33, 21}));
    EXPECT_THROW((void)rows.subset({1}).with_foreign_answers(0), Error);
}

TEST(SharedPrompts, StandOnceAndBothAnswersFollowTheirLastToken) {
    const toy::Folder folder;
    DatasetOptions options;
    options.objective = config::Objective::dpo;
    const auto file =
        folder.write("rows.jsonl", R"({"prompt": [10, 11, 12], "chosen": [20, 21], "rejected": [20, 31, 32]}
{"prompt": [13], "chosen": [40], "rejected": [41]}
)");
    const Dataset own = Dataset::load(file, options, nullptr), rows = own.with_shared_prompts();
    ASSERT_EQ(rows.size(), 2);
    const Sample first = rows.sample(0);
    EXPECT_EQ(first.ids, (Ints{10, 11, 12, 20, 21, 20, 31, 32}));
    EXPECT_EQ(first.labels, (Ints{-100, -100, -100, 20, 21, 20, 31, 32}));
    EXPECT_EQ(first.positions, (Ints{0, 1, 2, 3, 4, 3, 4, 5}));
    EXPECT_EQ(first.segments, (Segments{{0, 5}, {5, 3, 0, 3}}));
    EXPECT_EQ(own.sample(0).segments, (Segments{{0, 5}, {5, 6}}));
    EXPECT_EQ(rows.longest_segment(0), 6);
    EXPECT_EQ(rows.keys(0), own.tokens(0));
    EXPECT_EQ(own.keys(0), own.tokens(0));
    EXPECT_EQ(rows.first_targets(0), 2);
    for (int64_t i = 0; i < 2; ++i) {
        EXPECT_EQ(rows.targets(i), own.targets(i));
        EXPECT_EQ(rows.targets(i), count_targets(rows.sample(i).labels, rows.sample(i).segments));
        EXPECT_EQ(rows.longest_segment(i), own.longest_segment(i));
    }
    const Sample second = rows.sample(1);
    const Batch batch = make_batch(std::vector{first, second});
    EXPECT_EQ(batch.segments, (Ints{0, 5, 8, 10, 11}));
    EXPECT_EQ(batch.shared, (Ints{0, 3, 0, 1}));
    EXPECT_EQ(batch.owners, (Ints{-1, 0, -1, 2}));
    EXPECT_EQ(batch.target_index, (Ints{2, 3, 2, 5, 6, 8, 8}));
    EXPECT_EQ(batch.target_ids, (Ints{20, 21, 20, 31, 32, 40, 41}));
    EXPECT_EQ(batch.target_starts, (Ints{0, 2, 5, 6, 7}));
    EXPECT_EQ(batch.longest, 6);
    LoaderOptions loading;
    loading.per_device_train_batch_size = 2;
    const BatchLimits limits = StepLoader(rows, loading).limits();
    EXPECT_EQ(limits.tokens, 11);
    EXPECT_EQ(limits.keys, 15);
    EXPECT_EQ(limits.labels, 7);
    EXPECT_EQ(StepLoader(own, loading).limits().keys, 0);
    EXPECT_EQ(EvalLoader(rows, 16).limits().keys, 15);
}

TEST(LearntPrompts, AreTargetsBeforeTheChosenAnswer) {
    const Sample pair{.row = 0,
                      .ids = {1, 2, 3, 9, 8, 1, 2, 3, 7},
                      .labels = {-100, -100, -100, 9, 8, -100, -100, -100, 7},
                      .positions = {0, 1, 2, 3, 4, 0, 1, 2, 3},
                      .segments = {{0, 5}, {5, 4}}};
    const Dataset rows = Dataset::from_samples({pair});
    for (const Dataset& own : {rows, rows.with_shared_prompts()}) {
        const Dataset learnt = own.with_trained_prompts();
        const Sample sample = learnt.sample(0);
        const Batch batch = make_batch({&sample, 1});
        EXPECT_EQ(batch.target_ids, (Ints{2, 3, 9, 8, 7}));
        EXPECT_EQ(batch.target_starts, (Ints{0, 4, 5}));
        EXPECT_EQ(batch.answer_starts, (Ints{2, 4}));
        EXPECT_EQ(learnt.targets(0), 5);
        EXPECT_EQ(learnt.first_targets(0), 4);
        EXPECT_EQ(batch.labels, 5);
    }
}

TEST(SharedPrompts, LeaveRowsThatBeginDifferentlyAsTheyAre) {
    Sample other{.row = 0,
                 .ids = {1, 2, 3, 9, 2, 3},
                 .labels = {-100, -100, 3, -100, -100, 3},
                 .positions = {0, 1, 2, 0, 1, 2},
                 .segments = {{0, 3}, {3, 3}}};
    Sample trained{
        .row = 1, .ids = {1, 2, 1, 2}, .labels = {1, 2, 1, 2}, .positions = {0, 1, 0, 1}, .segments = {{0, 2}, {2, 2}}};
    const Dataset rows = Dataset::from_samples({other, trained}).with_shared_prompts();
    EXPECT_EQ(rows.sample(0).ids, other.ids);
    EXPECT_EQ(rows.sample(1).positions, trained.positions);
    EXPECT_EQ(rows.sample(1).segments, trained.segments);
    EXPECT_EQ(rows.keys(0), 6);
}

}  // namespace
}  // namespace unsloth::data
