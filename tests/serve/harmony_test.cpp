// Chats with a model whose answers are harmony's messages.
#include "tokenizer/harmony.h"
#include "serve/support.h"
#include "unsloth/openai/decision.h"

namespace unsloth {
namespace {

using namespace test;

const Json short_schema = Json::parse(R"({"type": "object", "properties": {"kind": {"enum": ["rent", "term"]},
    "note": {"type": "string", "maxLength": 4}}, "required": ["kind", "note"], "additionalProperties": false})");

class HarmonyChat : public ::testing::Test {
  protected:
    static RunningOptions options(const ScratchFolder& folder) {
        RunningOptions made;
        made.tokenizer = harmony_folder(folder);
        made.chat = harmony_template;
        made.context = 400;
        return made;
    }
    int32_t id(const char* token) { return *service_.tokenizer().token_id(token); }

    /// The model never saw the format: biases let it end its thoughts, and choose between channels.
    Json request() {
        Json bias = {{std::to_string(id("<|end|>")), 92}};
        for (const auto& [begin, value] : {std::pair{"a", 89}, {"an", 89}, {"c", 94}, {"f", 94}})
            bias[std::to_string(id(begin))] = value;
        return {{"messages", Json::array({{{"role", "user"}, {"content", "What is a lease?"}}})},
                {"max_tokens", 200},
                {"temperature", 1.7},
                {"n", 8},
                {"seed", 5},
                {"logit_bias", bias}};
    }
    static void expect_fits(const std::string& text) {
        const Json value = Json::parse(text, nullptr, false);
        ASSERT_TRUE(value.is_object()) << text;
        EXPECT_TRUE(value["kind"] == "rent" || value["kind"] == "term") << text;
        EXPECT_TRUE(value["note"].is_string()) << text;
    }
    const ScratchFolder folder_;
    RunningService service_{options(folder_)};
};

/// Choices by number, as the pieces of a stream say them.
std::map<int64_t, Json> joined(const std::vector<Json>& events) {
    std::map<int64_t, Json> all;
    for (const Json& event : events) {
        const Json& piece = event["choices"][0];
        Json& message = all.try_emplace(piece["index"].get<int64_t>(), Json::object()).first->second;
        for (const char* key : {"content", "reasoning_content"})
            if (const Json text = piece["delta"].value(key, Json()); text.is_string() && text != "")
                message[key] = message.value(key, "") + text.get<std::string>();
        for (const Json& call : piece["delta"].value("tool_calls", Json::array())) {
            EXPECT_EQ(call["index"], 0);
            if (call.contains("id")) message["name"] = call["function"]["name"];
            message["arguments"] = message.value("arguments", "") + call["function"]["arguments"].get<std::string>();
        }
        if (!piece["finish_reason"].is_null()) message["finish_reason"] = piece["finish_reason"];
    }
    return all;
}

TEST_F(HarmonyChat, TheFinalChannelIsTheContent) {
    Json body = request();
    body["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", short_schema}}}};
    const Json whole = service_.post("/v1/chat/completions", body)->json();
    ASSERT_TRUE(whole.contains("choices")) << whole;
    int thought = 0, ended = 0;
    for (const Json& choice : whole["choices"]) {
        const Json& message = choice["message"];
        thought += message.contains("reasoning_content") ? 1 : 0;
        if (choice["finish_reason"] != "stop") continue;
        ++ended;
        expect_fits(message["content"]);
    }
    EXPECT_GT(thought, 0) << whole;
    const Json& usage = whole["usage"];
    EXPECT_GT(usage["completion_tokens_details"]["reasoning_tokens"], 0) << usage;
    EXPECT_LT(usage["completion_tokens_details"]["reasoning_tokens"], usage["completion_tokens"]) << usage;
    EXPECT_GT(ended, 3) << whole;

    body["stream"] = true;
    const auto streamed = joined(service_.post("/v1/chat/completions", body)->events());
    for (const Json& choice : whole["choices"]) {
        const Json& message = streamed.at(choice["index"].get<int64_t>());
        EXPECT_EQ(message.value("content", ""), choice["message"]["content"]);
        EXPECT_EQ(message.value("reasoning_content", ""), choice["message"].value("reasoning_content", ""));
        EXPECT_EQ(message["finish_reason"], choice["finish_reason"]);
    }
}

TEST_F(HarmonyChat, ToolsAreCalledInTheCommentaryChannel) {
    Json body = request();
    body["tools"] =
        Json::array({{{"type", "function"}, {"function", {{"name", "note"}, {"parameters", short_schema}}}}});
    body["tool_choice"] = "required";
    const Json whole = service_.post("/v1/chat/completions", body)->json();
    ASSERT_TRUE(whole.contains("choices")) << whole;
    int called = 0;
    for (const Json& choice : whole["choices"]) {
        if (!choice["message"].contains("tool_calls")) continue;
        if (choice["finish_reason"] != "tool_calls") continue;
        ++called;
        EXPECT_TRUE(choice["message"]["content"].is_null());
        ASSERT_EQ(choice["message"]["tool_calls"].size(), 1U);
        EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "note");
        expect_fits(choice["message"]["tool_calls"][0]["function"]["arguments"]);
    }
    EXPECT_GT(called, 3) << whole;
    body["stream"] = true;
    for (const auto& [index, message] : joined(service_.post("/v1/chat/completions", body)->events())) {
        const Json& choice = whole["choices"][static_cast<std::size_t>(index)];
        EXPECT_EQ(message["finish_reason"], choice["finish_reason"]);
        if (choice["finish_reason"] != "tool_calls") continue;
        EXPECT_EQ(message["name"], "note");
        EXPECT_EQ(message["arguments"], choice["message"]["tool_calls"][0]["function"]["arguments"]);
    }
    body.erase("stream");
    body["messages"].push_back({{"role", "assistant"}, {"content", "A"}});
    body["add_generation_prompt"] = false;
    body["continue_final_message"] = true;
    EXPECT_EQ(service_.post("/v1/chat/completions", body)->json()["error"]["param"], "tool_choice");
}

TEST_F(HarmonyChat, ConversationsAreRenderedAsTheTemplateExpects) {
    Json body = Json::parse(R"({"messages": [{"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "They ask.", "tool_calls":
            [{"id": "call_1", "type": "function", "function": {"name": "note", "arguments": "{\"kind\": \"rent\"}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "5"}]})");
    const Json tokens = service_.post("/tokenize", body)->json();
    ASSERT_TRUE(tokens.contains("tokens")) << tokens;
    EXPECT_EQ(
        service_.post("/detokenize", {{"tokens", tokens["tokens"]}})->json()["prompt"],
        "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>analysis<|message|>They ask.\nI look.<|end|>"
        "<|start|>assistant to=functions.note<|channel|>commentary json<|message|>{\"kind\": \"rent\"}<|call|>"
        "<|start|>functions.note to=assistant<|channel|>commentary<|message|>\"5\"<|end|><|start|>assistant");
    body["messages"][1]["tool_calls"].push_back(body["messages"][1]["tool_calls"][0]);
    EXPECT_EQ(service_.post("/tokenize", body)->json()["error"]["param"], "messages[1].tool_calls");
}

/// A decision is the final message's first token.
TEST_F(HarmonyChat, DecisionsAreInTheFinalChannel) {
    const auto asked = openai::parse_decision(
        R"({"input": "Pay.", "questions": [{"type": "predicate", "instructions": "Is it rent?"}]})",
        {.vocab_size = 2048});
    const auto chat = tokenizer::ChatTemplate::choose(harmony_template, service_.tokenizer());
    const auto prompt =
        openai::decision_prompt(service_.tokenizer(), chat, *asked.messages, asked.questions.front(), "question");
    const std::string text = service_.tokenizer().decode(prompt.ids, /*skip_special=*/false);
    EXPECT_TRUE(text.ends_with("<|start|>assistant<|channel|>final<|message|>")) << text;
}

/// What the model writes without frames, or goes on with in a message of the prompt's, is content.
TEST_F(HarmonyChat, OtherTextsAreContent) {
    Json body = {{"messages", Json::array({{{"role", "user"}, {"content", "What is a lease?"}}})},
                 {"max_tokens", 12},
                 {"temperature", 0},
                 {"logit_bias", Json::object()}};
    for (const char* token :
         {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>", "<|constrain|>"})
        body["logit_bias"][std::to_string(id(token))] = -100;
    EXPECT_NE(service_.post("/v1/chat/completions", body)->json()["choices"][0]["message"]["content"], "");
    body["messages"].push_back({{"role", "assistant"}, {"content", "A lease"}});
    body["add_generation_prompt"] = false;
    body["continue_final_message"] = true;
    body.erase("logit_bias");
    body["structured_outputs"] = {{"choice", {" is a contract.", " is nothing."}}};
    const Json choice = service_.post("/v1/chat/completions", body)->json()["choices"][0];
    EXPECT_EQ(choice["message"]["content"].get<std::string>().substr(0, 4), " is ") << choice;
    EXPECT_FALSE(choice["message"].contains("reasoning_content"));
}

}  // namespace
}  // namespace unsloth
