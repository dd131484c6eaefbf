#include "unsloth/data/format.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/toy.h"
#include "unsloth/data/reader.h"

namespace unsloth::data {
namespace {

using Ints = std::vector<int32_t>;
constexpr int32_t masked = ignore_label;
const toy::Encoder encoder;

FormattedRow format(config::DataFormat format, const std::string& row, const RowOptions& options = {}) {
    return RowFormatter(format, options, &encoder).format(parse_row(row));
}

std::string refused(config::DataFormat kind, const std::string& row, const RowOptions& options = {}) {
    try {
        format(kind, row, options);
    } catch (const BadRow& bad) {
        return bad.message + "\n" + bad.advice;
    }
    ADD_FAILURE() << row;
    return {};
}

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
    FormattedRow row = format(config::DataFormat::tokenized, R"({"input_ids": [5, 6, 7], "extra": {"x": null}})");
    EXPECT_EQ(row.ids, (Ints{5, 6, 7}));
    EXPECT_EQ(row.labels, (Ints{5, 6, 7}));
    EXPECT_TRUE(row.positions.empty());
    EXPECT_EQ(row.targets, 2);

    row = format(config::DataFormat::tokenized,
                 R"({"input_ids": [5, 6, 7, 8], "labels": [5, -100, 9, 8], "position_ids": [0, 1, 2, 0]})");
    EXPECT_EQ(row.labels, (Ints{5, masked, 9, 8}));
    EXPECT_EQ(row.positions, (Ints{0, 1, 2, 0}));
    EXPECT_EQ(row.targets, 1);  // token 0 and the token that begins the second segment are none

    row = format(config::DataFormat::tokenized, R"({"input_ids": [5, 6], "labels": null, "position_ids": null})");
    EXPECT_EQ(row.labels, (Ints{5, 6}));
}

TEST(FormatRow, TrainOnPromptLeavesGivenLabelsAlone) {
    RowOptions options;
    options.train_on_prompt = true;
    EXPECT_EQ(format(config::DataFormat::tokenized, R"({"input_ids": [5, 6], "labels": [-100, 6]})", options).labels,
              (Ints{masked, 6}));
}

TEST(FormatRow, MasksDecideTheLabels) {
    const auto labels = [](const std::string& masks) {
        return format(config::DataFormat::tokenized, R"({"input_ids": [5, 6, 7, 8], )" + masks + "}").labels;
    };
    EXPECT_EQ(labels(R"("completion_mask": [0, 0, 1, 1])"), (Ints{masked, masked, 7, 8}));
    EXPECT_EQ(labels(R"("assistant_masks": [0, 1, 1, 0])"), (Ints{masked, 6, 7, masked}));
    EXPECT_EQ(labels(R"("completion_mask": [0, 0, 1, 1], "assistant_masks": [0, 1, 1, 0])"),
              (Ints{masked, masked, 7, masked}));
    EXPECT_EQ(labels(R"("labels": [5, 9, -100, 8], "completion_mask": [0, 1, 1, 1], "assistant_masks": null)"),
              (Ints{masked, 9, masked, 8}));
    EXPECT_EQ(labels(R"("loss_mask": [0, 1, 1, 0])"), (Ints{masked, 6, 7, masked}));
    EXPECT_EQ(labels(R"("completion_mask": [0, 0, 1, 1], "attention_mask": [1, 1, 1, 0])"), (Ints{masked, masked, 7}));
    toy::expect_contains(refused(config::DataFormat::tokenized, R"({"input_ids": [5, 6], "completion_mask": [1]})"),
                         {"\"completion_mask\" has 1 elements, \"input_ids\" has 2"});
    toy::expect_contains(refused(config::DataFormat::tokenized, R"({"input_ids": [5, 6], "assistant_masks": [1, 2]})"),
                         {"assistant_masks[1]: expected 0 or 1, found 2"});
}

TEST(FormatRow, PaddingIsRemoved) {
    const FormattedRow row = format(config::DataFormat::tokenized,
                                    R"({"input_ids": [0, 5, 6, 7, 0, 0], "attention_mask": [0, 1, 1, 1, 0, 0],
        "labels": [-100, 5, 6, 7, -100, -100], "position_ids": [1, 0, 1, 2, 3, 4]})");
    EXPECT_EQ(row.ids, (Ints{5, 6, 7}));
    EXPECT_EQ(row.labels, (Ints{5, 6, 7}));
    EXPECT_EQ(row.positions, (Ints{0, 1, 2}));
    toy::expect_contains(
        refused(config::DataFormat::tokenized, R"({"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]})"),
        {"attention_mask hides tokens between others"});
    toy::expect_contains(refused(config::DataFormat::tokenized, R"({"input_ids": [1, 2], "attention_mask": [0, 0]})"),
                         {"every token"});
}

TEST(FormatRow, TokenisedRowsThatAreWrong) {
    RowOptions options;
    options.vocab_size = 100;
    options.max_positions = 4;
    const auto wrong = [&](const char* row, const std::vector<std::string>& parts) {
        toy::expect_contains(refused(config::DataFormat::tokenized, row, options), parts);
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
    EXPECT_EQ(format(config::DataFormat::tokenized,
                     R"({"input_ids": [1, 2, 3, 4, 5], "position_ids": [0, 1, 2, 3, 0]})", options)
                  .ids.size(),
              5u);
    options.vocab_size = 0;
    options.max_positions = 0;
    EXPECT_EQ(format(config::DataFormat::tokenized, R"({"input_ids": [2147483647]})", options).ids, (Ints{2147483647}));
}

TEST(FormatRow, AlpacaPromptsAreMasked) {
    const FormattedRow row = format(config::DataFormat::alpaca,
                                    R"({"instruction": "do", "input": "it", "output": "ok", "system": "S", "id": 7})");
    EXPECT_EQ(row.ids, toy::joined({{toy::bos}, toy::bytes("S|do|it>ok"), {toy::eos}}));
    EXPECT_EQ(row.labels, toy::joined({Ints(9, masked), toy::bytes("ok"), {toy::eos}}));
    EXPECT_EQ(row.targets, 3);
    EXPECT_EQ(format(config::DataFormat::alpaca, R"({"instruction": "do", "input": null, "output": ""})").ids,
              toy::joined({{toy::bos}, toy::bytes("|do|>"), {toy::eos}}));
}

TEST(FormatRow, TrainOnPromptTrainsEverything) {
    RowOptions options;
    options.train_on_prompt = true;
    const FormattedRow row = format(config::DataFormat::alpaca, R"({"instruction": "do", "output": "ok"})", options);
    EXPECT_EQ(row.labels, row.ids);
    EXPECT_EQ(row.targets, static_cast<int64_t>(row.ids.size()) - 1);
}

TEST(FormatRow, EveryAssistantTurnIsTrained) {
    const FormattedRow row =
        format(config::DataFormat::messages,
               R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "name": "x"}]})");
    const Ints user = Ints(1 + 5 + 1, masked), header = Ints(10, masked);
    EXPECT_EQ(
        row.labels,
        toy::joined({{masked}, user, header, toy::bytes("b"), {toy::eos}, user, header, toy::bytes("d"), {toy::eos}}));
    EXPECT_EQ(row.targets, 4);
}

TEST(FormatRow, PromptAndCompletion) {
    const FormattedRow row = format(config::DataFormat::prompt_completion, R"({"prompt": "do ", "completion": "ok"})");
    EXPECT_EQ(row.ids, toy::joined({{toy::bos}, toy::bytes("do ok"), {toy::eos}}));
    EXPECT_EQ(row.labels, toy::joined({Ints(4, masked), toy::bytes("ok"), {toy::eos}}));
    // As conversations: an assistant's turn in the prompt is part of the prompt.
    const std::string turns = R"({"prompt": [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}],
        "completion": [{"role": "assistant", "content": "c"}]})";
    EXPECT_EQ(format(config::DataFormat::prompt_completion, turns).labels,
              toy::joined({Ints(1 + 12 + 7 + 10, masked), toy::bytes("c"), {toy::eos}}));
    toy::expect_contains(refused(config::DataFormat::prompt_completion, R"({"prompt": "a", "completion": 1})"),
                         {"column \"completion\"", "found 1"});
}

/// Labels of the rows' answers "b" and "d", each as (trained or not).
std::pair<bool, bool> trained_answers(config::DataFormat kind, const std::string& row, const RowOptions& options = {}) {
    const FormattedRow formatted = format(kind, row, options);
    const auto trained = [&](char c) {
        for (std::size_t t = 0; t < formatted.ids.size(); ++t)
            if (formatted.ids[t] == toy::bytes(std::string_view(&c, 1))[0]) return formatted.labels[t] != masked;
        ADD_FAILURE() << "no " << c;
        return false;
    };
    return {trained('Y'), trained('Z')};
}

TEST(FormatRow, WeightsAndLastTurns) {
    const auto row = [](const std::string& first, const std::string& second) {
        return cat(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "Y")", first,
                   R"(}, {"role": "user", "content": "r"}, {"role": "assistant", "content": "Z")", second, "}]}");
    };
    using Both = std::pair<bool, bool>;
    RowOptions last, all;
    last.train_on_last_turn_only = true;
    all.train_on_prompt = true;
    EXPECT_EQ(trained_answers(config::DataFormat::messages, row("", "")), Both(true, true));
    EXPECT_EQ(trained_answers(config::DataFormat::messages, row(R"(, "weight": 0)", "")), Both(false, true));
    EXPECT_EQ(trained_answers(config::DataFormat::messages, row(R"(, "weight": 1)", R"(, "weight": 0.0)")),
              Both(true, false));
    EXPECT_EQ(trained_answers(config::DataFormat::messages, row("", ""), last), Both(false, true));
    EXPECT_EQ(trained_answers(config::DataFormat::messages, row("", R"(, "weight": 0)"), last), Both(false, false));
    EXPECT_EQ(trained_answers(config::DataFormat::messages, row(R"(, "weight": 0)", ""), all), Both(false, true));
    toy::expect_contains(refused(config::DataFormat::messages, row(R"(, "weight": 0.5)", "")),
                         {"messages[1].weight", "0 or 1", "0.5"});
    toy::expect_contains(
        refused(config::DataFormat::messages, R"({"messages": [{"role": "user", "content": "q", "weight": 1}]})"),
        {"messages[0].weight", "only messages of the assistant"});
    // The same of other programs' names for it.
    for (const char* flag : {"weight", "loss", "loss_mask", "trainable", "train", "training"}) {
        const auto says = [&](const char* value) { return cat(R"(, ")", flag, R"(": )", value); };
        for (const char* no : {"0", "false"})
            EXPECT_EQ(trained_answers(config::DataFormat::messages, row(says(no), says("true"))), Both(false, true))
                << flag;
        EXPECT_EQ(trained_answers(config::DataFormat::messages, row(says("null"), says("1"))), Both(true, true));
        EXPECT_EQ(
            trained_answers(config::DataFormat::sharegpt,
                            cat(R"({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "Y")",
                                says("false"), R"(}, {"from": "gpt", "value": "Z"}]})")),
            Both(false, true));
        toy::expect_contains(refused(config::DataFormat::messages, row(says("1.5"), "")),
                             {cat("messages[1].", flag), "0 or 1", "1.5"});
    }
    toy::expect_contains(refused(config::DataFormat::messages, row(R"(, "weight": 1, "loss": false)", "")),
                         {"messages[1]: weight and loss", "opposite"});
    toy::expect_contains(refused(config::DataFormat::messages, row(R"(, "train_detail": [{"train": false}])", "")),
                         {"messages[1].train_detail"});
}

TEST(FormatRow, ASystemColumnComesBeforeTheConversation) {
    const std::string talk = R"({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
    const std::string own = R"([{"role": "system", "content": "s"}, )";
    const FormattedRow expected = format(config::DataFormat::messages, R"({"messages": )" + own + talk + "}");
    const auto same = [&](config::DataFormat kind, const std::string& columns) {
        const FormattedRow given = format(kind, R"({"system": "s", )" + columns + "}");
        EXPECT_EQ(given.ids, expected.ids) << columns;
        EXPECT_EQ(given.labels, expected.labels) << columns;
        EXPECT_EQ(given.doubts, 0u);
    };
    same(config::DataFormat::messages, R"("messages": [)" + talk);
    same(config::DataFormat::messages, R"("messages": )" + own + talk);
    same(config::DataFormat::sharegpt,
         R"("conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}])");
    same(config::DataFormat::prompt_completion,
         R"("prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}])");
    same(
        config::DataFormat::prompt_completion,
        R"("prompt": "[{\"role\": \"user\", \"content\": \"a\"}]", "completion": "[{\"role\": \"assistant\", \"content\": \"b\"}]")");
    toy::expect_contains(
        toy::message_of(
            ErrorKind::input,
            [&] { format(config::DataFormat::messages, R"({"system": "t", "messages": )" + own + talk + "}"); }),
        {"column \"system\"", "not the same text"});
    const std::string parts = R"({"system": "s", "messages": [{"role": "system", "content": [{"type": "text", "text":
        "s"}]}, )";
    EXPECT_EQ(format(config::DataFormat::messages, parts + talk + "}").ids, expected.ids);
    EXPECT_EQ(
        format(config::DataFormat::messages, R"({"system": null, "history": [], "messages": )" + own + talk + "}").ids,
        expected.ids);
}

TEST(FormatRow, ColumnsThatATextIsNotReadWithAreInDoubt) {
    const auto doubts = [](config::DataFormat kind, const std::string& row) { return format(kind, row).doubts; };
    constexpr auto system = static_cast<uint32_t>(RowDoubt::unread_system),
                   history = static_cast<uint32_t>(RowDoubt::unread_history),
                   tools = static_cast<uint32_t>(RowDoubt::unread_tools);
    const std::string all = R"(, "system": "s", "history": [["a", "b"]], "tools": "[{}]"})",
                      none = R"(, "system": "", "history": "[]", "tools": []})";
    for (const auto& [kind, row] :
         {std::pair{config::DataFormat::text, std::string(R"({"text": "a")")},
          std::pair{config::DataFormat::prompt_completion, std::string(R"({"prompt": "a", "completion": "b")")}}) {
        EXPECT_EQ(doubts(kind, row + all), system | history | tools) << row;
        EXPECT_EQ(doubts(kind, row + none), 0u) << row;
    }
    EXPECT_EQ(doubts(config::DataFormat::messages,
                     R"({"messages": [{"role": "assistant", "content": "b"}], "history": [["a", "b"]]})"),
              history);
    EXPECT_EQ(doubts(config::DataFormat::sharegpt,
                     R"({"conversations": [{"from": "gpt", "value": "b"}], "images": ["a.png"], "videos": []})"),
              static_cast<uint32_t>(RowDoubt::unread_media));
}

TEST(FormatRow, InstructionsMayHaveEarlierTurns) {
    class Conversing : public toy::Encoder {
      public:
        InstructionForm instruction_form() const override { return InstructionForm::conversation; }
    };
    const Conversing conversing;
    const std::string row =
        R"({"instruction": "i", "input": "j", "output": "Z", "history": [["q", "Y"]], "system": "s"})";
    const auto formatted = [&](const std::string& text, const RowOptions& options) {
        return RowFormatter(config::DataFormat::alpaca, options, &conversing).format(parse_row(text));
    };
    RowOptions last;
    last.train_on_last_turn_only = true;
    const std::string messages = R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"},
        {"role": "assistant", "content": "Y"}, {"role": "user", "content": "i\nj"}, {"role": "assistant", "content": "Z"}]})";
    for (const RowOptions& options : {RowOptions(), last}) {
        const FormattedRow given = formatted(row, options),
                           expected = format(config::DataFormat::messages, messages, options);
        EXPECT_EQ(given.ids, expected.ids);
        EXPECT_EQ(given.labels, expected.labels);
    }
    const FormattedRow table = formatted(
        R"({"instruction": "i", "input": "j", "output": "Z", "history": "[[\"q\", \"Y\"]]", "system": "s"})", {});
    EXPECT_EQ(table.ids, formatted(row, {}).ids) << "a table has history as JSON text";
    for (const char* odd : {R"([["a"]])", R"(["a"])", R"([["a", 5]])"}) try {
            formatted(cat(R"({"instruction": "i", "output": "o", "history": )", odd, "}"), {});
            ADD_FAILURE() << odd;
        } catch (const BadRow& bad) {
            toy::expect_contains(bad.message, {"history[0]"});
        }
    // The three-section prompt has no place for these.
    toy::expect_contains(refused(config::DataFormat::alpaca, row),
                         {"\"history\"", "### Instruction:", "data.template"});
    toy::expect_contains(
        refused(config::DataFormat::alpaca, R"({"instruction": "i", "output": "o", "tools": [{"name": "f"}]})"),
        {"\"tools\""});
}

TEST(FormatRow, RolesOfOtherNamesAreRefused) {
    for (const char* role : {"gpt", "human", "Human", "User", "ASSISTANT", "model", "observation"})
        toy::expect_contains(
            refused(config::DataFormat::messages, cat(R"({"messages": [{"role": ")", role, R"(", "content": "a"}]})")),
            {"messages[0].role", role, "data.format sharegpt"});
    // Whatever else it is, the template decides.
    EXPECT_EQ(format(config::DataFormat::messages, R"({"messages": [{"role": "critic", "content": "a"}]})").ids.front(),
              toy::bos);
    EXPECT_EQ(format(config::DataFormat::sharegpt,
                     R"({"conversations": [{"from": "Human", "value": "a"}, {"from": "GPT", "value": "b"}]})")
                  .ids,
              format(config::DataFormat::messages,
                     R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})")
                  .ids);
}

TEST(FormatRow, ShareGptSpeakers) {
    const FormattedRow expected =
        format(config::DataFormat::messages, R"({"messages": [{"role": "system", "content": "s"},
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
    for (
        const char* row :
        {R"({"system": "s", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})",
         R"({"conversations": [{"from": "system", "value": "s"}, {"from": "user", "value": "a"}, {"from": "chatgpt", "value": "b"}]})",
         R"({"conversations": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"}) {
        const FormattedRow given = format(config::DataFormat::sharegpt, row);
        EXPECT_EQ(given.ids, expected.ids) << row;
        EXPECT_EQ(given.labels, expected.labels) << row;
    }
    toy::expect_contains(
        refused(config::DataFormat::sharegpt, R"({"conversations": [{"from": "narrator", "value": "a"}]})"),
        {"conversations[0]", "unknown speaker \"narrator\"", "human"});
    toy::expect_contains(refused(config::DataFormat::sharegpt, R"({"conversations": [{"from": "gpt"}]})"),
                         {"conversations[0]", "\"value\" is missing"});
}

TEST(FormatRow, ContentsInPartsAndAsJsonText) {
    const Ints whole = format(config::DataFormat::messages, R"({"messages": [{"role": "user", "content": "ab"}]})").ids;
    EXPECT_EQ(format(config::DataFormat::messages,
                     R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"},
        {"type": "text", "text": "b"}]}]})")
                  .ids,
              whole);
    EXPECT_EQ(
        format(config::DataFormat::messages, R"({"messages": "[{\"role\": \"user\", \"content\": \"ab\"}]"})").ids,
        whole);
    toy::expect_contains(refused(config::DataFormat::messages,
                                 R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})"),
                         {"the row has images", "reads text alone"});
}

TEST(FormatRow, ToolsReachTheEncoderAsJson) {
    class Tools : public toy::Encoder {
      public:
        EncodedRow whole_conversation(const Conversation& conversation) const override {
            EXPECT_EQ((*conversation.row)["messages"][0]["tool_calls"][0]["function"]["name"], "f");
            EXPECT_EQ((*conversation.row)["tools"][0]["type"], "function");
            return {{5, 6}, {{1, 2}}};
        }
    };
    const char* const row = R"({"tools": [{"type": "function"}], "messages": [{"role": "assistant", "content": null,
        "tool_calls": [{"function": {"name": "f"}}]}]})";
    const Tools tools;
    EXPECT_EQ(RowFormatter(config::DataFormat::messages, {}, &tools).format(parse_row(row)).labels, (Ints{masked, 6}));
    toy::expect_contains(toy::message_of("template.omits-content", [&] { format(config::DataFormat::messages, row); }),
                         {"uses tools"});
    toy::expect_contains(toy::message_of("template.omits-content",
                                         [&] {
                                             format(config::DataFormat::messages,
                                                    R"({"messages": [{"role": "assistant", "content": null,
                                                        "function_call": {"name": "f", "arguments": "{}"}}]})");
                                         }),
                         {"uses tools"});
    toy::expect_contains(refused(config::DataFormat::messages,
                                 R"({"messages": [{"role": "user", "content": "a"}], "functions": [{"name": "f"}]})"),
                         {"column \"functions\"", "tools"});
    const std::string deep = cat(R"({"messages": [{"role": "assistant", "tool_calls": )", std::string(500, '['),
                                 std::string(500, ']'), "}]}");
    toy::expect_contains(refused(config::DataFormat::messages, deep), {"nested more than 100 deep"});
}

TEST(FormatRow, ShareGptRowsKeepCallsReasoningAndNames) {
    class Whole : public toy::Encoder {
      public:
        EncodedRow whole_conversation(const Conversation& conversation) const override {
            messages = (*conversation.row)["messages"].dump();
            uses_tools = conversation.uses_tools;
            return {{5, 6}, {{1, 2}}};
        }
        mutable std::string messages;
        mutable bool uses_tools = false;
    };
    const Whole whole;
    const auto messages = [&](const std::string& turns) {
        RowFormatter(config::DataFormat::sharegpt, {}, &whole)
            .format(parse_row(R"({"conversations": [)" + turns + "]}"));
        return whole.messages;
    };
    EXPECT_EQ(messages(R"({"from": "human", "value": "a", "name": "Al"},
                          {"from": "gpt", "value": "b", "reasoning_content": "r", "weight": 1})"),
              R"([{"role":"user","content":"a","name":"Al"},)"
              R"({"role":"assistant","content":"b","reasoning_content":"r","weight":1}])");
    EXPECT_FALSE(whole.uses_tools);
    const std::string called =
        R"([{"role":"assistant","content":"","tool_calls":[{"type":"function","function":{"name":"f","arguments":{"n":1}}}]},)"
        R"({"role":"tool","content":"2"}])";
    const std::string answer = R"(, {"from": "observation", "value": "2"})";
    EXPECT_EQ(
        messages(R"({"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"n\": 1}}"})" + answer),
        called);
    EXPECT_TRUE(whole.uses_tools);
    EXPECT_EQ(messages(R"({"from": "function_call", "value": [{"name": "f", "arguments": {"n": 1}}]})" + answer),
              called);
    EXPECT_EQ(messages(R"({"from": "gpt", "value": null, "tool_calls": [{"type": "function", "function":
                          {"name": "f", "arguments": {"n": 1}}}]})" +
                       answer),
              called);
    for (const char* value : {"\"I call f\"", "\"[]\"", "{\"name\": \"f\"}", "7"})
        toy::expect_contains(refused(config::DataFormat::sharegpt,
                                     cat(R"({"conversations": [{"from": "function_call", "value": )", value, "}]}")),
                             {"conversations[0].value", "expected a call"});
    toy::expect_contains(refused(config::DataFormat::messages,
                                 R"({"messages": [{"role": "assistant", "content": "", "tool_calls": "[]"}]})"),
                         {"messages[0].tool_calls", "expected an array of calls"});
}

TEST(FormatRow, WhatMessagesSayBesideTheirContentsReachesTheEncoder) {
    class Whole : public toy::Encoder {
      public:
        EncodedRow whole_conversation(const Conversation& conversation) const override {
            EXPECT_FALSE(conversation.uses_tools);
            EXPECT_EQ(
                (*conversation.row)["messages"],
                nlohmann::ordered_json::parse(
                    R"([{"role": "user", "content": "ab", "name": null}, {"role": "assistant", "content": "c", "reasoning_content": "r"}])"));
            return {{5, 6}, {{1, 2}}};
        }
    };
    const Whole whole;
    const char* const user =
        R"({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": null})";
    const char* const answer = R"({"role": "assistant", "content": "c", "reasoning_content": "r"})";
    const auto labels = [&](config::DataFormat format, const std::string& row) {
        return RowFormatter(format, {}, &whole).format(parse_row(row)).labels;
    };
    EXPECT_EQ(labels(config::DataFormat::messages, cat(R"({"messages": [)", user, ", ", answer, "]}")),
              (Ints{masked, 6}));
    EXPECT_EQ(labels(config::DataFormat::prompt_completion,
                     cat(R"({"prompt": [)", user, R"(], "completion": [)", answer, "]}")),
              (Ints{masked, 6}));
    // Nothing more is said: the plain way, and that of encoders that know no other.
    EXPECT_EQ(labels(config::DataFormat::messages, cat(R"({"messages": [)", user, "]}")),
              format(config::DataFormat::messages, cat(R"({"messages": [)", user, "]}")).labels);
    EXPECT_EQ(format(config::DataFormat::messages, cat(R"({"messages": [)", answer, "]}")).ids,
              format(config::DataFormat::messages, R"({"messages": [{"role": "assistant", "content": "c"}]})").ids);
}

TEST(FormatRow, DeepNestingIsNoCrashWhereverItStands) {
    constexpr int deep = 900;  // just below what a row may have
    const std::string nested = std::string(deep, '[') + std::string(deep, ']');
    const auto message = [&](const std::string& content) {
        return cat(R"({"messages": [{"role": "user", "content": )", content, "}]}");
    };
    toy::expect_contains(refused(config::DataFormat::messages, message(nested)), {"messages[0].content"});
    toy::expect_contains(
        refused(config::DataFormat::messages, message(cat(R"([{"type": )", nested, R"(, "text": "a"}])"))),
        {"messages[0].content"});
    toy::expect_contains(
        refused(config::DataFormat::messages, message(cat(R"([{"type": "text", "text": )", nested, "}]"))),
        {"messages[0].content"});
    toy::expect_contains(
        refused(config::DataFormat::messages, cat(R"({"messages": [{"role": )", nested, R"(, "content": "a"}]})")),
        {"messages[0].role"});
    toy::expect_contains(refused(config::DataFormat::messages,
                                 cat(R"({"messages": [{"role": "user", "content": "a", "weight": )", nested, "}]}")),
                         {"weight"});
    toy::expect_contains(refused(config::DataFormat::tokenized, cat(R"({"input_ids": [)", nested, "]}")),
                         {"input_ids[0]"});
    toy::expect_contains(refused(config::DataFormat::text, cat(R"({"text": )", nested, "}")), {"expected a string"});
    // JSON within a string is parsed too.
    constexpr int endless = 1'000'000;
    const std::string within =
        cat(R"([{\"a\": )", std::string(endless, '['), std::string(endless, ']'), R"(, \"b\": 1}])");
    toy::expect_contains(refused(config::DataFormat::messages, cat(R"({"messages": ")", within, R"("})")),
                         {"expected an array", "a string of"});
    toy::expect_contains(
        refused(config::DataFormat::prompt_completion, cat(R"({"prompt": ")", within, R"(", "completion": []})")),
        {"expected an array"});
}

TEST(FormatRow, TextIsTrainedAsAWhole) {
    const FormattedRow row = format(config::DataFormat::text, R"({"text": "hi"})");
    EXPECT_EQ(row.ids, toy::joined({{toy::bos}, toy::bytes("hi"), {toy::eos}}));
    EXPECT_EQ(row.labels, row.ids);
    EXPECT_EQ(row.targets, 3);
}

TEST(FormatRow, TextRowsThatAreWrong) {
    const auto wrong = [](config::DataFormat kind, const char* row, const std::vector<std::string>& parts) {
        toy::expect_contains(refused(kind, row), parts);
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
    toy::expect_contains(refused(config::DataFormat::text, R"({"text": "z"})", options),
                         {"id 125", "0 ... 99", "tokenizer"});
}

TEST(FormatRow, LongRowsAreCut) {
    RowOptions options;
    options.max_seq_length = 3;
    options.max_positions = 3;
    FormattedRow row = format(
        config::DataFormat::tokenized,
        R"({"input_ids": [1, 2, 3, 4], "labels": [-100, -100, -100, 4], "position_ids": [0, 1, 2, 3]})", options);
    EXPECT_EQ(row.ids, (Ints{1, 2, 3}));
    EXPECT_EQ(row.positions, (Ints{0, 1, 2}));
    EXPECT_TRUE(row.truncated);
    EXPECT_EQ(row.targets, 0);
    row = format(config::DataFormat::tokenized, R"({"input_ids": [1, 2, 3]})", options);
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
