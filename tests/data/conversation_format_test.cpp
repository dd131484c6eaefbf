// Conversations and instructions in every form: what is trained, and what reaches the encoder.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/format_support.h"

namespace unsloth::data {
namespace {

using Ints = std::vector<int32_t>;

/// Labels of the rows' answers "b" and "d", each as (trained or not).
std::pair<bool, bool> trained_answers(config::DataFormat kind, const std::string& row, const RowOptions& options = {}) {
    const FormattedRow formatted = format_row(kind, row, options);
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
    toy::expect_contains(row_refusal(config::DataFormat::messages, row(R"(, "weight": 0.5)", "")),
                         {"messages[1].weight", "0 or 1", "0.5"});
    toy::expect_contains(
        row_refusal(config::DataFormat::messages, R"({"messages": [{"role": "user", "content": "q", "weight": 1}]})"),
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
        toy::expect_contains(row_refusal(config::DataFormat::messages, row(says("1.5"), "")),
                             {cat("messages[1].", flag), "0 or 1", "1.5"});
    }
    toy::expect_contains(row_refusal(config::DataFormat::messages, row(R"(, "weight": 1, "loss": false)", "")),
                         {"messages[1]: weight and loss", "opposite"});
    toy::expect_contains(row_refusal(config::DataFormat::messages, row(R"(, "train_detail": [{"train": false}])", "")),
                         {"messages[1].train_detail"});
}

TEST(FormatRow, ASystemColumnComesBeforeTheConversation) {
    const std::string talk = R"({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
    const std::string own = R"([{"role": "system", "content": "s"}, )";
    const FormattedRow expected = format_row(config::DataFormat::messages, R"({"messages": )" + own + talk + "}");
    const auto same = [&](config::DataFormat kind, const std::string& columns) {
        const FormattedRow given = format_row(kind, R"({"system": "s", )" + columns + "}");
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
            [&] { format_row(config::DataFormat::messages, R"({"system": "t", "messages": )" + own + talk + "}"); }),
        {"column \"system\"", "not the same text"});
    const std::string parts = R"({"system": "s", "messages": [{"role": "system", "content": [{"type": "text", "text":
        "s"}]}, )";
    EXPECT_EQ(format_row(config::DataFormat::messages, parts + talk + "}").ids, expected.ids);
    EXPECT_EQ(
        format_row(config::DataFormat::messages, R"({"system": null, "history": [], "messages": )" + own + talk + "}")
            .ids,
        expected.ids);
}

TEST(FormatRow, ColumnsThatATextIsNotReadWithAreInDoubt) {
    const auto doubts = [](config::DataFormat kind, const std::string& row) { return format_row(kind, row).doubts; };
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
                           expected = format_row(config::DataFormat::messages, messages, options);
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
    toy::expect_contains(row_refusal(config::DataFormat::alpaca, row),
                         {"\"history\"", "### Instruction:", "data.template"});
    toy::expect_contains(
        row_refusal(config::DataFormat::alpaca, R"({"instruction": "i", "output": "o", "tools": [{"name": "f"}]})"),
        {"\"tools\""});
}

TEST(FormatRow, RolesOfOtherNamesAreRefused) {
    for (const char* role : {"gpt", "human", "Human", "User", "ASSISTANT", "model", "observation"})
        toy::expect_contains(row_refusal(config::DataFormat::messages,
                                         cat(R"({"messages": [{"role": ")", role, R"(", "content": "a"}]})")),
                             {"messages[0].role", role, "data.format sharegpt"});
    // Whatever else it is, the template decides.
    EXPECT_EQ(
        format_row(config::DataFormat::messages, R"({"messages": [{"role": "critic", "content": "a"}]})").ids.front(),
        toy::bos);
    EXPECT_EQ(format_row(config::DataFormat::sharegpt,
                         R"({"conversations": [{"from": "Human", "value": "a"}, {"from": "GPT", "value": "b"}]})")
                  .ids,
              format_row(config::DataFormat::messages,
                         R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})")
                  .ids);
}

TEST(FormatRow, ShareGptSpeakers) {
    const FormattedRow expected =
        format_row(config::DataFormat::messages, R"({"messages": [{"role": "system", "content": "s"},
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
    for (
        const char* row :
        {R"({"system": "s", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})",
         R"({"conversations": [{"from": "system", "value": "s"}, {"from": "user", "value": "a"}, {"from": "chatgpt", "value": "b"}]})",
         R"({"conversations": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"}) {
        const FormattedRow given = format_row(config::DataFormat::sharegpt, row);
        EXPECT_EQ(given.ids, expected.ids) << row;
        EXPECT_EQ(given.labels, expected.labels) << row;
    }
    toy::expect_contains(
        row_refusal(config::DataFormat::sharegpt, R"({"conversations": [{"from": "narrator", "value": "a"}]})"),
        {"conversations[0]", "unknown speaker \"narrator\"", "human"});
    toy::expect_contains(row_refusal(config::DataFormat::sharegpt, R"({"conversations": [{"from": "gpt"}]})"),
                         {"conversations[0]", "\"value\" is missing"});
}

TEST(FormatRow, ContentsInPartsAndAsJsonText) {
    const Ints whole =
        format_row(config::DataFormat::messages, R"({"messages": [{"role": "user", "content": "ab"}]})").ids;
    EXPECT_EQ(format_row(config::DataFormat::messages,
                         R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"},
        {"type": "text", "text": "b"}]}]})")
                  .ids,
              whole);
    EXPECT_EQ(
        format_row(config::DataFormat::messages, R"({"messages": "[{\"role\": \"user\", \"content\": \"ab\"}]"})").ids,
        whole);
    toy::expect_contains(row_refusal(config::DataFormat::messages,
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
    toy::expect_contains(
        toy::message_of("template.omits-content", [&] { format_row(config::DataFormat::messages, row); }),
        {"uses tools"});
    toy::expect_contains(toy::message_of("template.omits-content",
                                         [&] {
                                             format_row(config::DataFormat::messages,
                                                        R"({"messages": [{"role": "assistant", "content": null,
                                                        "function_call": {"name": "f", "arguments": "{}"}}]})");
                                         }),
                         {"uses tools"});
    toy::expect_contains(
        row_refusal(config::DataFormat::messages,
                    R"({"messages": [{"role": "user", "content": "a"}], "functions": [{"name": "f"}]})"),
        {"column \"functions\"", "tools"});
    const std::string deep = cat(R"({"messages": [{"role": "assistant", "tool_calls": )", std::string(500, '['),
                                 std::string(500, ']'), "}]}");
    toy::expect_contains(row_refusal(config::DataFormat::messages, deep), {"nested more than 100 deep"});
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
        toy::expect_contains(
            row_refusal(config::DataFormat::sharegpt,
                        cat(R"({"conversations": [{"from": "function_call", "value": )", value, "}]}")),
            {"conversations[0].value", "expected a call"});
    toy::expect_contains(row_refusal(config::DataFormat::messages,
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
              format_row(config::DataFormat::messages, cat(R"({"messages": [)", user, "]}")).labels);
    EXPECT_EQ(format_row(config::DataFormat::messages, cat(R"({"messages": [)", answer, "]}")).ids,
              format_row(config::DataFormat::messages, R"({"messages": [{"role": "assistant", "content": "c"}]})").ids);
}

TEST(FormatRow, DeepNestingIsNoCrashWhereverItStands) {
    constexpr int deep = 900;  // just below what a row may have
    const std::string nested = std::string(deep, '[') + std::string(deep, ']');
    const auto message = [&](const std::string& content) {
        return cat(R"({"messages": [{"role": "user", "content": )", content, "}]}");
    };
    toy::expect_contains(row_refusal(config::DataFormat::messages, message(nested)), {"messages[0].content"});
    toy::expect_contains(
        row_refusal(config::DataFormat::messages, message(cat(R"([{"type": )", nested, R"(, "text": "a"}])"))),
        {"messages[0].content"});
    toy::expect_contains(
        row_refusal(config::DataFormat::messages, message(cat(R"([{"type": "text", "text": )", nested, "}]"))),
        {"messages[0].content"});
    toy::expect_contains(
        row_refusal(config::DataFormat::messages, cat(R"({"messages": [{"role": )", nested, R"(, "content": "a"}]})")),
        {"messages[0].role"});
    toy::expect_contains(
        row_refusal(config::DataFormat::messages,
                    cat(R"({"messages": [{"role": "user", "content": "a", "weight": )", nested, "}]}")),
        {"weight"});
    toy::expect_contains(row_refusal(config::DataFormat::tokenized, cat(R"({"input_ids": [)", nested, "]}")),
                         {"input_ids[0]"});
    toy::expect_contains(row_refusal(config::DataFormat::text, cat(R"({"text": )", nested, "}")),
                         {"expected a string"});
    // JSON within a string is parsed too.
    constexpr int endless = 1'000'000;
    const std::string within =
        cat(R"([{\"a\": )", std::string(endless, '['), std::string(endless, ']'), R"(, \"b\": 1}])");
    toy::expect_contains(row_refusal(config::DataFormat::messages, cat(R"({"messages": ")", within, R"("})")),
                         {"expected an array", "a string of"});
    toy::expect_contains(
        row_refusal(config::DataFormat::prompt_completion, cat(R"({"prompt": ")", within, R"(", "completion": []})")),
        {"expected an array"});
}

}  // namespace
}  // namespace unsloth::data
