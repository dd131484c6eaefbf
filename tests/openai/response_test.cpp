// Answers in OpenAI's forms, and what single tokens are.
#include "unsloth/openai/response.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "unsloth/openai/response_stream.h"

namespace unsloth::openai {
namespace {

using Json = nlohmann::ordered_json;

tokenizer::Tokenizer load(const char* name) {
    return tokenizer::Tokenizer::load(test::golden("tokenizer") / name);
}

/// Joined they are what the text is decoded to, whatever they are cut from.
TEST(OpenaiTokens, BytesOfATextsTokensAreItsDecoding) {
    for (const char* name :
         {"llama3_small", "qwen_small", "gpt2_small", "llama2_small", "mistral_small", "spm_small"}) {
        const tokenizer::Tokenizer tokenizer = load(name);
        const std::string text = "The price, isn't it?  \u00dcber 100\u20ac \U0001F9A5\n\tdef f(x):";
        std::string bytes;
        bool has_part = false;
        for (const int32_t id : tokenizer.encode(text, false)) {
            const TokenText token = text_of_token(tokenizer, id);
            bytes += token.bytes;
            has_part = has_part || !token.is_whole;
            EXPECT_EQ(token.is_whole, !token.name().starts_with("bytes:")) << name;
        }
        const std::string whole = tokenizer.decode(tokenizer.encode(text, false), /*skip_special=*/false);
        EXPECT_TRUE(bytes == whole || bytes == " " + whole) << name << ": " << bytes;
        EXPECT_TRUE(has_part) << name << ": the test wants a character of several tokens";
    }
    const tokenizer::Tokenizer tokenizer = load("llama3_small");
    EXPECT_EQ(text_of_token(tokenizer, *tokenizer.bos_id()).name(), "<|begin_of_text|>");
    EXPECT_EQ(text_of_token(tokenizer, 1'000'000).name(), "");
}

TokenReport token(const std::string& text, float logprob) {
    return {{text, true}, logprob, {{{"best", true}, -0.1F}, {{text, true}, logprob}}};
}

TEST(OpenaiResponse, Completions) {
    const AnswerHead head{"cmpl-1", "m", "fp_1", 12, false};
    Choice choice{.index = 0, .text = "\u00e9a", .tokens = {}, .has_logprobs = true, .finish_reason = "length"};
    choice.tokens = {{{"\u00e9", true}, std::nullopt, {}}, token("a", -1.5F), {{"\xe2\x82", false}, -2.0F, {}}};
    const Json answer = Json::parse(answer_text(head, {choice}, {.prompt_tokens = 3, .completion_tokens = 2}));
    EXPECT_EQ(answer["object"], "text_completion");
    EXPECT_EQ(answer["usage"]["total_tokens"], 5);
    const Json& logprobs = answer["choices"][0]["logprobs"];
    EXPECT_EQ(logprobs["tokens"], (Json{"\u00e9", "a", "bytes:\\xe2\\x82"}));
    EXPECT_EQ(logprobs["text_offset"], (Json{0, 1, 2})) << "in characters";
    EXPECT_TRUE(logprobs["token_logprobs"][0].is_null() && logprobs["top_logprobs"][0].is_null());
    EXPECT_EQ(logprobs["top_logprobs"][1]["a"], -1.5) << "the chosen token is among them";
    EXPECT_EQ(logprobs["top_logprobs"][2].size(), 1U);
}

TEST(OpenaiResponse, Chats) {
    const AnswerHead head{"chatcmpl-1", "m", "fp_1", 12, true};
    Choice choice{.index = 1, .text = "hi", .tokens = {}, .has_logprobs = true, .finish_reason = "stop"};
    choice.tokens = {{{"\xe2\x82", false}, -std::numeric_limits<float>::infinity(), {}}};
    const Json answer = Json::parse(answer_text(head, {choice}, {}));
    EXPECT_EQ(answer["object"], "chat.completion");
    EXPECT_EQ(answer["choices"][0]["message"]["content"], "hi");
    const Json& one = answer["choices"][0]["logprobs"]["content"][0];
    EXPECT_EQ(one["bytes"], (Json{0xe2, 0x82})) << "the bytes carry the truth";
    EXPECT_EQ(one["token"], "\uFFFD");
    EXPECT_TRUE(one["logprob"].is_number()) << "JSON has no infinity";
    choice.has_logprobs = false;
    EXPECT_TRUE(Json::parse(answer_text(head, {choice}, {}))["choices"][0]["logprobs"].is_null());
}

TEST(OpenaiResponse, Streams) {
    const auto data = [](const std::string& event) {
        EXPECT_TRUE(event.starts_with("data: ") && event.ends_with("\n\n")) << event;
        EXPECT_EQ(event.find('\n'), event.size() - 2);
        return Json::parse(event.substr(6));
    };
    const AnswerHead head{"chatcmpl-1", "m", "fp_1", 12, true};
    TextOffsets offsets;
    Choice first{.index = 0, .text = "", .tokens = {}, .has_role = true};
    const std::optional<Usage> none;
    Json piece = data(stream_event(head, first, offsets, &none));
    EXPECT_EQ(piece["object"], "chat.completion.chunk");
    EXPECT_EQ(piece["choices"][0]["delta"]["role"], "assistant");
    EXPECT_TRUE(piece["choices"][0]["finish_reason"].is_null());
    EXPECT_TRUE(piece.contains("usage") && piece["usage"].is_null());
    Choice last{.index = 0, .text = "a\nb", .tokens = {}, .finish_reason = "stop"};
    piece = data(stream_event(head, last, offsets, nullptr));
    EXPECT_FALSE(piece.contains("usage"));
    EXPECT_FALSE(piece["choices"][0]["delta"].contains("role"));
    EXPECT_EQ(piece["choices"][0]["delta"]["content"], "a\nb");
    EXPECT_EQ(data(usage_event(head, {3, 4, 2}))["choices"].size(), 0U);
    EXPECT_EQ(data(usage_event(head, {3, 4, 2}))["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
    const AnswerHead completion{"cmpl-1", "m", "fp_1", 12, false};
    Choice rated{.index = 0, .text = "a", .tokens = {token("a", -1)}, .has_logprobs = true};
    TextOffsets own;
    data(stream_event(completion, rated, own, nullptr));
    EXPECT_EQ(data(stream_event(completion, rated, own, nullptr))["choices"][0]["logprobs"]["text_offset"][0], 1);
}

/// The types of a response's events, and the last one.
std::pair<std::vector<std::string>, Json> response_events(const std::string& text) {
    std::vector<std::string> types;
    Json last;
    for (std::size_t at = 0; (at = text.find("data: ", at)) != std::string::npos; ++at) {
        last = Json::parse(text.substr(at + 6, text.find('\n', at) - at - 6));
        EXPECT_EQ(last["sequence_number"], types.size());
        types.push_back(last["type"].get<std::string>().substr(9));
        EXPECT_NE(text.find("event: response." + types.back() + "\ndata: "), std::string::npos);
    }
    return {types, last};
}

TEST(OpenaiResponse, ResponsesWholeAndAsEvents) {
    const AnswerHead head{"1", "m", "fp_1", 12, true};
    const auto settings = std::make_shared<const Json>(Json{{"store", false}});
    const Choice all{.text = "ab", .tokens = {token("a", -1), token("b", -2)}, .finish_reason = "length"};
    const Usage usage{.prompt_tokens = 3, .completion_tokens = 2, .cached_tokens = 1};
    const Json whole = Json::parse(ResponseStream(head, settings).whole(all, usage));
    EXPECT_EQ(whole["id"], "resp_1");
    EXPECT_EQ(whole["status"], "incomplete");
    EXPECT_EQ(whole["incomplete_details"]["reason"], "max_output_tokens");
    EXPECT_EQ(whole["output"][0]["content"][0]["text"], "ab");
    EXPECT_EQ(whole["output"][0]["content"][0]["logprobs"].size(), 2U);
    EXPECT_EQ(whole["usage"]["total_tokens"], 5);
    EXPECT_EQ(whole["store"], false);

    ResponseStream stream(head, settings);
    std::string text = stream.piece({.has_role = true});
    text += stream.piece({.text = "a", .tokens = {token("a", -1)}});
    text += stream.piece({.text = "b", .tokens = {token("b", -2)}, .finish_reason = "length"});
    text += stream.end(usage);
    const auto [types, last] = response_events(text);
    EXPECT_EQ(types, (std::vector<std::string>{"created", "in_progress", "output_item.added", "content_part.added",
                                               "output_text.delta", "output_text.delta", "output_text.done",
                                               "content_part.done", "output_item.done", "incomplete"}));
    EXPECT_EQ(last["response"], whole);
    const Choice broken{.finish_reason = "error"};
    EXPECT_EQ(Json::parse(ResponseStream(head, settings).whole(broken, usage))["error"]["code"], "server_error");
}

TEST(OpenaiResponse, ThoughtsPrecedeTheMessageOfAResponse) {
    const AnswerHead head{"1", "m", "fp_1", 12, true};
    const auto settings = std::make_shared<const Json>(Json::object());
    const Usage usage{.prompt_tokens = 3, .completion_tokens = 9, .reasoning_tokens = 4};
    const std::vector<TokenReport> tokens = {token("h", -1), token("a", -1), token("b", -2)};
    const Choice all{.text = "ab", .tokens = tokens, .finish_reason = "stop", .reasoning = "hm, hm"};
    const Json whole = Json::parse(ResponseStream(head, settings).whole(all, usage));
    EXPECT_EQ(whole["output"][0]["type"], "reasoning");
    EXPECT_EQ(whole["output"][0]["content"], Json::parse(R"([{"type": "reasoning_text", "text": "hm, hm"}])"));
    EXPECT_EQ(whole["output"][1]["content"][0]["text"], "ab");
    EXPECT_EQ(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 4);

    ResponseStream stream(head, settings);
    std::string text = stream.piece({.has_role = true});
    text += stream.piece({.tokens = {tokens[0]}, .reasoning = "hm,"});
    text += stream.piece({.reasoning = " hm"});
    text += stream.piece({.text = "a", .tokens = {tokens[1]}});
    text += stream.piece({.text = "b", .tokens = {tokens[2]}, .finish_reason = "stop"});
    text += stream.end(usage);
    const auto [types, last] = response_events(text);
    EXPECT_EQ(types, (std::vector<std::string>{
                         "created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.delta",
                         "reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done",
                         "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
                         "output_text.done", "content_part.done", "output_item.done", "completed"}));
    EXPECT_EQ(last["response"], whole);
}

}  // namespace
}  // namespace unsloth::openai
