#include "unsloth/openai/tool_calls.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/grammar/matcher.h"
#include "unsloth/openai/harmony.h"
#include "unsloth/openai/response.h"
#include "unsloth/spec/reasoning_names.h"

namespace unsloth::openai {
namespace {

using Json = nlohmann::ordered_json;

struct Read {
    std::string content;
    std::vector<ToolDelta> calls;  ///< whole
};

/// In pieces of `size` bytes.
Read read(ToolFormat format, const std::string& text, std::size_t size, std::size_t most = 9) {
    int made = 0;
    ToolCallReader reader(format, {"weather", "time"}, [&] { return cat("id", made++); }, most);
    Read all;
    for (std::size_t at = 0; at <= text.size(); at += size) {
        const bool ends = at + size > text.size();
        ToolCallReader::Found found = reader.add(text.substr(at, size), ends);
        all.content += found.content;
        for (const ToolDelta& delta : found.calls)
            if (!delta.id.empty()) {
                EXPECT_EQ(delta.index, static_cast<int64_t>(all.calls.size()));
                all.calls.push_back(delta);
            } else {
                EXPECT_EQ(delta.index + 1, static_cast<int64_t>(all.calls.size()));
                all.calls.back().arguments += delta.arguments;
            }
    }
    EXPECT_EQ(reader.has_calls(), made > 0);
    return all;
}

struct Case {
    ToolFormat format;
    std::string text, content;
    std::vector<std::pair<std::string, std::string>> calls;
};

TEST(ToolCalls, AreReadHoweverTheTextIsCut) {
    constexpr auto hermes = ToolFormat::hermes, llama3 = ToolFormat::llama3, mistral = ToolFormat::mistral;
    const std::vector<Case> cases = {
        {hermes,
         "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"a\": \"}\\\"{\"}}\n</tool_call>",
         "",
         {{"weather", "{\"a\": \"}\\\"{\"}"}}},
        {hermes,
         "Let me see.\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n"
         "{\"name\":\"time\",\"arguments\":{\"x\":[{}]}}\n</tool_call>\n",
         "Let me see.",
         {{"weather", "{}"}, {"time", "{\"x\":[{}]}"}}},
        {hermes, "1 < 2 and <tool is no call. \n", "1 < 2 and <tool is no call. \n", {}},
        {hermes,
         "<tool_call>\n{\"arguments\": {\"b\": 1}, \"name\": \"time\"}\n</tool_call>",
         "",
         {{"time", "{\"b\":1}"}}},
        {hermes,
         "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
         "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
         {}},
        {hermes, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"cut", "", {{"weather", "{\"cut"}}},
        {hermes, "<tool_call>\n{\"nam", "<tool_call>\n{\"nam", {}},
        {llama3,
         "{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\"}}",
         "",
         {{"weather", "{\"city\": \"Rome\"}"}}},
        {llama3,
         "{\"name\": \"weather\", \"parameters\": {}}; {\"name\": \"time\", \"parameters\": {}}",
         "",
         {{"weather", "{}"}, {"time", "{}"}}},
        {llama3, "{\"city\": \"Rome\"}", "{\"city\": \"Rome\"}", {}},
        {llama3,
         "It rains: {\"name\": \"weather\", \"parameters\": {}}",
         "It rains: {\"name\": \"weather\", \"parameters\": {}}",
         {}},
        {mistral,
         "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {}}, {\"name\": \"time\", \"arguments\": {\"a\": 1}}]",
         "",
         {{"weather", "{}"}, {"time", "{\"a\": 1}"}}},
        {mistral, " [{\"name\": \"time\", \"arguments\": {\"a\": 1}}]", "", {{"time", "{\"a\": 1}"}}},
        {mistral, "[1, 2] is a list", "[1, 2] is a list", {}},
        {mistral, "Hello", "Hello", {}},
    };
    for (const Case& one : cases)
        for (const std::size_t size : {std::size_t{1}, std::size_t{3}, std::size_t{7}, one.text.size()}) {
            SCOPED_TRACE(cat(one.text, " in pieces of ", size));
            const Read found = read(one.format, one.text, size);
            EXPECT_EQ(found.content, one.content);
            ASSERT_EQ(found.calls.size(), one.calls.size());
            for (std::size_t i = 0; i < one.calls.size(); ++i) {
                EXPECT_EQ(found.calls[i].name, one.calls[i].first);
                EXPECT_EQ(found.calls[i].arguments, one.calls[i].second);
            }
        }
    EXPECT_EQ(read(hermes, cases[1].text, 5, 1).calls.size(), 1U) << "parallel calls were not wanted";
}

TEST(ToolCalls, FormatsAreSeenInATemplatesText) {
    EXPECT_EQ(tool_format_of("<tool_call>\n{\"name\": \"probe\", \"arguments\": {\"key\": \"value\"}}\n</tool_call>"),
              ToolFormat::hermes);
    EXPECT_EQ(tool_format_of("{\"name\": \"probe\", \"parameters\": {\"key\": \"value\"}}<|eot_id|>"),
              ToolFormat::llama3);
    EXPECT_EQ(tool_format_of(
                  "[TOOL_CALLS] [{\"name\": \"probe\", \"arguments\": {\"key\": \"value\"}, \"id\": \"abcdefghi\"}]"),
              ToolFormat::mistral);
    EXPECT_EQ(tool_format_of("<|start|>assistant to=functions.probe<|channel|>commentary json<|message|>{\"key\": "
                             "\"value\"}<|call|>"),
              ToolFormat::harmony);
    EXPECT_FALSE(tool_format_of("<tool_call>\n<function=probe>\n<parameter=key>\nvalue\n</parameter>"));
}

/// What a grammar demands is what the reader reads.
TEST(ToolCalls, PatternsAreWhatReadersRead) {
    const std::vector<Tool> tools = {{"weather", R"({"type": "object", "properties": {"d": {"type": "integer"}},
                                                    "required": ["d"]})"},
                                     {"time", ""}};
    std::vector<std::string> bytes;
    for (int i = 0; i < 256; ++i) bytes.emplace_back(1, static_cast<char>(i));
    const auto vocabulary = std::make_shared<const grammar::Vocabulary>(bytes);
    const auto accepts = [&](ToolFormat format, const ToolChoice& choice, bool in_parallel, const std::string& text) {
        grammar::Matcher matcher(std::make_shared<grammar::MaskCache>(
            std::make_shared<const grammar::Grammar>(tool_pattern(format, tools, choice, in_parallel)), vocabulary));
        const bool fits = matcher.advance(text) && matcher.may_end();
        EXPECT_TRUE(!fits || !read(format, text, 4).calls.empty()) << text;
        return fits;
    };
    const ToolChoice required{ToolChoice::Kind::required}, time{ToolChoice::Kind::named, "time"};
    const std::string one = R"({"name": "weather", "arguments": {"d": 3}})",
                      other = R"({"name": "time", "arguments": {}})";
    const std::string hermes = "<tool_call>\n" + one + "\n</tool_call>";
    EXPECT_TRUE(accepts(ToolFormat::hermes, required, false, hermes));
    EXPECT_FALSE(accepts(ToolFormat::hermes, required, false, hermes + "\n" + hermes));
    EXPECT_TRUE(accepts(ToolFormat::hermes, required, true, hermes + "\n" + hermes));
    EXPECT_FALSE(accepts(ToolFormat::hermes, time, true, hermes));
    EXPECT_TRUE(accepts(ToolFormat::mistral, required, true, "[" + one + ", " + other + "]"));
    EXPECT_TRUE(accepts(ToolFormat::llama3, time, true, R"({"name": "time", "parameters": {"any": []}})"));
    EXPECT_FALSE(accepts(ToolFormat::llama3, required, true, R"({"name": "weather", "parameters": {}})"));
}

/// The model may think first; then it calls, or its final message has the form. Text cannot stand for tokens.
TEST(ToolCalls, PatternsOfHarmonyFrameMessages) {
    const std::vector<Tool> tools = {{"weather", R"({"type": "object", "properties": {"d": {"type": "integer"}},
                                                    "required": ["d"]})"},
                                     {"time", ""}};
    std::vector<std::string> bytes;
    for (int i = 0; i < 256; ++i) bytes.emplace_back(1, static_cast<char>(i));
    const auto vocabulary = std::make_shared<const grammar::Vocabulary>(bytes);
    const auto accepts = [&](const grammar::Pattern& pattern, std::string text) {
        for (const FramingToken& token : framing_tokens)
            for (std::size_t at; (at = text.find(token.text)) != std::string::npos;)
                text.replace(at, std::string_view(token.text).size(), 1, token.byte);
        grammar::Matcher matcher(
            std::make_shared<grammar::MaskCache>(std::make_shared<const grammar::Grammar>(pattern), vocabulary));
        return matcher.advance(text) && matcher.may_end();
    };
    const std::string thought = "<|channel|>analysis<|message|>Let me\nsee\xC3\xA9.<|end|><|start|>assistant";
    const std::string call = "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"d\": 3}";
    const ToolChoice required{ToolChoice::Kind::required}, time{ToolChoice::Kind::named, "time"};
    const grammar::Pattern calls = after_analysis(tool_pattern(ToolFormat::harmony, tools, required, true));
    for (const std::string& lead : {std::string(), thought, thought + thought})
        EXPECT_TRUE(accepts(calls, lead + call));
    EXPECT_FALSE(accepts(calls, thought));
    EXPECT_FALSE(accepts(calls, call + call)) << "a call ends the answer";
    EXPECT_FALSE(accepts(calls, "<|channel|>final<|message|>No."));
    EXPECT_FALSE(accepts(after_analysis(tool_pattern(ToolFormat::harmony, tools, time, true)), call));
    const grammar::Pattern final = after_analysis(in_final_channel(
        {.alternatives = {{{grammar::Part::Kind::json_object}}, {{grammar::Part::Kind::literal, "x"}}}}));
    for (const char* json : {"{\"a\": \"<\"}", "x"})
        EXPECT_TRUE(accepts(final, thought + "<|channel|>final<|message|>" + json));
    EXPECT_FALSE(accepts(final, "<|channel|>final<|message|>{\"a\": \"<|end|>\"}"));
    EXPECT_FALSE(accepts(final, "{}"));
    grammar::Pattern unled = final;
    unled.lead.clear();
    EXPECT_NE(final.key(), unled.key());
}

/// Text is free, but for what begins a call.
TEST(ToolCalls, StrictPatternsConstrainCallsAlone) {
    const std::vector<Tool> tools = {
        {"weather", R"({"type": "object", "properties": {"d": {"type": "integer"}}, "required": ["d"]})", true}};
    std::vector<std::string> bytes;
    for (int i = 0; i < 256; ++i) bytes.emplace_back(1, static_cast<char>(i));
    const auto vocabulary = std::make_shared<const grammar::Vocabulary>(bytes);
    const auto accepts = [&](ToolFormat format, bool in_parallel, const std::string& text) {
        grammar::Matcher matcher(std::make_shared<grammar::MaskCache>(
            std::make_shared<const grammar::Grammar>(strict_pattern(format, tools, in_parallel, "\xFD")), vocabulary));
        return matcher.advance(text) && matcher.may_end();
    };
    const std::string one = R"({"name": "weather", "arguments": {"d": 3}})",
                      wrong = R"({"name": "weather", "arguments": {}})";
    const auto hermes = [](const std::string& call) { return "<tool_call>\n" + call + "\n</tool_call>"; };
    for (const bool in_parallel : {false, true}) {
        for (const std::string& text : {std::string(), std::string("na\xC3\xAFve <tool_cal> {\n<<tool_call x"),
                                        hermes(one), "I look. " + hermes(one)})
            EXPECT_TRUE(accepts(ToolFormat::hermes, in_parallel, text)) << text;
        for (const std::string& text : {hermes(wrong), std::string("a<<tool_call>"), hermes(one) + hermes(wrong)})
            EXPECT_FALSE(accepts(ToolFormat::hermes, in_parallel, text)) << text;
        EXPECT_EQ(accepts(ToolFormat::hermes, in_parallel, hermes(one) + "\nand " + hermes(one) + "."), in_parallel);
    }
    EXPECT_TRUE(accepts(ToolFormat::llama3, true, " Rain [{\n"));
    EXPECT_TRUE(accepts(ToolFormat::llama3, true, R"({"name": "weather", "parameters": {"d": 3}})"));
    for (const char* text : {R"({"name": "weather", "parameters": {}})", " {x", "{"})
        EXPECT_FALSE(accepts(ToolFormat::llama3, true, text)) << text;
    EXPECT_TRUE(accepts(ToolFormat::mistral, true, "\xFD[" + one + "]"));
    EXPECT_FALSE(accepts(ToolFormat::mistral, true, "[" + one + "]"));
    EXPECT_TRUE(accepts(ToolFormat::mistral, true, "{Rain}"));
}

TEST(ToolCalls, AreWrittenAsClientsReadThem) {
    const AnswerHead head{"chatcmpl-1", "m", "fp_1", 12, true};
    const Choice choice{
        .finish_reason = "tool_calls",
        .calls = {{0, "call_1", "f", ""}, {0, "", "", "{\"a\":"}, {0, "", "", "1}"}, {1, "call_2", "g", "{}"}}};
    const Json message = Json::parse(answer_text(head, {choice}, {}))["choices"][0]["message"];
    EXPECT_TRUE(message["content"].is_null());
    ASSERT_EQ(message["tool_calls"].size(), 2U);
    EXPECT_EQ(
        message["tool_calls"][0],
        Json::parse(R"({"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}})"));
    TextOffsets offsets;
    const std::string event = stream_event(head, choice, offsets, nullptr);
    const Json delta = Json::parse(event.substr(6))["choices"][0]["delta"]["tool_calls"];
    EXPECT_EQ(
        delta[0],
        Json::parse(R"({"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}})"));
    EXPECT_EQ(delta[1], Json::parse(R"({"index": 0, "function": {"arguments": "{\"a\":"}})"));

    const Choice thought{.text = "Hi", .finish_reason = "stop", .reasoning = "Hm"};
    EXPECT_EQ(Json::parse(answer_text(head, {thought}, {}))["choices"][0]["message"],
              Json::parse(R"({"role": "assistant", "content": "Hi", "refusal": null, "reasoning_content": "Hm"})"));
    const std::string piece = stream_event(head, {.reasoning = "Hm"}, offsets, nullptr);
    EXPECT_EQ(Json::parse(piece.substr(6))["choices"][0]["delta"], Json::parse(R"({"reasoning_content": "Hm"})"));
}

// Templates read the first of the names for reasoning that a message has.
TEST(Harmony, JoinsWhatIsSaidWithTheReasoningThatTemplatesRead) {
    const Json call = Json::parse(R"([{"function": {"name": "f", "arguments": "{}"}}])");
    const auto message = [&](const Json& reasoning) {
        Json asked = {{"role", "assistant"}, {"content", "Now."}, {"tool_calls", call}};
        asked.update(reasoning);
        return harmony_row({{"messages", Json::array({asked})}})["messages"][0];
    };
    for (const char* name : spec::reasoning_names) {
        const Json joined = message({{name, "Hm."}});
        EXPECT_EQ(joined[name], "Hm.\nNow.");
        EXPECT_EQ(joined["content"], "");
    }
    const Json both = message({{"reasoning", "other"}, {"thinking", "Hm."}});
    EXPECT_EQ(both["thinking"], "Hm.\nNow.");
    EXPECT_EQ(both["reasoning"], "other");
    EXPECT_EQ(message(Json::object())["content"], "Now.") << "without reasoning";
}

}  // namespace
}  // namespace unsloth::openai
