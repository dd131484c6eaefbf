// Requests of OpenAI's API: what is understood, and how each mistake is told.
#include "unsloth/openai/request.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "unsloth/core/error.h"
#include "unsloth/openai/decision.h"
#include "unsloth/openai/error.h"

namespace unsloth::openai {
namespace {

using Json = nlohmann::ordered_json;

constexpr ParseOptions strict{.vocab_size = 100};

AnswerRequest completion(const std::string& fields, const ParseOptions& options = strict) {
    return parse_completion(R"({"prompt": "x")" + (fields.empty() ? "" : ", " + fields) + "}", options);
}
AnswerRequest chat(const std::string& fields) {
    return parse_chat(
        R"({"messages": [{"role": "user", "content": "x"}])" + (fields.empty() ? "" : ", " + fields) + "}", strict);
}

/// The error's "param" and "code", and words that its message has.
void expect_refusal(const std::function<void()>& parse, const std::string& param, const std::string& code,
                    const std::string& words = {}) {
    try {
        parse();
        ADD_FAILURE() << "was taken: " << param << " " << code;
    } catch (const ApiError& error) {
        EXPECT_EQ(error.status(), 400);
        EXPECT_EQ(error.param(), param) << error.what();
        EXPECT_EQ(error.code(), code) << error.what();
        EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
}

TEST(OpenaiRequest, SchemasSayWhatIsRead) {
    int lists = 0, limits = 0;
    const std::pair<Json, std::function<void(const std::string&)>> kinds[] = {
        {completion_schema(), [](const std::string& fields) { completion(fields); }},
        {chat_schema(), [](const std::string& fields) { chat(fields); }}};
    for (const auto& [schema, parse] : kinds) {
        EXPECT_EQ(schema["additionalProperties"], false);
        EXPECT_EQ(schema["required"].size(), 1U);
        for (const auto& [name, property] : schema["properties"].items()) {
            if (name == schema["required"][0]) continue;
            const Json value = property["anyOf"][0];
            const auto field = [&](const Json& given) { return Json(name).dump() + ": " + given.dump(); };
            EXPECT_NO_THROW(parse(field(nullptr))) << name;
            if (value.contains("enum")) {
                ++lists;
                for (const Json& one : value["enum"]) EXPECT_NO_THROW(parse(field(one))) << name;
                expect_refusal([&] { parse(field("other")); }, name, "unsupported");
            }
            for (const auto& [limit, step] : {std::pair("minimum", -1), std::pair("maximum", 1)}) {
                if (!value.contains(limit) || std::abs(value[limit].get<double>()) > 1e6) continue;
                ++limits;
                expect_refusal([&] { parse(field(value[limit].get<int64_t>() + step)); }, name, "invalid_value");
            }
        }
    }
    EXPECT_GT(lists, 10);
    EXPECT_GT(limits, 20);
    EXPECT_EQ(decision_schema()["required"], Json::array({"input", "questions"}));
    EXPECT_EQ(tokenize_schema()["properties"]["messages"]["anyOf"][0]["type"], "array");
}

TEST(OpenaiRequest, ResponsesAreConversationsThatNothingStores) {
    const auto response = [](const std::string& fields) { return parse_response("{" + fields + "}", strict); };
    const AnswerRequest request = response(
        R"("input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}], "instructions": "y",
           "store": false, "max_output_tokens": 5, "include": ["message.output_text.logprobs"], "top_logprobs": 3,
           "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true}},
           "reasoning": {"effort": "low"}, "stream": true)");
    EXPECT_EQ((*request.row)["messages"],
              Json::parse(R"([{"role": "system", "content": "y"}, {"role": "user", "content": "x"}])"));
    EXPECT_EQ((*request.row)["reasoning_effort"], "low");
    EXPECT_EQ(request.max_tokens, 5);
    EXPECT_EQ(request.logprobs, 3);
    EXPECT_TRUE(request.pattern && request.stream && request.is_chat);
    EXPECT_EQ((*request.response)["instructions"], "y");
    EXPECT_EQ((*request.response)["text"]["format"]["name"], "n");
    EXPECT_FALSE(response(R"("input": "x", "store": false)").max_tokens);
    for (const char* store : {"", R"(, "store": true)"})
        expect_refusal([&] { response(std::string(R"("input": "x")") + store); }, "store", "unsupported", "false");
    for (const char* field : {"previous_response_id", "conversation", "background", "tools", "truncation"})
        expect_refusal([&] { response(cat(R"("input": "x", "store": false, ")", field, R"(": "other")")); }, field,
                       "unsupported");
    expect_refusal([&] { response(R"("input": 5, "store": false)"); }, "input", "invalid_type");
}

TEST(OpenaiRequest, FieldsHaveTheDefaultsOfOpenai) {
    const AnswerRequest request = completion("");
    EXPECT_EQ(request.max_tokens, 16);
    EXPECT_EQ(request.temperature, 1);
    EXPECT_EQ(request.n, 1);
    EXPECT_FALSE(request.logprobs || request.seed || request.echo || request.stream);
    EXPECT_FALSE(chat("").max_tokens) << "as many as there is room";
    EXPECT_EQ(completion(R"("max_tokens": null, "stop": null, "seed": null)").max_tokens, 16) << "null is absent";
}

TEST(OpenaiRequest, ReadsEachFormOfAPrompt) {
    const auto prompts = [](const std::string& prompt) {
        return parse_completion(R"({"prompt": )" + prompt + "}", strict).prompts;
    };
    ASSERT_EQ(prompts(R"("a b")").size(), 1U);
    EXPECT_EQ(prompts(R"("a b")")[0].text, "a b");
    EXPECT_TRUE(prompts(R"("")")[0].is_text);
    EXPECT_EQ(prompts(R"(["a", "b"])")[1].text, "b");
    EXPECT_EQ(prompts("[1, 2, 3]")[0].ids, (std::vector<int32_t>{1, 2, 3}));
    EXPECT_EQ(prompts("[[1], [2, 3]]")[1].ids, (std::vector<int32_t>{2, 3}));
    for (const char* wrong : {"3", "{}", "[]", "true", R"(["a", [1]])", R"([[1], "a"])", "[[1], 2]", "[1, \"a\"]"})
        expect_refusal([&] { prompts(wrong); }, "prompt", "invalid_type");
    expect_refusal([&] { prompts("[100]"); }, "prompt", "invalid_value", "from 0 to 99");
    expect_refusal([&] { prompts("[-1]"); }, "prompt", "invalid_value");
    expect_refusal([&] { parse_completion("{}", strict); }, "prompt", "missing_required_parameter");
    expect_refusal([&] { parse_completion(R"({"prompt": null})", strict); }, "prompt", "missing_required_parameter");
}

TEST(OpenaiRequest, ReadsTheFieldsOfSampling) {
    const AnswerRequest request = completion(
        R"("temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "presence_penalty": 0.25,
           "frequency_penalty": -0.5, "repetition_penalty": 1.1, "seed": -7, "n": 3, "best_of": 3, "min_tokens": 2,
           "stop": ["a", "b"], "stop_token_ids": [7], "ignore_eos": true, "logit_bias": {"5": 2, "6": -100},
           "max_tokens": 8.0)");
    const spec::Sampling sampling = request.sampling();
    EXPECT_EQ(sampling.temperature, 0.5);
    EXPECT_EQ(sampling.top_p, 0.9);
    EXPECT_EQ(sampling.top_k, 40);
    EXPECT_EQ(sampling.min_p, 0.05);
    EXPECT_EQ(sampling.presence_penalty, 0.25);
    EXPECT_EQ(sampling.frequency_penalty, -0.5);
    EXPECT_EQ(sampling.repetition_penalty, 1.1);
    ASSERT_EQ(sampling.logit_bias.size(), 2U);
    EXPECT_EQ(sampling.logit_bias[0], (std::pair{5, 2.0F}));
    EXPECT_TRUE(std::isinf(sampling.logit_bias[1].second)) << "-100 forbids";
    EXPECT_EQ(request.seed, -7);
    EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(request.stop_token_ids, (std::vector<int32_t>{7}));
    EXPECT_EQ(request.max_tokens, 8) << "clients without integers";
    EXPECT_EQ(completion(R"("stop": "end")").stop, (std::vector<std::string>{"end"}));
    EXPECT_EQ(completion(R"("top_k": -1)").top_k, 0);
}

TEST(OpenaiRequest, RefusesValuesByTheFieldsName) {
    const std::pair<const char*, const char*> wrong_types[] = {
        {"temperature", "\"hot\""},
        {"n", "1.5"},
        {"stream", "1"},
        {"stop", "5"},
        {"stop", "[1]"},
        {"logit_bias", "[]"},
        {"max_tokens", "[]"},
        {"model", "3"},
        {"seed", "\"x\""},
        {"stop_token_ids", "3"},
        {"echo", "\"yes\""},
        {"stream_options", "true"},
        {"logprobs", "true"},
    };
    for (const auto& [name, value] : wrong_types)
        expect_refusal([&] { completion(std::string("\"") + name + "\": " + value); }, name, "invalid_type");
    const std::pair<const char*, const char*> out_of_range[] = {
        {"temperature", "2.1"},
        {"temperature", "-0.1"},
        {"top_p", "0"},
        {"top_p", "1.01"},
        {"top_k", "-2"},
        {"min_p", "2"},
        {"presence_penalty", "3"},
        {"n", "0"},
        {"n", "1000"},
        {"repetition_penalty", "0"},
        {"logprobs", "21"},
        {"logprobs", "-1"},
        {"stop", "[\"\"]"},
        {"max_tokens", "-1"},
        {"logit_bias", "{\"100\": 1}"},
        {"logit_bias", "{\"1\": 101}"},
        {"logit_bias", "{\"x\": 1}"},
        {"stop_token_ids", "[100]"},
        {"seed", "9223372036854775808"},
    };
    for (const auto& [name, value] : out_of_range)
        expect_refusal([&] { completion(std::string("\"") + name + "\": " + value); }, name, "invalid_value");
    expect_refusal([] { completion(R"("max_tokens": 0)"); }, "max_tokens", "invalid_value", "echo");
    EXPECT_EQ(completion(R"("max_tokens": 0, "echo": true)").max_tokens, 0);
    expect_refusal([] { completion(R"("min_tokens": 17)"); }, "min_tokens", "invalid_value");
    expect_refusal([] { completion(R"("stream_options": {"include_usage": true})"); }, "stream_options",
                   "invalid_value");
}

TEST(OpenaiRequest, RefusesWhatIsUnknownOrNotOffered) {
    expect_refusal([] { completion(R"("guided_json": {})"); }, "guided_json", "unknown_parameter", "'guided_json'");
    expect_refusal([] { completion(R"("tools": [])"); }, "tools", "unknown_parameter");
    expect_refusal([] { completion(R"("stream": true, "stream_options": {"x": 1})"); }, "stream_options.x",
                   "unknown_parameter");
    expect_refusal([] { chat(R"("echo": true)"); }, "echo", "unknown_parameter");
    EXPECT_NO_THROW(completion(R"("guided_json": {})", {.vocab_size = 100, .accept_unknown = true}));
    const std::pair<const char*, const char*> not_offered[] = {
        {"store", "true"}, {"service_tier", "\"flex\""}, {"skip_special_tokens", "false"}};
    for (const auto& [name, value] : not_offered) {
        const std::string field = std::string("\"") + name + "\": " + value;
        expect_refusal([&] { completion(field); }, name, "unsupported");
        expect_refusal([&] { chat(field); }, name, "unsupported");
    }
    expect_refusal([] { completion(R"("suffix": "x")"); }, "suffix", "unsupported");
    expect_refusal([] { completion(R"("best_of": 2)"); }, "best_of", "unsupported");
    expect_refusal([] { chat(R"("functions": [{}])"); }, "functions", "unsupported", "'tools'");
    EXPECT_NO_THROW(chat(R"("tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "store": false,
                            "user": "u", "metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_key": "k")"));
}

TEST(OpenaiRequest, SaysWhatTheOutputMustLookLike) {
    using grammar::Part;
    const auto part = [](const AnswerRequest& request) { return request.pattern.value().alternatives.at(0).at(0); };
    EXPECT_FALSE(chat(R"("response_format": {"type": "text"})").pattern);
    EXPECT_EQ(part(chat(R"("response_format": {"type": "json_object"})")).kind, Part::Kind::json_object);
    const AnswerRequest schema = chat(R"("response_format": {"type": "json_schema", "json_schema":
        {"name": "n", "schema": {"type": "string"}, "strict": true, "description": null}})");
    EXPECT_EQ(part(schema).kind, Part::Kind::json_schema);
    EXPECT_EQ(part(schema).text, R"({"type":"string"})");
    EXPECT_EQ(schema.pattern_field, "response_format.json_schema.schema");
    EXPECT_EQ(part(completion(R"("structured_outputs": {"regex": "a+"})")).text, "a+");
    EXPECT_EQ(part(completion(R"("structured_outputs": {"json": "{}"})")).text, "{}");
    EXPECT_EQ(completion(R"("structured_outputs": {"choice": ["a", "b"]})").pattern->alternatives.size(), 2U);
    EXPECT_FALSE(completion(R"("structured_outputs": {"json_object": false, "regex": null})").pattern);

    expect_refusal([] { chat(R"("response_format": {"type": "xml"})"); }, "response_format.type", "unsupported");
    expect_refusal([] { chat(R"("response_format": {})"); }, "response_format.type", "missing_required_parameter");
    expect_refusal([] { chat(R"("response_format": {"type": "json_object", "x": 1})"); }, "response_format.x",
                   "unknown_parameter");
    expect_refusal([] { chat(R"("response_format": {"type": "json_schema", "json_schema": {"name": "n"}})"); },
                   "response_format.json_schema.schema", "missing_required_parameter");
    expect_refusal([] { chat(R"("response_format": "json")"); }, "response_format", "invalid_type");
    expect_refusal([] { chat(R"("structured_outputs": {"grammar": "x"})"); }, "structured_outputs.grammar",
                   "unsupported");
    expect_refusal([] { chat(R"("structured_outputs": {"choice": []})"); }, "structured_outputs.choice",
                   "invalid_value");
    expect_refusal([] { chat(R"("structured_outputs": {"choice": ["a"], "regex": "b"})"); }, "structured_outputs.regex",
                   "invalid_value", "both");
    expect_refusal([] { chat(R"("response_format": {"type": "json_object"}, "ignore_eos": true)"); }, "ignore_eos",
                   "invalid_value");
    expect_refusal([] { chat(R"("response_format": {"type": "json_object"}, "min_tokens": 1)"); }, "min_tokens",
                   "invalid_value");
}

TEST(OpenaiRequest, ReadsToolsAndWhichToCall) {
    using Kind = ToolChoice::Kind;
    const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f", "description": "d",
        "parameters": {"type": "object"}, "strict": true}}, {"type": "function", "function": {"name": "g"}}])";
    const AnswerRequest request = chat(tools);
    ASSERT_EQ(request.tools.size(), 2U);
    EXPECT_EQ(request.tools[0].parameters, R"({"type":"object"})");
    EXPECT_EQ(request.tools[1].parameters, "");
    EXPECT_EQ((*request.row)["tools"].size(), 2U) << "the template reads them";
    EXPECT_EQ(request.tool_choice.kind, Kind::automatic);
    EXPECT_EQ(chat(tools + R"(, "tool_choice": "none")").tool_choice.kind, Kind::none);
    EXPECT_EQ(chat(tools + R"(, "tool_choice": "required")").tool_choice.kind, Kind::required);
    const ToolChoice named =
        chat(tools + R"(, "tool_choice": {"type": "function", "function": {"name": "g"}})").tool_choice;
    EXPECT_EQ(named.kind, Kind::named);
    EXPECT_EQ(named.name, "g");
    EXPECT_EQ(chat("").tool_choice.kind, Kind::none);

    expect_refusal([] { chat(R"("tool_choice": "required")"); }, "tool_choice", "invalid_value", "'tools'");
    expect_refusal([&] { chat(tools + R"(, "tool_choice": {"type": "function", "function": {"name": "h"}})"); },
                   "tool_choice", "invalid_value", "'h'");
    expect_refusal([&] { chat(tools + R"(, "tool_choice": "any")"); }, "tool_choice", "invalid_value");
    expect_refusal([] { chat(R"("tools": [{}])"); }, "tools[0].type", "missing_required_parameter");
    expect_refusal([] { chat(R"("tools": [{"type": "retrieval"}])"); }, "tools[0].type", "unsupported");
    expect_refusal([] { chat(R"("tools": [{"type": "function", "function": {"name": "a b"}}])"); },
                   "tools[0].function.name", "invalid_value");
    expect_refusal([&] { chat(tools + R"(, "tool_choice": "required", "response_format": {"type": "json_object"})"); },
                   "response_format", "invalid_value", "both");
}

TEST(OpenaiRequest, BodiesThatAreNoJsonObject) {
    for (const char* body : {"", "{", "[]", "3", "{\"prompt\": \"x\",}", "{\"prompt\": \"\xFF\"}"}) {
        try {
            parse_completion(body, strict);
            ADD_FAILURE() << body;
        } catch (const ApiError& error) {
            EXPECT_EQ(error.status(), 400);
        }
    }
    std::string deep(5000, '[');
    expect_refusal([&] { parse_completion(deep + std::string(5000, ']'), strict); }, "", "invalid_json", "deeper");
}

TEST(OpenaiRequest, Conversations) {
    const AnswerRequest request = parse_chat(
        R"({"messages": [{"role": "developer", "content": "Be brief."},
                         {"role": "user", "content": [{"type": "text", "text": "a"}]},
                         {"role": "assistant", "content": "b"}],
            "add_generation_prompt": false, "continue_final_message": true, "logprobs": true, "top_logprobs": 4,
            "max_tokens": 3, "max_completion_tokens": 5, "chat_template_kwargs": {"enable_thinking": false}})",
        strict);
    EXPECT_TRUE(request.continue_final_message);
    EXPECT_EQ(request.logprobs, 4);
    EXPECT_EQ(request.max_tokens, 5) << "the newer name wins";
    EXPECT_EQ((*request.row)["messages"][0]["role"], "system") << "the name that templates know";
    EXPECT_EQ((*request.row)["chat_template_kwargs"]["enable_thinking"], false);
    EXPECT_EQ((*request.row)["add_generation_prompt"], false);
    EXPECT_EQ(chat(R"("logprobs": true)").logprobs, 0);
    EXPECT_FALSE(chat(R"("logprobs": false)").logprobs);
    expect_refusal([] { chat(R"("top_logprobs": 3)"); }, "top_logprobs", "invalid_value");
    const auto messages = [](const std::string& list) { parse_chat(R"({"messages": )" + list + "}", strict); };
    expect_refusal([&] { messages("[]"); }, "messages", "invalid_value");
    expect_refusal([&] { messages("\"hi\""); }, "messages", "invalid_type");
    expect_refusal([&] { messages("[3]"); }, "messages[0]", "invalid_type");
    expect_refusal([&] { messages(R"([{"content": "x"}])"); }, "messages[0].role", "invalid_type");
    expect_refusal([&] { messages(R"([{"role": "boss", "content": "x"}])"); }, "messages[0].role", "invalid_value");
    expect_refusal([&] { messages(R"([{"role": "user"}])"); }, "messages[0].content", "missing_required_parameter");
    expect_refusal([&] { messages(R"([{"role": "user", "content": 3}])"); }, "messages[0].content", "invalid_type");
    expect_refusal([&] { messages(R"([{"role": "user", "content": [{"type": "image_url"}]}])"); },
                   "messages[0].content[0].type", "unsupported");
    expect_refusal([] { chat(R"("continue_final_message": true)"); }, "continue_final_message", "invalid_value");
}

TEST(OpenaiRequest, ImagesOfChats) {
    ParseOptions sees = strict;
    sees.sees_images = true;
    const auto with = [&](const std::string& part, const ParseOptions& options) {
        return parse_chat(R"({"messages": [{"role": "user", "content": [)" + part + "]}]}", options);
    };
    const std::string good =
        R"({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "high"}})";
    const AnswerRequest read = with(R"({"type": "text", "text": "x"}, )" + good, sees);
    EXPECT_EQ((*read.row)["messages"][0]["content"][1]["image_url"]["url"], "data:image/png;base64,AA==");
    const auto refused = [&](const std::string& part, const char* field, const char* code) {
        expect_refusal([&] { with(part, sees); }, cat("messages[0].content[0]", field), code);
    };
    expect_refusal([&] { with(good, strict); }, "messages[0].content[0].type", "unsupported");
    refused(R"({"type": "image_url"})", ".image_url", "invalid_type");
    refused(R"({"type": "image_url", "image_url": "data:,"})", ".image_url", "invalid_type");
    refused(R"({"type": "image_url", "image_url": {"url": 3}})", ".image_url.url", "invalid_type");
    for (const char* url : {"https://a/b.png", "http://10.0.0.1", "file:///etc/passwd", "/etc/passwd", "a.png", ""})
        refused(cat(R"({"type": "image_url", "image_url": {"url": ")", url, "\"}}"), ".image_url.url", "unsupported");
    refused(R"({"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}})", ".image_url.detail",
            "unsupported");
    refused(R"({"type": "image_url", "image_url": {"url": "data:,", "path": "/a"}})", ".image_url.path",
            "unknown_parameter");
    refused(R"({"type": "image_url", "image_url": {"url": "data:,"}, "image": "/a"})", ".image", "unknown_parameter");
    refused(R"({"type": "image", "image": "/a.png"})", ".type", "unsupported");
    expect_refusal(
        [&] { parse_chat(R"({"messages": [{"role": "user", "content": "x", "value": [{"type": "image"}]}]})", sees); },
        "messages[0].value", "unknown_parameter");
}

TEST(OpenaiRequest, MembersOfMessagesAreKnown) {
    const auto read = [](const std::string& message, const ParseOptions& options = strict) {
        return parse_chat(R"({"messages": [)" + message + "]}", options);
    };
    const Json row = *read(R"({"role": "user", "content": "x", "name": "ann", "type": "text"},
        {"role": "assistant", "content": null, "refusal": null, "function_call": null, "audio": null,
         "annotations": [], "reasoning_content": "Hm", "tool_calls":
         [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "5"})")
                          .row;
    EXPECT_EQ(row["messages"][1]["reasoning_content"], "Hm");
    EXPECT_FALSE(row["messages"][0].contains("type")) << "it is no part of a message";
    const auto refused = [&](const std::string& message, const char* field, const char* code) {
        expect_refusal([&] { read(message); }, cat("messages[0].", field), code);
    };
    refused(R"({"role": "user", "content": "x", "weight": 1})", "weight", "unknown_parameter");
    refused(R"({"role": "user", "content": "x", "tool_calls": []})", "tool_calls", "unknown_parameter");
    refused(R"({"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}}]})",
            "content[0].cache_control", "unknown_parameter");
    refused(R"({"role": "user", "content": "x", "name": 3})", "name", "invalid_type");
    refused(R"({"role": "user", "content": "x", "type": "image"})", "type", "invalid_value");
    refused(R"({"role": "assistant", "content": "x", "refusal": "No."})", "refusal", "unsupported");
    refused(R"({"role": "assistant", "content": "x", "audio": {"id": "a"}})", "audio", "unsupported");
    refused(R"({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "args": "{}"}}]})",
            "tool_calls[0].function.args", "unknown_parameter");
    refused(R"({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": 3}}]})",
            "tool_calls[0].function.arguments", "invalid_type");
    refused(R"({"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "function": {"name": "f"}}]})",
            "tool_calls[0].type", "unsupported");
    ParseOptions relaxed = strict;
    relaxed.accept_unknown = true;
    EXPECT_EQ((*read(R"({"role": "user", "content": "x", "weight": 1})", relaxed).row)["messages"][0]["weight"], 1);
    expect_refusal(
        [] { parse_response(R"({"store": false, "input": [{"role": "user", "content": "x", "x": 1}]})", strict); },
        "input[0].x", "unknown_parameter");
}

TEST(OpenaiRequest, StrictIsABoolean) {
    const std::string function = R"("tools": [{"type": "function", "function": {"name": "f", "strict": )";
    const auto tool = [&](const std::string& value, const std::string& more = "") {
        return chat(function + value + "}}]" + more);
    };
    EXPECT_TRUE(tool("true").calls_strictly());
    EXPECT_FALSE(tool("true", R"(, "tool_choice": "required")").calls_strictly()) << "it is constrained as a whole";
    EXPECT_FALSE(tool("null").calls_strictly());
    expect_refusal([&] { tool("\"yes\""); }, "tools[0].function.strict", "invalid_type");
    expect_refusal([&] { tool("true", R"(, "ignore_eos": true)"); }, "ignore_eos", "invalid_value");
    expect_refusal(
        [] {
            chat(
                R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": 1}})");
        },
        "response_format.json_schema.strict", "invalid_type");
}

TEST(OpenaiRequest, ImagesOfResponses) {
    ParseOptions sees = strict;
    sees.sees_images = true;
    const auto with = [&](const std::string& parts, const ParseOptions& options) {
        return parse_response(R"({"store": false, "input": [{"role": "user", "content": [)" + parts + "]}]}", options);
    };
    const std::string text = R"({"type": "input_text", "text": "x"})",
                      good = R"({"type": "input_image", "image_url": "data:image/png;base64,AA==", "file_id": null})";
    const AnswerRequest read = with(text + ", " + good, sees);
    EXPECT_EQ((*read.row)["messages"][0]["content"], Json::parse(R"([{"type": "text", "text": "x"},
                              {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}])"));
    EXPECT_EQ((*with(text, sees).row)["messages"][0]["content"], "x");
    expect_refusal([&] { with(good, strict); }, "input[0].content[0].type", "unsupported");
    const auto refused = [&](const std::string& members, const char* field, const char* code) {
        expect_refusal([&] { with(cat(text, R"(, {"type": "input_image")", members, "}"), sees); },
                       cat("input[0].content[1]", field), code);
    };
    refused("", ".image_url", "invalid_type");
    refused(R"(, "image_url": {"url": "data:,"})", ".image_url", "invalid_type");
    for (const char* url : {"https://a/b.png", "http://10.0.0.1", "file:///etc/passwd", "/etc/passwd", "a.png", ""})
        refused(cat(R"(, "image_url": ")", url, "\""), ".image_url", "unsupported");
    refused(R"(, "image_url": "data:,", "detail": "low")", ".detail", "unsupported");
    refused(R"(, "file_id": "file-1")", ".file_id", "unsupported");
    refused(R"(, "image_url": "data:,", "path": "/a")", ".path", "unknown_parameter");
    expect_refusal([&] { with(good + R"(, {"type": "input_file"})", sees); }, "input[0].content[1].type",
                   "unsupported");
}

TEST(OpenaiRequest, OtherRoutes) {
    EXPECT_EQ(parse_tokenize(R"({"prompt": "x", "add_special_tokens": false})", strict).add_special_tokens, false);
    EXPECT_NE(parse_tokenize(R"({"messages": [{"role": "user", "content": "x"}]})", strict).row, nullptr);
    expect_refusal([] { parse_tokenize("{}", strict); }, "prompt", "missing_required_parameter");
    EXPECT_EQ(parse_detokenize(R"({"tokens": [1, 2]})", strict).tokens, (std::vector<int32_t>{1, 2}));
    expect_refusal([] { parse_detokenize(R"({"tokens": [1, 200]})", strict); }, "tokens", "invalid_value");
    EXPECT_EQ(parse_load_adapter(R"({"lora_name": "a", "lora_path": "p"})", strict).path, "p");
    expect_refusal([] { parse_load_adapter(R"({"lora_name": "a"})", strict); }, "lora_path",
                   "missing_required_parameter");
    EXPECT_EQ(parse_unload_adapter(R"({"lora_name": "a"})", strict).name, "a");
}

/// Whatever a body holds: it is understood, or refused as a client reads it.
TEST(OpenaiRequest, SpoiledBodiesAreRefusedInOpenaisForm) {
    const std::string bodies[] = {
        R"({"prompt": [[1, 2], [3]], "max_tokens": 4, "stop": ["a"], "logit_bias": {"5": -100}, "seed": 1e3, "n": 2})",
        R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "stream": true,
            "stream_options": {"include_usage": true}, "chat_template_kwargs": {"x": [null]}, "logprobs": true})",
        R"({"input": [{"role": "user", "content": "a"}], "questions": [{"type": "choice", "instructions": "x",
            "choices": [{"value": "a"}, {"value": true}]}, {"type": "score", "instructions": "y", "levels":
            [{"label": "l"}, {"label": "m"}]}]})",
    };
    const std::string pieces[] = {"null", "-1",   "1e400",   "{}",   "[]", "\"\"",
                                  "true", "\xFF", "\\u0000", "9e18", ",",  "}"};
    std::mt19937 random(3);
    int refused = 0;
    for (int i = 0; i < 3000; ++i) {
        std::string body = bodies[random() % std::size(bodies)];
        for (uint32_t edits = 1 + random() % 3; edits > 0; --edits)
            body.replace(random() % body.size(), random() % 8, pieces[random() % std::size(pieces)]);
        for (const auto& parse :
             {std::function([&] { parse_completion(body, strict); }), std::function([&] { parse_chat(body, strict); }),
              std::function([&] { parse_decision(body, strict); }),
              std::function([&] { parse_tokenize(body, strict); })}) {
            try {
                parse();
            } catch (const ApiError& error) {
                ++refused;
                ASSERT_EQ(error.status(), 400) << body;
                ASSERT_TRUE(Json::accept(error.body())) << body;
            }
        }
    }
    EXPECT_GT(refused, 8000) << "at most one of four understands a body";
}

TEST(OpenaiError, HasOpenaisForm) {
    const Json body = Json::parse(ApiError(404, "no \"x\"", "model", "model_not_found").body());
    EXPECT_EQ(body["error"]["message"], "no \"x\"");
    EXPECT_EQ(body["error"]["type"], "not_found_error");
    EXPECT_EQ(body["error"]["param"], "model");
    EXPECT_EQ(body["error"]["code"], "model_not_found");
    const Json plain = Json::parse(ApiError(500, "x").body());
    EXPECT_EQ(plain["error"]["type"], "server_error");
    EXPECT_TRUE(plain["error"]["param"].is_null() && plain["error"]["code"].is_null());
}

}  // namespace
}  // namespace unsloth::openai
