// Pairs of answers and verdicts on answers: their forms, what is refused of them, and what they become.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/preference_support.h"

namespace unsloth::data {
namespace {

using Ints = std::vector<int32_t>;

TEST(PreferenceRows, APairIsTwoSegmentsWhoseAnswersAreTargets) {
    const FormattedRow row = pair_row(R"({"prompt": "q: ", "chosen": "yes", "rejected": "no"})");
    EXPECT_EQ(texts_of_pair(row), (Texts{{"q: ", "yes"}, {"q: ", "no"}}));
    EXPECT_EQ(row.targets, 4 + 3) << "both answers and their EOS";
    EXPECT_EQ(row.positions, (Ints{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6}));
}

TEST(PreferenceRows, LongPromptsAreCutBeforeTheirAnswers) {
    RowOptions options = dpo;
    options.max_seq_length = 8;
    options.max_prompt_length = 3;
    const std::string ids = R"({"prompt": [1, 2, 3, 4, 5], "chosen": [6, 7, 8, 9], "rejected": [10]})";
    const FormattedRow end = pair_row(ids, options);
    EXPECT_EQ(end.ids, (Ints{3, 4, 5, 6, 7, 8, 9, 3, 4, 5, 10})) << "9 tokens are too many: both prompts are cut";
    EXPECT_EQ(end.labels, (Ints{-100, -100, -100, 6, 7, 8, 9, -100, -100, -100, 10}));
    EXPECT_TRUE(end.truncated);
    options.truncation_mode = config::TruncationMode::keep_start;
    EXPECT_EQ(pair_row(ids, options).ids, (Ints{1, 2, 3, 6, 7, 8, 9, 1, 2, 3, 10}));
    options.max_seq_length = 9;
    EXPECT_EQ(pair_row(ids, options).ids.size(), 9U + 6U) << "nothing is too long";
    options.max_seq_length = 6;
    EXPECT_EQ(pair_row(ids, options).ids, (Ints{1, 2, 3, 6, 7, 8, 1, 2, 3, 10})) << "the answer is cut, too";
    const std::string short_prompt = R"({"prompt": [1], "chosen": [2, 3, 4, 5, 6, 7], "rejected": [8]})";
    EXPECT_EQ(pair_row(short_prompt, options).ids, (Ints{1, 2, 3, 4, 1, 8}))
        << "to what max_prompt_length leaves, as TRL";
    options.long_rows = config::LongRows::drop;
    EXPECT_TRUE(pair_row(short_prompt, options).too_long);
    EXPECT_FALSE(pair_row(R"({"prompt": [1, 2, 3, 4, 5], "chosen": [6, 7], "rejected": [8]})", options).too_long);
    options.objective = config::Objective::kto;
    options.long_rows = config::LongRows::automatic;
    const nlohmann::ordered_json judged =
        parse_row(R"({"prompt": [1, 2, 3, 4, 5], "completion": [6, 7], "label": true})");
    EXPECT_EQ(RowFormatter(config::DataFormat::tokenized, options, &toy::encoder).format(judged).ids,
              (Ints{1, 2, 3, 6, 7}));
}

TEST(PreferenceRows, ThePromptIsWhatBothBeginWithWhereItIsAbsent) {
    EXPECT_EQ(texts_of_pair(pair_row(R"({"chosen": "Q: why? A: so", "rejected": "Q: why? A: no"})")),
              (Texts{{"Q: why? A: ", "so"}, {"Q: why? A: ", "no"}}));
    // Two characters that share their first byte.
    EXPECT_EQ(texts_of_pair(pair_row(R"({"chosen": "qä", "rejected": "qö"})")), (Texts{{"q", "ä"}, {"q", "ö"}}));
    EXPECT_EQ(
        texts_of_pair(pair_row(R"({"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                                        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}],
                             "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                                          {"role": "user", "content": "c"}, {"role": "assistant", "content": "e"}]})")),
        (Texts{{"user:aassistant:buser:cassistant:", "d"}, {"user:aassistant:buser:cassistant:", "e"}}))
        << "an answer of the common beginning is not learnt";
    EXPECT_EQ(pair_row(R"({"chosen": [5, 6, 7], "rejected": [5, 6, 8, 9]})").labels,
              (Ints{-100, -100, 7, -100, -100, 8, 9}));
    EXPECT_NE(pair_refusal(R"({"chosen": "a", "rejected": "b"})").find("no common beginning"), std::string::npos);
}

TEST(PreferenceRows, WithoutAPromptOneAnswerMustNotBeginTheOther) {
    const std::string short_one = R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])",
                      long_one = R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
                                     {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}])";
    const std::vector<std::pair<std::string, std::string>> both{
        {R"("It is")", R"("It is so")"}, {short_one, long_one}, {"[5, 6]", "[5, 6, 7]"}};
    for (const auto& [part, whole] : both) {
        EXPECT_NE(pair_refusal(cat(R"({"chosen": )", part, R"(, "rejected": )", whole, "}"))
                      .find("the chosen answer is what the other one begins with"),
                  std::string::npos)
            << part;
        EXPECT_NE(pair_refusal(cat(R"({"chosen": )", whole, R"(, "rejected": )", part, "}"))
                      .find("the rejected answer is what the other one begins with"),
                  std::string::npos)
            << part;
    }
    EXPECT_NE(pair_refusal(cat(R"({"chosen": )", long_one, R"(, "rejected": [{"role": "user", "content": "q"},
                          {"role": "assistant", "content": "a"}, {"role": "user", "content": "s"},
                          {"role": "assistant", "content": "c"}]})"))
                  .find("chosen[2] and rejected[2] differ, and are not both of the assistant"),
              std::string::npos);
}

TEST(PreferenceRows, ASystemColumnGoesBeforeThePromptOfEveryForm) {
    const Texts expected{{"system:suser:qassistant:", "b"}, {"system:suser:qassistant:", "c"}};
    const std::string prompt = R"([{"role": "user", "content": "q"}])",
                      b = R"([{"role": "assistant", "content": "b"}])",
                      c = R"([{"role": "assistant", "content": "c"}])";
    const auto joined = [](std::string first, const std::string& second) {
        first.back() = ',';
        return first + second.substr(1);
    };
    for (const std::string& row :
         {cat(R"("prompt": )", prompt, R"(, "chosen": )", b, R"(, "rejected": )", c),
          cat(R"("prompt": "q", "chosen": )", b, R"(, "rejected": )", c),
          cat(R"("chosen": )", joined(prompt, b), R"(, "rejected": )", joined(prompt, c)),
          std::string(R"("question": "q", "chosen": "b", "rejected": "c")"),
          cat(R"("conversations": [{"from": "human", "value": "q"}], "chosen": {"from": "gpt", "value": "b"},
                 "rejected": {"from": "gpt", "value": "c"})")}) {
        EXPECT_EQ(texts_of_pair(pair_row(R"({"system": "s", )" + row + "}")), expected) << row;
        EXPECT_EQ(pair_row(R"({"system": "s", )" + row + "}").doubts, 0u) << row;
    }
    const std::string messages =
        cat(R"({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}],
        "chosen": )",
            b, R"(, "rejected": )", c);
    EXPECT_EQ(texts_of_pair(pair_row(messages + R"(, "system": "s"})")), expected) << "the same text once";
    toy::expect_contains(toy::message_of("data.message-shape", [&] { pair_row(messages + R"(, "system": "t"})"); }),
                         {"are not the same text"});
    for (const auto& [column, doubt] : {std::pair{R"("system": "s")", RowDoubt::unread_system},
                                        std::pair{R"("history": [["a", "b"]])", RowDoubt::unread_history},
                                        std::pair{R"("tools": [{"name": "f"}])", RowDoubt::unread_tools}}) {
        const std::string row = cat(R"({"prompt": "q", "chosen": "b", "rejected": "c", )", column, "}");
        EXPECT_EQ(pair_row(row).doubts, static_cast<uint32_t>(doubt)) << row;
    }
}

TEST(PreferenceRows, FormsOfOtherProgramsAreTheSamePair) {
    const Texts expected{{"user:qassistant:", "b"}, {"user:qassistant:", "c"}};
    for (const char* row :
         {// LLaMA-Factory's and axolotl's ShareGPT
          R"({"conversations": [{"from": "human", "value": "q"}], "chosen": {"from": "gpt", "value": "b"},
                 "rejected": {"from": "gpt", "value": "c"}})",
          R"({"messages": [{"role": "user", "content": "q"}], "chosen": {"role": "assistant", "content": "b"},
                 "rejected": {"role": "assistant", "content": "c"}})",
          // UltraFeedback's: whole conversations, and the chosen one once more
          R"({"prompt": "q", "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}],
                 "chosen": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}],
                 "rejected": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "c"}]})",
          R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}],
                 "chosen": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "b"}],
                 "rejected": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "c"}]})",
          // LLaMA-Factory's Alpaca, Orca's
          R"({"instruction": "q", "input": "", "chosen": "b", "rejected": "c"})",
          R"({"question": "q", "chosen": "b", "rejected": "c"})",
          // OpenAI's
          R"({"input": {"messages": [{"role": "user", "content": "q"}], "parallel_tool_calls": true},
                 "preferred_output": [{"role": "assistant", "content": "b"}],
                 "non_preferred_output": [{"role": "assistant", "content": "c"}]})"})
        EXPECT_EQ(texts_of_pair(pair_row(row)), expected) << row;
    EXPECT_EQ(texts_of_pair(pair_row(R"({"system": "s", "history": [["p", "a"]], "instruction": "q", "input": "i",
                             "chosen": "b", "rejected": "c"})")),
              (Texts{{"system:suser:passistant:auser:q\niassistant:", "b"},
                     {"system:suser:passistant:auser:q\niassistant:", "c"}}));
    EXPECT_EQ(texts_of_pair(pair_row(R"({"instruction": "", "input": "i", "chosen": "b", "rejected": "c"})")),
              (Texts{{"user:iassistant:", "b"}, {"user:iassistant:", "c"}}));
    EXPECT_NE(
        pair_refusal(R"({"input": "q", "preferred_output": "b", "non_preferred_output": "c"})").find("\"messages\""),
        std::string::npos);
    // Rows of both kinds are messages where answers are not compared.
    EXPECT_EQ(detect_format(parse_row(R"({"messages": [], "chosen": "b", "rejected": "c"})")),
              config::DataFormat::messages);
}

/// Rows of an instruction are the same prompt whatever is learnt from them.
TEST(PreferenceRows, InstructionsOfSectionsAreThoseOfFineTuning) {
    class Sections : public toy::Encoder {
      public:
        InstructionForm instruction_form() const override { return InstructionForm::sections; }
    };
    const Sections sections;
    const auto formatted = [&](const std::string& row, config::Objective objective) {
        const nlohmann::ordered_json columns = parse_row(row);
        return RowFormatter(detect_format(columns, true), options_of(objective), &sections).format(columns);
    };
    const std::string prompt = R"({"system": "s", "instruction": "q", "input": "i", )";
    const FormattedRow tuned = formatted(prompt + R"("output": "b"})", config::Objective::sft),
                       judged = formatted(prompt + R"("output": "b", "label": true})", config::Objective::kto);
    EXPECT_EQ(judged.ids, tuned.ids);
    EXPECT_EQ(judged.labels, tuned.labels);
    EXPECT_TRUE(judged.desirable);
    EXPECT_EQ(texts_of_pair(formatted(prompt + R"("chosen": "b", "rejected": "c"})", config::Objective::dpo)),
              (Texts{{"s|q|i>", "b"}, {"s|q|i>", "c"}}));
    EXPECT_THROW(formatted(prompt + R"("chosen": "", "rejected": "c"})", config::Objective::dpo), BadRow);
    // Messages are no sections.
    EXPECT_EQ(texts_of_pair(formatted(R"({"instruction": "q", "chosen": [{"role": "assistant", "content": "b"}],
                                  "rejected": [{"role": "assistant", "content": "c"}]})",
                                      config::Objective::dpo)),
              (Texts{{"user:qassistant:", "b"}, {"user:qassistant:", "c"}}));
}

TEST(PreferenceRows, PromptsOfAllForms) {
    const Texts expected{{"user:aassistant:", "b"}, {"user:aassistant:", "c"}};
    const std::string chosen = R"("chosen": [{"role": "assistant", "content": "b"}])",
                      rejected = R"("rejected": [{"role": "assistant", "content": "c"}])",
                      prompt = R"("prompt": [{"role": "user", "content": "a"}])";
    EXPECT_EQ(texts_of_pair(pair_row("{" + prompt + "," + chosen + "," + rejected + "}")), expected);
    EXPECT_EQ(texts_of_pair(pair_row(R"({"prompt": "a",)" + chosen + "," + rejected + "}")), expected)
        << "a text beside messages";
    const std::string whole = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": ")";
    const std::string both = R"("chosen": )" + whole + R"(b"}], "rejected": )" + whole + R"(c"}])";
    EXPECT_EQ(texts_of_pair(pair_row("{" + both + "}")), expected);
    EXPECT_EQ(texts_of_pair(pair_row("{" + prompt + "," + both + "}")), expected) << "the answers repeat the prompt";
    EXPECT_EQ(texts_of_pair(pair_row(R"({"prompt": "a",)" + both + "}")), expected);
    EXPECT_EQ(texts_of_pair(pair_row(R"({"prompt": "a", "chosen": {"role": "assistant", "content": "b"},
                             "rejected": "[{\"role\": \"assistant\", \"content\": \"c\"}]"})")),
              expected)
        << "a single message, and messages as a table holds them";
    EXPECT_EQ(pair_row(R"({"prompt": [4, 5], "chosen": [6], "rejected": [7, 8]})").ids, (Ints{4, 5, 6, 4, 5, 7, 8}));
}

TEST(PreferenceRows, WhatTeachesNothingIsRefusedByName) {
    const auto says = [](const std::string& row, const std::string& part, const RowOptions& options = dpo) {
        EXPECT_NE(pair_refusal(row, options).find(part), std::string::npos) << pair_refusal(row, options);
    };
    says(R"({"prompt": "q", "chosen": "a", "rejected": "a"})", "are the same");
    says(R"({"prompt": "q", "chosen": "", "rejected": "a"})", "the chosen answer is empty");
    says(R"({"prompt": "q", "chosen": "a", "rejected": ""})", "the rejected answer is empty");
    says(R"({"prompt": "q", "chosen": [], "rejected": "a"})", "an empty list");
    says(R"({"prompt": "q", "chosen": [1], "rejected": "a"})", "of different kinds");
    says(R"({"prompt": "q", "chosen": 5, "rejected": "a"})", "expected a text");
    says(R"({"prompt": [3], "chosen": "b", "rejected": "a"})", "of another kind than the answers");
    RowOptions cut = dpo;
    cut.max_seq_length = 5;
    says(R"({"prompt": "qqqqqq", "chosen": "b", "rejected": "a"})", "nothing is left of the chosen answer", cut);
    says(R"({"prompt": "qq", "chosen": "aab", "rejected": "aac"})", "are the same once they are cut at 5", cut);
    EXPECT_TRUE(pair_row(R"({"prompt": "qq", "chosen": "aab", "rejected": "b"})", cut).truncated);
}

TEST(PreferenceRows, RowsMustBeWhatTheObjectiveLearnsFrom) {
    const auto formatter = [](config::DataFormat format, config::Objective objective) {
        return toy::message_of("data.wrong-objective",
                               [&] { RowFormatter(format, options_of(objective), &toy::encoder); });
    };
    toy::expect_contains(formatter(config::DataFormat::preference, config::Objective::sft),
                         {"training.objective dpo or orpo", "it is sft", "data.columns"});
    toy::expect_contains(formatter(config::DataFormat::messages, config::Objective::orpo),
                         {"pairs", "format messages"});
    toy::expect_contains(formatter(config::DataFormat::preference, config::Objective::kto), {"verdict", "label"});
}

TEST(StepLoader, CountsRowsAndTheTargetsOfFirstSegments) {
    const auto two_segments = [](int64_t row, int32_t first, int32_t second) {
        Sample sample;
        sample.row = row;
        for (const int32_t length : {first, second})
            for (int32_t t = 0; t < length; ++t) {
                sample.ids.push_back(t + 1);
                sample.positions.push_back(t);
            }
        sample.labels = sample.ids;
        sample.segments = segments_at_zero(sample.positions);
        return sample;
    };
    LoaderOptions options;
    options.per_device_train_batch_size = 1;
    options.gradient_accumulation_steps = 2;
    options.count_first_labels = true;
    options.shuffle = false;
    StepLoader loader(Dataset::from_samples({two_segments(0, 4, 3), two_segments(1, 2, 6), two_segments(2, 5, 5)}),
                      options);
    const StepBatch step = loader.step(0);
    EXPECT_EQ(step.rows, 2);
    EXPECT_EQ(step.first_labels, 3 + 1);
    EXPECT_EQ(step.labels, 3 + 2 + 1 + 5);
    EXPECT_EQ(step.micro[0].target_starts, (Ints{0, 3, 5}));
    EXPECT_EQ(loader.rows_of_steps(0, 1), (std::vector<int64_t>{0, 1}));
    EXPECT_EQ(loader.rows_of_steps(1, 2), (std::vector<int64_t>{2}));
    EXPECT_EQ(loader.rows_of_steps(0, 9), (std::vector<int64_t>{0, 1, 2}));
}

}  // namespace
}  // namespace unsloth::data
