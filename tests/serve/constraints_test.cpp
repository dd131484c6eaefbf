// Outputs that requests constrain, from a model that has never seen JSON.
#include "serve/support.h"

#include <regex>

namespace unsloth {
namespace {

using namespace test;

const std::string opening_words = "The tenant shall pay";

/// Texts of a small model end here: each value is short.
const Json bounded_schema = Json::parse(R"({"type": "object", "properties": {
    "kind": {"enum": ["rent", "term"]}, "days": {"type": "integer", "minimum": 1, "maximum": 90},
    "note": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]},
    "flags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}},
    "required": ["kind", "days", "note", "flags"], "additionalProperties": false})");

Json schema_format(const Json& schema) {
    return {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"strict", true}, {"schema", schema}}}};
}

void expect_fits(const std::string& text) {
    const Json value = Json::parse(text, nullptr, false);
    ASSERT_TRUE(value.is_object()) << text;
    EXPECT_EQ(value.size(), 4U);
    EXPECT_TRUE(value["kind"] == "rent" || value["kind"] == "term") << text;
    EXPECT_TRUE(value["days"] >= 1 && value["days"] <= 90) << text;
    EXPECT_TRUE(value["note"].is_null() || value["note"].is_string()) << text;
    EXPECT_TRUE(value["flags"].size() >= 1 && value["flags"].size() <= 2) << text;
}

TEST(Constraints, OutputsAreWhatFieldsSay) {
    RunningService service;
    Json body = {{"prompt", opening_words},
                 {"max_tokens", 150},
                 {"n", 8},
                 {"seed", 1},
                 {"response_format", schema_format(bounded_schema)}};
    const Json sampled = service.post("/v1/completions", body)->json();
    ASSERT_TRUE(sampled.contains("choices")) << sampled;
    for (const Json& choice : sampled["choices"]) {
        EXPECT_EQ(choice["finish_reason"], "stop") << choice;
        expect_fits(choice["text"]);
    }
    EXPECT_EQ(service.post("/v1/completions", body)->json()["choices"], sampled["choices"]) << "a seed is a seed";
    const auto one = [&](const Json& constraint) {
        Json asked = {{"prompt", opening_words}, {"max_tokens", 40}, {"temperature", 1.5}, {"seed", 3}};
        asked.update(constraint);
        const auto response = service.post("/v1/completions", asked);
        EXPECT_EQ(response->status(), 200) << response->body();
        return response->json()["choices"][0];
    };
    const Json choice = one({{"structured_outputs", {{"choice", {"yes", "no", "perhaps"}}}}});
    EXPECT_TRUE(std::regex_match(choice["text"].get<std::string>(), std::regex("yes|no|perhaps"))) << choice;
    const Json matched = one({{"structured_outputs", {{"regex", "[A-Z]{3}-\\d{2,4}(\xC3\xA9|\xC3\xA8)"}}}});
    EXPECT_TRUE(
        std::regex_match(matched["text"].get<std::string>(), std::regex("[A-Z]{3}-\\d{2,4}(\xC3\xA9|\xC3\xA8)")))
        << matched;
    EXPECT_EQ(matched["finish_reason"], "stop");

    // In a stream, next to requests that are free.
    Json chat = {{"messages", Json::array({{{"role", "user"}, {"content", "What is a lease?"}}})},
                 {"max_tokens", 120},
                 {"temperature", 0},
                 {"stream", true},
                 {"response_format", schema_format(bounded_schema)}};
    const Json free = {{"prompt", opening_words}, {"max_tokens", 60}, {"temperature", 0}, {"ignore_eos", true}};
    const Json alone = service.post("/v1/completions", free)->json()["choices"];
    const auto streamed = service.begin("POST", "/v1/chat/completions", chat.dump());
    EXPECT_EQ(service.post("/v1/completions", free)->json()["choices"], alone);
    streamed->wait();
    std::string text;
    for (const Json& event : streamed->events()) text += event["choices"][0]["delta"].value("content", "");
    expect_fits(text);
}

TEST(Constraints, WhatIsNotSupportedIsRefusedByName) {
    RunningService service;
    const auto refused = [&](const Json& constraint) {
        Json body = {{"prompt", opening_words}};
        body.update(constraint);
        const auto response = service.post("/v1/completions", body);
        EXPECT_EQ(response->status(), 400) << response->body();
        return response->json()["error"];
    };
    const Json keyword = refused({{"response_format", schema_format({{"type", "number"}, {"multipleOf", 2}})}});
    EXPECT_EQ(keyword["param"], "response_format.json_schema.schema");
    EXPECT_NE(keyword["message"].get<std::string>().find("'multipleOf'"), std::string::npos) << keyword;
    EXPECT_EQ(refused({{"structured_outputs", {{"regex", "(?=a)"}}}})["param"], "structured_outputs.regex");
    EXPECT_EQ(service.metric("vllm:generation_tokens_total"), 0) << "no token was made for them";
    const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
    const Json chat = {{"messages", Json::array({{{"role", "user"}, {"content", "Hi"}}})}, {"tools", tools}};
    const auto response = service.post("/v1/chat/completions", chat);
    EXPECT_EQ(response->status(), 400) << "alpaca has no tools";
    EXPECT_EQ(response->json()["error"]["param"], "tools");
}

constexpr const char* hermes_template =
    "{% if tools %}{% for t in tools %}{{ t.function.name }} {% endfor %}{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>\n"
    "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>"
    "{% endfor %}{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";

TEST(Constraints, ToolsAreCalledWhereTheyMustBe) {
    const ScratchFolder folder;
    RunningOptions options;
    options.chat = folder.write("hermes.jinja", hermes_template).string();
    options.context = 400;
    RunningService service(options);
    Json body = {{"messages", Json::array({{{"role", "user"}, {"content", "Hi"}}})},
                 {"max_tokens", 300},
                 {"temperature", 0},
                 {"parallel_tool_calls", false},
                 {"tool_choice", "required"}};
    body["tools"] =
        Json::array({{{"type", "function"}, {"function", {{"name", "note"}, {"parameters", bounded_schema}}}},
                     {{"type", "function"}, {"function", {{"name", "term"}, {"parameters", bounded_schema}}}}});
    const Json choice = service.post("/v1/chat/completions", body)->json()["choices"][0];
    ASSERT_TRUE(choice["message"].contains("tool_calls")) << choice;
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    EXPECT_TRUE(choice["message"]["content"].is_null());
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1U);
    const Json call = choice["message"]["tool_calls"][0]["function"];
    expect_fits(call["arguments"]);

    Json streamed = body;
    streamed["stream"] = true;
    std::string name, arguments, finish;
    for (const Json& event : service.post("/v1/chat/completions", streamed)->events()) {
        const Json& piece = event["choices"][0];
        if (!piece["finish_reason"].is_null()) finish = piece["finish_reason"];
        for (const Json& delta : piece["delta"].value("tool_calls", Json::array())) {
            EXPECT_EQ(delta["index"], 0);
            EXPECT_EQ(delta.contains("id"), name.empty()) << "once";
            if (delta.contains("id")) name = delta["function"]["name"];
            arguments += delta["function"]["arguments"];
        }
    }
    EXPECT_EQ(name, call["name"]);
    EXPECT_EQ(arguments, call["arguments"]);
    EXPECT_EQ(finish, "tool_calls");

    body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "term"}}}};
    EXPECT_EQ(service.post("/v1/chat/completions", body)
                  ->json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"],
              "term");
    for (const char* choice : {"auto", "none"}) {
        body["tool_choice"] = choice;
        body["max_tokens"] = 10;
        const Json message = service.post("/v1/chat/completions", body)->json()["choices"][0]["message"];
        EXPECT_TRUE(message["content"].is_string()) << message;
        EXPECT_FALSE(message.contains("tool_calls")) << "this model has not learned to";
    }
    body["tools"][0]["function"]["parameters"] = {{"not", Json::object()}};
    body["tool_choice"] = "required";
    EXPECT_EQ(service.post("/v1/chat/completions", body)->json()["error"]["param"], "tools");
}

}  // namespace
}  // namespace unsloth
