#include "unsloth/data/format.h"

#include <gtest/gtest.h>

#include "data/format_support.h"

namespace unsloth::data {
namespace {

using Ints = std::vector<int32_t>;

TEST(DetectFormat, ByColumns) {
    const auto detected = [](const char* row) { return detect_format(parse_row(row)); };
    EXPECT_EQ(detected(R"({"input_ids": [1], "text": "x"})"), config::DataFormat::tokenized);
    EXPECT_EQ(detected(R"({"id": 4, "messages": []})"), config::DataFormat::messages);
    EXPECT_EQ(detected(R"({"instruction": "a", "output": "b", "text": "both"})"), config::DataFormat::alpaca);
    EXPECT_EQ(detected(R"({"text": "x", "source": "web"})"), config::DataFormat::text);
    EXPECT_EQ(detected(R"({"conversations": []})"), config::DataFormat::sharegpt);
    EXPECT_EQ(detected(R"({"prompt": "a", "completion": "b"})"), config::DataFormat::prompt_completion);
    EXPECT_EQ(detected(R"({"prompt": "a", "chosen": "b", "rejected": "c"})"), config::DataFormat::preference);
    EXPECT_EQ(detected(R"({"prompt": [1], "chosen": [2], "rejected": [3]})"), config::DataFormat::tokenized);
    EXPECT_EQ(detected(R"({"prompt": [1], "completion": [2], "label": true})"), config::DataFormat::tokenized);
}

TEST(DetectFormat, NullColumnsCountAsAbsent) {
    const auto detected = [](const char* row) { return detect_format(parse_row(row)); };
    EXPECT_EQ(detected(R"({"messages": null, "text": "x"})"), config::DataFormat::text);
    EXPECT_EQ(detected(R"({"input_ids": null, "conversations": []})"), config::DataFormat::sharegpt);
    EXPECT_EQ(detected(R"({"chosen": null, "rejected": null, "prompt": "a", "completion": "b"})"),
              config::DataFormat::prompt_completion);
    try {
        detect_format(parse_row(R"({"text": null, "id": 3})"));
        ADD_FAILURE() << "a row of nulls has a format";
    } catch (const BadRow& bad) {
        toy::expect_contains(bad.message, {"(text (null), id)"});
    }
}

TEST(DetectFormat, UnknownColumnsAreNamedWithAWayOut) {
    const auto unknown = [](const char* row, const std::vector<std::string>& parts) {
        try {
            detect_format(parse_row(row));
            ADD_FAILURE() << row;
        } catch (const BadRow& bad) {
            toy::expect_contains(bad.message + bad.advice, parts);
        }
    };
    unknown(R"({"foo": 1, "bar": 2})", {"foo, bar", "{text}"});
    unknown(R"({"question": "a", "answer": "b"})",
            {"data.columns", R"({"instruction": "question", "output": "answer"})"});
    unknown(R"({"question": "a", "response": "b"})", {R"({"instruction": "question", "output": "response"})"});
    unknown(R"({"input": "a", "output": "b"})", {R"({"instruction": "input", "output": "output"})"});
    unknown(R"({"instruction": "a"})", {"instruction"});
    unknown(R"({})", {"none"});
}

TEST(FormatRow, TokenisedRows) {
    FormattedRow row = format_row(config::DataFormat::tokenized, R"({"input_ids": [5, 6, 7], "extra": {"x": null}})");
    EXPECT_EQ(row.ids, (Ints{5, 6, 7}));
    EXPECT_EQ(row.labels, (Ints{5, 6, 7}));
    EXPECT_TRUE(row.positions.empty());
    EXPECT_EQ(row.targets, 2);

    row = format_row(config::DataFormat::tokenized,
                     R"({"input_ids": [5, 6, 7, 8], "labels": [5, -100, 9, 8], "position_ids": [0, 1, 2, 0]})");
    EXPECT_EQ(row.labels, (Ints{5, masked, 9, 8}));
    EXPECT_EQ(row.positions, (Ints{0, 1, 2, 0}));
    EXPECT_EQ(row.targets, 1);  // token 0 and the token that begins the second segment are none

    row = format_row(config::DataFormat::tokenized, R"({"input_ids": [5, 6], "labels": null, "position_ids": null})");
    EXPECT_EQ(row.labels, (Ints{5, 6}));
}

TEST(FormatRow, TrainOnPromptLeavesGivenLabelsAlone) {
    RowOptions options;
    options.train_on_prompt = true;
    EXPECT_EQ(
        format_row(config::DataFormat::tokenized, R"({"input_ids": [5, 6], "labels": [-100, 6]})", options).labels,
        (Ints{masked, 6}));
}

TEST(FormatRow, MasksDecideTheLabels) {
    const auto labels = [](const std::string& masks) {
        return format_row(config::DataFormat::tokenized, R"({"input_ids": [5, 6, 7, 8], )" + masks + "}").labels;
    };
    EXPECT_EQ(labels(R"("completion_mask": [0, 0, 1, 1])"), (Ints{masked, masked, 7, 8}));
    EXPECT_EQ(labels(R"("assistant_masks": [0, 1, 1, 0])"), (Ints{masked, 6, 7, masked}));
    EXPECT_EQ(labels(R"("completion_mask": [0, 0, 1, 1], "assistant_masks": [0, 1, 1, 0])"),
              (Ints{masked, masked, 7, masked}));
    EXPECT_EQ(labels(R"("labels": [5, 9, -100, 8], "completion_mask": [0, 1, 1, 1], "assistant_masks": null)"),
              (Ints{masked, 9, masked, 8}));
    EXPECT_EQ(labels(R"("loss_mask": [0, 1, 1, 0])"), (Ints{masked, 6, 7, masked}));
    EXPECT_EQ(labels(R"("completion_mask": [0, 0, 1, 1], "attention_mask": [1, 1, 1, 0])"), (Ints{masked, masked, 7}));
    toy::expect_contains(row_refusal(config::DataFormat::tokenized, R"({"input_ids": [5, 6], "completion_mask": [1]})"),
                         {"\"completion_mask\" has 1 elements, \"input_ids\" has 2"});
    toy::expect_contains(
        row_refusal(config::DataFormat::tokenized, R"({"input_ids": [5, 6], "assistant_masks": [1, 2]})"),
        {"assistant_masks[1]: expected 0 or 1, found 2"});
}

TEST(FormatRow, PaddingIsRemoved) {
    const FormattedRow row = format_row(config::DataFormat::tokenized,
                                        R"({"input_ids": [0, 5, 6, 7, 0, 0], "attention_mask": [0, 1, 1, 1, 0, 0],
        "labels": [-100, 5, 6, 7, -100, -100], "position_ids": [1, 0, 1, 2, 3, 4]})");
    EXPECT_EQ(row.ids, (Ints{5, 6, 7}));
    EXPECT_EQ(row.labels, (Ints{5, 6, 7}));
    EXPECT_EQ(row.positions, (Ints{0, 1, 2}));
    toy::expect_contains(
        row_refusal(config::DataFormat::tokenized, R"({"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]})"),
        {"attention_mask hides tokens between others"});
    toy::expect_contains(
        row_refusal(config::DataFormat::tokenized, R"({"input_ids": [1, 2], "attention_mask": [0, 0]})"),
        {"every token"});
}

TEST(FormatRow, TokenisedRowsThatAreWrong) {
    RowOptions options;
    options.vocab_size = 100;
    options.max_positions = 4;
    const auto wrong = [&](const char* row, const std::vector<std::string>& parts) {
        toy::expect_contains(row_refusal(config::DataFormat::tokenized, row, options), parts);
    };
    wrong(R"({"text": "x"})", {"\"input_ids\" is missing", "found: text"});
    wrong(R"({"input_ids": "1 2"})", {"\"input_ids\"", "array of integers", "\"1 2\""});
    wrong(R"({"input_ids": []})", {"\"input_ids\" is empty"});
    wrong(R"({"input_ids": [1, 2.0]})", {"input_ids[1]", "an integer", "2.0"});
    wrong(R"({"input_ids": [1, null]})", {"input_ids[1]", "null"});
    wrong(R"({"input_ids": [[1, 2]]})", {"input_ids[0]", "an array of 2"});
    wrong(R"({"input_ids": [1, 99999999999]})", {"input_ids[1]", "32-bit", "99999999999"});
    wrong(R"({"input_ids": [1, 18446744073709551615]})", {"input_ids[1]", "18446744073709551615"});
    wrong(R"({"input_ids": [1, 100]})", {"input_ids[1] has id 100", "0 ... 99"});
    wrong(R"({"input_ids": [1, -1]})", {"input_ids[1] has id -1"});
    wrong(R"({"input_ids": [1, 2], "labels": [2]})", {"\"labels\" has 1 elements, \"input_ids\" has 2"});
    wrong(R"({"input_ids": [1, 2], "labels": [1, 100]})", {"labels[1] is 100", "-100"});
    wrong(R"({"input_ids": [1, 2], "labels": [1, -1]})", {"labels[1] is -1"});
    wrong(R"({"input_ids": [1, 2], "position_ids": [0]})", {"\"position_ids\" has 1 elements"});
    wrong(R"({"input_ids": [1, 2], "position_ids": [0, -1]})", {"position_ids[1] is -1"});
    wrong(R"({"input_ids": [1, 2, 3], "position_ids": [1, 3, 2]})", {"position_ids[2] is 2 after 3"});
    wrong(R"({"input_ids": [1, 2, 3], "position_ids": [1, 1, 2]})", {"position_ids[1] is 1 after 1"});
    wrong(R"({"input_ids": [1, 2, 3, 4, 5]})", {"5 tokens", "allows 4 positions", "max_seq_length to 4"});
    wrong(R"({"input_ids": [1, 2], "position_ids": [3, 4]})", {"position 4"});
    EXPECT_EQ(format_row(config::DataFormat::tokenized,
                         R"({"input_ids": [1, 2, 3, 4, 5], "position_ids": [0, 1, 2, 3, 0]})", options)
                  .ids.size(),
              5u);
    options.vocab_size = 0;
    options.max_positions = 0;
    EXPECT_EQ(format_row(config::DataFormat::tokenized, R"({"input_ids": [2147483647]})", options).ids,
              (Ints{2147483647}));
}

TEST(FormatRow, AlpacaPromptsAreMasked) {
    const FormattedRow row = format_row(
        config::DataFormat::alpaca, R"({"instruction": "do", "input": "it", "output": "ok", "system": "S", "id": 7})");
    EXPECT_EQ(row.ids, toy::joined({{toy::bos}, toy::bytes("S|do|it>ok"), {toy::eos}}));
    EXPECT_EQ(row.labels, toy::joined({Ints(9, masked), toy::bytes("ok"), {toy::eos}}));
    EXPECT_EQ(row.targets, 3);
    EXPECT_EQ(format_row(config::DataFormat::alpaca, R"({"instruction": "do", "input": null, "output": ""})").ids,
              toy::joined({{toy::bos}, toy::bytes("|do|>"), {toy::eos}}));
}

TEST(FormatRow, TrainOnPromptTrainsEverything) {
    RowOptions options;
    options.train_on_prompt = true;
    const FormattedRow row =
        format_row(config::DataFormat::alpaca, R"({"instruction": "do", "output": "ok"})", options);
    EXPECT_EQ(row.labels, row.ids);
    EXPECT_EQ(row.targets, static_cast<int64_t>(row.ids.size()) - 1);
}

TEST(FormatRow, EveryAssistantTurnIsTrained) {
    const FormattedRow row =
        format_row(config::DataFormat::messages,
                   R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "name": "x"}]})");
    const Ints user = Ints(1 + 5 + 1, masked), header = Ints(10, masked);
    EXPECT_EQ(
        row.labels,
        toy::joined({{masked}, user, header, toy::bytes("b"), {toy::eos}, user, header, toy::bytes("d"), {toy::eos}}));
    EXPECT_EQ(row.targets, 4);
}

TEST(FormatRow, PromptAndCompletion) {
    const FormattedRow row =
        format_row(config::DataFormat::prompt_completion, R"({"prompt": "do ", "completion": "ok"})");
    EXPECT_EQ(row.ids, toy::joined({{toy::bos}, toy::bytes("do ok"), {toy::eos}}));
    EXPECT_EQ(row.labels, toy::joined({Ints(4, masked), toy::bytes("ok"), {toy::eos}}));
    // As conversations: an assistant's turn in the prompt is part of the prompt.
    const std::string turns = R"({"prompt": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}],
        "completion": [{"role": "assistant", "content": "c"}]})";
    EXPECT_EQ(format_row(config::DataFormat::prompt_completion, turns).labels,
              toy::joined({Ints(1 + 12 + 7 + 10, masked), toy::bytes("c"), {toy::eos}}));
    toy::expect_contains(row_refusal(config::DataFormat::prompt_completion, R"({"prompt": "a", "completion": 1})"),
                         {"column \"completion\"", "found 1"});
}

TEST(FormatRow, TextIsTrainedAsAWhole) {
    const FormattedRow row = format_row(config::DataFormat::text, R"({"text": "hi"})");
    EXPECT_EQ(row.ids, toy::joined({{toy::bos}, toy::bytes("hi"), {toy::eos}}));
    EXPECT_EQ(row.labels, row.ids);
    EXPECT_EQ(row.targets, 3);
}

TEST(FormatRow, TextRowsThatAreWrong) {
    const auto wrong = [](config::DataFormat kind, const char* row, const std::vector<std::string>& parts) {
        toy::expect_contains(row_refusal(kind, row), parts);
    };
    wrong(config::DataFormat::text, R"({"text": 5})", {"column \"text\"", "expected a string, found 5"});
    wrong(config::DataFormat::text, R"({"body": "x"})", {"\"text\" is missing", "format text", "found: body"});
    wrong(config::DataFormat::alpaca, R"({"instruction": "a"})", {"\"output\" is missing"});
    wrong(config::DataFormat::messages, R"({"messages": [{"from": "human", "value": "a"}]})",
          {"messages[0]: \"role\" is missing (found: from, value)", "data.format sharegpt"});
    wrong(config::DataFormat::alpaca, R"({"instruction": ["a"], "output": "b"})", {"\"instruction\"", "an array of 1"});
    wrong(config::DataFormat::alpaca, R"({"instruction": "a", "output": "b", "input": 1})", {"\"input\"", "found 1"});
    wrong(config::DataFormat::messages, R"({"messages": "hi"})", {"\"messages\"", "array of {role, content}"});
    wrong(config::DataFormat::messages, R"({"messages": []})", {"an empty one"});
    wrong(config::DataFormat::messages, R"({"messages": ["hi"]})", {"messages[0]", "an object", "\"hi\""});
    wrong(config::DataFormat::messages, R"({"messages": [{"role": "user"}]})",
          {"messages[0]", "\"content\" is missing"});
    wrong(config::DataFormat::messages,
          R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": null}]})",
          {"messages[1].content", "expected a string, found null"});
}

TEST(FormatRow, ATokenizerThatDoesNotFitTheModel) {
    RowOptions options;
    options.vocab_size = 100;
    toy::expect_contains(row_refusal(config::DataFormat::text, R"({"text": "z"})", options),
                         {"id 125", "0 ... 99", "tokenizer"});
}

TEST(FormatRow, LongRowsAreCut) {
    RowOptions options;
    options.max_seq_length = 3;
    options.max_positions = 3;
    FormattedRow row = format_row(
        config::DataFormat::tokenized,
        R"({"input_ids": [1, 2, 3, 4], "labels": [-100, -100, -100, 4], "position_ids": [0, 1, 2, 3]})", options);
    EXPECT_EQ(row.ids, (Ints{1, 2, 3}));
    EXPECT_EQ(row.positions, (Ints{0, 1, 2}));
    EXPECT_TRUE(row.truncated);
    EXPECT_EQ(row.targets, 0);
    row = format_row(config::DataFormat::tokenized, R"({"input_ids": [1, 2, 3]})", options);
    EXPECT_FALSE(row.truncated);
    EXPECT_EQ(row.targets, 2);
}

TEST(FormatRow, TextNeedsATokenizer) {
    toy::expect_contains(
        toy::message_of("tokenizer.not-found", [] { RowFormatter(config::DataFormat::alpaca, {}, nullptr); }),
        {"alpaca", "tokenizer"});
    EXPECT_EQ(RowFormatter(config::DataFormat::tokenized, {}, nullptr).format(parse_row(R"({"input_ids": [1]})")).ids,
              (Ints{1}));
}

}  // namespace
}  // namespace unsloth::data
