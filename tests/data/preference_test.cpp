// Pairs of answers and verdicts on answers: their forms, what is refused of them, and what they become.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/toy.h"
#include "unsloth/data/loader.h"
#include "unsloth/data/reader.h"

namespace unsloth::data {
namespace {

using Ints = std::vector<int32_t>;
const toy::Encoder encoder;

RowOptions of(config::Objective objective) {
    RowOptions options;
    options.objective = objective;
    return options;
}

const RowOptions dpo = of(config::Objective::dpo);

FormattedRow pair(const std::string& row, const RowOptions& options = dpo) {
    const nlohmann::ordered_json columns = parse_row(row);
    return RowFormatter(detect_format(columns, /*pairs=*/true), options, &encoder).format(columns);
}

std::string refused(const std::string& row, const RowOptions& options = dpo) {
    try {
        pair(row, options);
    } catch (const BadRow& bad) {
        return bad.message + "\n" + bad.advice;
    }
    ADD_FAILURE() << row;
    return {};
}

/// The segments' {prompt, answer}, without what is not of bytes.
std::vector<std::pair<std::string, std::string>> texts(const FormattedRow& row) {
    std::vector<std::pair<std::string, std::string>> segments;
    for (std::size_t t = 0; t < row.ids.size(); ++t) {
        if (row.positions[t] == 0) segments.emplace_back();
        if (row.ids[t] < toy::first_byte) continue;
        const char c = static_cast<char>(row.ids[t] - toy::first_byte);
        (row.labels[t] == ignore_label ? segments.back().first : segments.back().second) += c;
    }
    return segments;
}

using Texts = std::vector<std::pair<std::string, std::string>>;

TEST(PreferenceRows, APairIsTwoSegmentsWhoseAnswersAreTargets) {
    const FormattedRow row = pair(R"({"prompt": "q: ", "chosen": "yes", "rejected": "no"})");
    EXPECT_EQ(texts(row), (Texts{{"q: ", "yes"}, {"q: ", "no"}}));
    EXPECT_EQ(row.targets, 4 + 3) << "both answers and their EOS";
    EXPECT_EQ(row.positions, (Ints{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6}));
}

TEST(PreferenceRows, LongPromptsAreCutBeforeTheirAnswers) {
    RowOptions options = dpo;
    options.max_seq_length = 8;
    options.max_prompt_length = 3;
    const std::string ids = R"({"prompt": [1, 2, 3, 4, 5], "chosen": [6, 7, 8, 9], "rejected": [10]})";
    const FormattedRow end = pair(ids, options);
    EXPECT_EQ(end.ids, (Ints{3, 4, 5, 6, 7, 8, 9, 3, 4, 5, 10})) << "9 tokens are too many: both prompts are cut";
    EXPECT_EQ(end.labels, (Ints{-100, -100, -100, 6, 7, 8, 9, -100, -100, -100, 10}));
    EXPECT_TRUE(end.truncated);
    options.truncation_mode = config::TruncationMode::keep_start;
    EXPECT_EQ(pair(ids, options).ids, (Ints{1, 2, 3, 6, 7, 8, 9, 1, 2, 3, 10}));
    options.max_seq_length = 9;
    EXPECT_EQ(pair(ids, options).ids.size(), 9U + 6U) << "nothing is too long";
    options.max_seq_length = 6;
    EXPECT_EQ(pair(ids, options).ids, (Ints{1, 2, 3, 6, 7, 8, 1, 2, 3, 10})) << "the answer is cut, too";
    const std::string short_prompt = R"({"prompt": [1], "chosen": [2, 3, 4, 5, 6, 7], "rejected": [8]})";
    EXPECT_EQ(pair(short_prompt, options).ids, (Ints{1, 2, 3, 4, 1, 8})) << "to what max_prompt_length leaves, as TRL";
    options.long_rows = config::LongRows::drop;
    EXPECT_TRUE(pair(short_prompt, options).too_long);
    EXPECT_FALSE(pair(R"({"prompt": [1, 2, 3, 4, 5], "chosen": [6, 7], "rejected": [8]})", options).too_long);
    options.objective = config::Objective::kto;
    options.long_rows = config::LongRows::automatic;
    const nlohmann::ordered_json judged =
        parse_row(R"({"prompt": [1, 2, 3, 4, 5], "completion": [6, 7], "label": true})");
    EXPECT_EQ(RowFormatter(config::DataFormat::tokenized, options, &encoder).format(judged).ids, (Ints{1, 2, 3, 6, 7}));
}

TEST(PreferenceRows, ThePromptIsWhatBothBeginWithWhereItIsAbsent) {
    EXPECT_EQ(texts(pair(R"({"chosen": "Q: why? A: so", "rejected": "Q: why? A: no"})")),
              (Texts{{"Q: why? A: ", "so"}, {"Q: why? A: ", "no"}}));
    // Two characters that share their first byte.
    EXPECT_EQ(texts(pair(R"({"chosen": "qä", "rejected": "qö"})")), (Texts{{"q", "ä"}, {"q", "ö"}}));
    EXPECT_EQ(texts(pair(R"({"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                                        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}],
                             "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                                          {"role": "user", "content": "c"}, {"role": "assistant", "content": "e"}]})")),
              (Texts{{"user:aassistant:buser:cassistant:", "d"}, {"user:aassistant:buser:cassistant:", "e"}}))
        << "an answer of the common beginning is not learnt";
    EXPECT_EQ(pair(R"({"chosen": [5, 6, 7], "rejected": [5, 6, 8, 9]})").labels,
              (Ints{-100, -100, 7, -100, -100, 8, 9}));
    EXPECT_NE(refused(R"({"chosen": "a", "rejected": "b"})").find("no common beginning"), std::string::npos);
}

TEST(PreferenceRows, WithoutAPromptOneAnswerMustNotBeginTheOther) {
    const std::string short_one = R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])",
                      long_one = R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
                                     {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}])";
    const std::vector<std::pair<std::string, std::string>> both{
        {R"("It is")", R"("It is so")"}, {short_one, long_one}, {"[5, 6]", "[5, 6, 7]"}};
    for (const auto& [part, whole] : both) {
        EXPECT_NE(refused(cat(R"({"chosen": )", part, R"(, "rejected": )", whole, "}"))
                      .find("the chosen answer is what the other one begins with"),
                  std::string::npos)
            << part;
        EXPECT_NE(refused(cat(R"({"chosen": )", whole, R"(, "rejected": )", part, "}"))
                      .find("the rejected answer is what the other one begins with"),
                  std::string::npos)
            << part;
    }
    EXPECT_NE(refused(cat(R"({"chosen": )", long_one, R"(, "rejected": [{"role": "user", "content": "q"},
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
        EXPECT_EQ(texts(pair(R"({"system": "s", )" + row + "}")), expected) << row;
        EXPECT_EQ(pair(R"({"system": "s", )" + row + "}").doubts, 0u) << row;
    }
    const std::string messages =
        cat(R"({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}],
        "chosen": )",
            b, R"(, "rejected": )", c);
    EXPECT_EQ(texts(pair(messages + R"(, "system": "s"})")), expected) << "the same text once";
    toy::expect_contains(toy::message_of("data.message-shape", [&] { pair(messages + R"(, "system": "t"})"); }),
                         {"are not the same text"});
    for (const auto& [column, doubt] : {std::pair{R"("system": "s")", RowDoubt::unread_system},
                                        std::pair{R"("history": [["a", "b"]])", RowDoubt::unread_history},
                                        std::pair{R"("tools": [{"name": "f"}])", RowDoubt::unread_tools}}) {
        const std::string row = cat(R"({"prompt": "q", "chosen": "b", "rejected": "c", )", column, "}");
        EXPECT_EQ(pair(row).doubts, static_cast<uint32_t>(doubt)) << row;
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
        EXPECT_EQ(texts(pair(row)), expected) << row;
    EXPECT_EQ(texts(pair(R"({"system": "s", "history": [["p", "a"]], "instruction": "q", "input": "i",
                             "chosen": "b", "rejected": "c"})")),
              (Texts{{"system:suser:passistant:auser:q\niassistant:", "b"},
                     {"system:suser:passistant:auser:q\niassistant:", "c"}}));
    EXPECT_EQ(texts(pair(R"({"instruction": "", "input": "i", "chosen": "b", "rejected": "c"})")),
              (Texts{{"user:iassistant:", "b"}, {"user:iassistant:", "c"}}));
    EXPECT_NE(refused(R"({"input": "q", "preferred_output": "b", "non_preferred_output": "c"})").find("\"messages\""),
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
        return RowFormatter(detect_format(columns, true), of(objective), &sections).format(columns);
    };
    const std::string prompt = R"({"system": "s", "instruction": "q", "input": "i", )";
    const FormattedRow tuned = formatted(prompt + R"("output": "b"})", config::Objective::sft),
                       judged = formatted(prompt + R"("output": "b", "label": true})", config::Objective::kto);
    EXPECT_EQ(judged.ids, tuned.ids);
    EXPECT_EQ(judged.labels, tuned.labels);
    EXPECT_TRUE(judged.desirable);
    EXPECT_EQ(texts(formatted(prompt + R"("chosen": "b", "rejected": "c"})", config::Objective::dpo)),
              (Texts{{"s|q|i>", "b"}, {"s|q|i>", "c"}}));
    EXPECT_THROW(formatted(prompt + R"("chosen": "", "rejected": "c"})", config::Objective::dpo), BadRow);
    // Messages are no sections.
    EXPECT_EQ(texts(formatted(R"({"instruction": "q", "chosen": [{"role": "assistant", "content": "b"}],
                                  "rejected": [{"role": "assistant", "content": "c"}]})",
                              config::Objective::dpo)),
              (Texts{{"user:qassistant:", "b"}, {"user:qassistant:", "c"}}));
}

TEST(PreferenceRows, PromptsOfAllForms) {
    const Texts expected{{"user:aassistant:", "b"}, {"user:aassistant:", "c"}};
    const std::string chosen = R"("chosen": [{"role": "assistant", "content": "b"}])",
                      rejected = R"("rejected": [{"role": "assistant", "content": "c"}])",
                      prompt = R"("prompt": [{"role": "user", "content": "a"}])";
    EXPECT_EQ(texts(pair("{" + prompt + "," + chosen + "," + rejected + "}")), expected);
    EXPECT_EQ(texts(pair(R"({"prompt": "a",)" + chosen + "," + rejected + "}")), expected) << "a text beside messages";
    const std::string whole = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": ")";
    const std::string both = R"("chosen": )" + whole + R"(b"}], "rejected": )" + whole + R"(c"}])";
    EXPECT_EQ(texts(pair("{" + both + "}")), expected);
    EXPECT_EQ(texts(pair("{" + prompt + "," + both + "}")), expected) << "the answers repeat the prompt";
    EXPECT_EQ(texts(pair(R"({"prompt": "a",)" + both + "}")), expected);
    EXPECT_EQ(texts(pair(R"({"prompt": "a", "chosen": {"role": "assistant", "content": "b"},
                             "rejected": "[{\"role\": \"assistant\", \"content\": \"c\"}]"})")),
              expected)
        << "a single message, and messages as a table holds them";
    EXPECT_EQ(pair(R"({"prompt": [4, 5], "chosen": [6], "rejected": [7, 8]})").ids, (Ints{4, 5, 6, 4, 5, 7, 8}));
}

TEST(PreferenceRows, WhatTeachesNothingIsRefusedByName) {
    const auto says = [](const std::string& row, const std::string& part, const RowOptions& options = dpo) {
        EXPECT_NE(refused(row, options).find(part), std::string::npos) << refused(row, options);
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
    EXPECT_TRUE(pair(R"({"prompt": "qq", "chosen": "aab", "rejected": "b"})", cut).truncated);
}

TEST(PreferenceRows, RowsMustBeWhatTheObjectiveLearnsFrom) {
    const auto formatter = [](config::DataFormat format, config::Objective objective) {
        return toy::message_of("data.wrong-objective", [&] { RowFormatter(format, of(objective), &encoder); });
    };
    toy::expect_contains(formatter(config::DataFormat::preference, config::Objective::sft),
                         {"training.objective dpo or orpo", "it is sft", "data.columns"});
    toy::expect_contains(formatter(config::DataFormat::messages, config::Objective::orpo),
                         {"pairs", "format messages"});
    toy::expect_contains(formatter(config::DataFormat::preference, config::Objective::kto), {"verdict", "label"});
}

TEST(JudgedRows, KeepTheirVerdict) {
    const RowOptions kto = of(config::Objective::kto);
    for (const char* yes : {"true", "1", "\"True\"", "\"1\""})
        EXPECT_TRUE(pair(cat(R"({"prompt": "q", "completion": "a", "label": )", yes, "}"), kto).desirable) << yes;
    for (const char* no : {"false", "0", "\"false\""})
        EXPECT_FALSE(pair(cat(R"({"prompt": "q", "completion": "a", "label": )", no, "}"), kto).desirable) << no;
    for (const char* odd : {"2", "\"good\"", "null"})
        EXPECT_NE(refused(cat(R"({"prompt": "q", "completion": "a", "label": )", odd, "}"), kto).find("label"),
                  std::string::npos);
    EXPECT_NE(refused(R"({"prompt": "q", "completion": "a"})", kto).find("no verdict on its answer"),
              std::string::npos);
}

// The forms of LLaMA-Factory's kto data, each as its {prompt, completion, label}.
TEST(JudgedRows, MayBeConversationsAndInstructions) {
    const RowOptions kto = of(config::Objective::kto);
    const auto same = [&](const std::string& row, const std::string& plain, bool desirable) {
        SCOPED_TRACE(row);
        const FormattedRow got = pair(row, kto), expected = pair(plain, kto);
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
    EXPECT_TRUE(pair(R"({"prompt": "q", "completion": "a", "kto_tag": true})", kto).desirable);
    EXPECT_NE(refused(R"({"messages": [{"role": "user", "content": "q"}], "label": true})", kto)
                  .find("does not end with an assistant's message"),
              std::string::npos);
    EXPECT_NE(refused(R"({"instruction": "q", "output": "a", "kto_tag": 7})", kto).find("\"kto_tag\": expected true"),
              std::string::npos);
    EXPECT_NE(refused(R"({"instruction": "q", "output": "", "kto_tag": true})", kto).find("completion is empty"),
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
        const Dataset learnt = own.with_learnt_prompts();
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
