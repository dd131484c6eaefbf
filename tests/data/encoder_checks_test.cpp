// Rows that no tokenizer can encode as they are meant: refused, or in doubt.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "data/encoder_support.h"

namespace unsloth::data {
namespace {

using Json = nlohmann::ordered_json;

TEST(TokenizerEncoder, WhatCannotBeEncodedIsAnErrorWithTheRow) {
    const toy::Folder folder, files;
    const tokenizer::Tokenizer tokenizer = byte_tokenizer(folder, false);
    const auto encoder = make_row_encoder(tokenizer, "auto");
    for (const char* line : {R"({"text": "x"})", R"({"instruction": "a", "output": "b"})"}) {
        const auto path = files.write("a.jsonl", line);
        toy::expect_contains(toy::message_of("tokenizer.no-eos", [&] { Dataset::load(path, {}, encoder.get()); }),
                             {"a.jsonl:1: ", "eos_token"});
    }
    const auto path = files.write("b.jsonl", R"({"messages": [{"role": "assistant", "content": "x"}]})");
    const auto chatml = make_row_encoder(tokenizer, "chatml");
    toy::expect_contains(toy::message_of("template.missing-token", [&] { Dataset::load(path, {}, chatml.get()); }),
                         {"b.jsonl:1: ", "<|im_start|>"});
    toy::expect_contains(toy::message_of("template.unknown", [&] { make_row_encoder(tokenizer, "vicuna"); }),
                         {"vicuna", "llama-3"});
}

TEST(TokenizerEncoder, RowsWhoseToolsTheTemplateLeavesOutAreRefused) {
    const toy::Folder folder, files;
    // As the template of Llama 3.1's tokenizer that knows roles and contents alone.
    const std::string blind =
        "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
        "{{ m.content | trim }}<|eot_id|>{% endfor %}";
    const std::string sees =
        "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}<|eot_id|>{% endfor %}";
    const tokenizer::Tokenizer tokenizer = byte_tokenizer(folder);
    const std::string openai =
        R"({"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": null, "tool_calls":
        [{"type": "function", "function": {"name": "add", "arguments": "{\"a\": 2, \"b\": 2}"}}]}]})";
    const std::string sharegpt = R"({"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "function_call",
        "value": "{\"name\": \"add\", \"arguments\": {\"a\": 2, \"b\": 2}}"}]})";
    for (std::string row : {openai, sharegpt}) {
        std::erase(row, '\n');
        const auto path = files.write("a.jsonl", row + "\n");
        const auto encoder = make_row_encoder(tokenizer, files.write("blind.jinja", blind).string());
        toy::expect_contains(toy::message_of("template.omits-content", [&] { Dataset::load(path, {}, encoder.get()); }),
                             {"a.jsonl:1: ", "writes nothing of the row's messages[1].tool_calls", "data.template"});
        const Sample sample = only_row(*make_row_encoder(tokenizer, files.write("sees.jinja", sees).string()), row);
        expect_answer(sample,
                      toy::joined({{header},
                                   byte_ids("user"),
                                   {header_end},
                                   byte_ids("\n\n2 + 2?"),
                                   {turn_end, header},
                                   byte_ids("assistant"),
                                   {header_end},
                                   byte_ids("\n\n")}),
                      toy::joined({byte_ids(R"({"name": "add", "arguments": {"a": 2, "b": 2}})"), {turn_end}}));
    }
}

TEST(TokenizerEncoder, MessagesThatTheTemplateLeavesOutAreRefused) {
    const toy::Folder folder, files;
    const tokenizer::Tokenizer tokenizer = byte_tokenizer(folder);
    // As Qwen's templates: roles that they do not name are passed over.
    const std::string source =
        "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}<|start_header_id|>{{ m.role }}"
        "<|end_header_id|>{{ m.content }}<|eot_id|>{% endif %}{% endfor %}";
    const auto encoder = make_row_encoder(tokenizer, files.write("t.jinja", source).string());
    const auto refusal = [&](const std::string& row) {
        const auto path = files.write("a.jsonl", row + "\n");
        return toy::message_of("template.omits-content", [&] { Dataset::load(path, {}, encoder.get()); });
    };
    const std::string answer = R"({"role": "assistant", "content": "Yo"}]})";
    toy::expect_contains(refusal(R"({"messages": [{"role": "developer", "content": "Be brief."}, )" + answer),
                         {"a.jsonl:1: ", "writes nothing of the row's messages[0].content (role developer)", "role"});
    toy::expect_contains(
        refusal(R"({"messages": [{"role": "user", "content": "Yo"}, {"role": "tool", "content": "Yo"}, )" + answer),
        {"messages[1].content (role tool)"});
    const std::string empty = R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "tool", "content": " "}, )";
    EXPECT_GT(only_row(*encoder, empty + answer).ids.size(), 0u) << "nothing is lost";
}

TEST(TokenizerEncoder, VariablesOfTheRunAndOfTheRowReachTheTemplate) {
    const toy::Folder folder, files;
    const tokenizer::Tokenizer tokenizer = byte_tokenizer(folder);
    const std::string name = files
                                 .write("t.jinja",
                                        "{{ style }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
                                        "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"
                                        "{% if add_generation_prompt %}[next]{% endif %}")
                                 .string();
    const std::string front =
        R"({"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}])";
    const std::string run = R"({"style": ["a"], "enable_thinking": true})";
    const auto text = [&](const std::string& columns) {
        const std::string row = front + columns + "}";
        const Sample sample = only_row(*make_row_encoder(tokenizer, name, run), row);
        // What `tokenize` shows.
        const tokenizer::Rendered shown =
            tokenizer::ChatTemplate::choose(name, tokenizer, run).render(Json::parse(row));
        EXPECT_EQ(sample.ids, tokenizer::encode_rendered(tokenizer, shown).ids) << row;
        return tokenizer.decode(sample.ids, false);
    };
    EXPECT_EQ(text(""), "['a'][user]Q[assistant]ATrue");
    EXPECT_EQ(text(R"(, "enable_thinking": false, "id": 7)"), "['a'][user]Q[assistant]AFalse");
    EXPECT_EQ(text(R"(, "enable_thinking": null)"), "['a'][user]Q[assistant]ATrue");
    EXPECT_EQ(text(R"(, "enable_thinking": true, "chat_template_kwargs": {"enable_thinking": false, "style": "b"})"),
              "b[user]Q[assistant]AFalse");
    EXPECT_EQ(text(R"(, "chat_template_kwargs": "{\"style\": \"c\"}")"), "c[user]Q[assistant]ATrue");
    EXPECT_EQ(text(R"(, "add_generation_prompt": true)"), "['a'][user]Q[assistant]ATrue[next]");

    const Sample shared = only_row(*make_row_encoder(tokenizer, name),
                                   R"({"conversations": [{"from": "gpt", "value": "A"}], "style": "s"})");
    EXPECT_EQ(tokenizer.decode(shared.ids, false), "s[assistant]A");
    const Sample parts = only_row(*make_row_encoder(tokenizer, name), R"({"style": "p", "completion": [{"role":
        "assistant", "content": "A"}], "prompt": [{"role": "user", "content": "Q"}]})");
    EXPECT_EQ(tokenizer.decode(parts.ids, false), "p[user]Q[assistant]A");

    const auto path = files.write("a.jsonl", front + R"(, "chat_template_kwargs": 5})");
    const auto encoder = make_row_encoder(tokenizer, name);
    toy::expect_contains(toy::message_of("data.column-type", [&] { Dataset::load(path, {}, encoder.get()); }),
                         {"a.jsonl:1: ", "chat_template_kwargs: expected an object, found 5"});
    for (const char* wrong : {"[]", R"({"messages": []})", R"({"add_generation_prompt": true})"})
        toy::expect_contains(toy::message_of("option.invalid-value", [&] { make_row_encoder(tokenizer, name, wrong); }),
                             {"chat_template_kwargs"});
    EXPECT_NE(encoder_fingerprint(folder.path(), name, run), encoder_fingerprint(folder.path(), name));
}

TEST(TokenizerEncoder, DoubtsAreCountedAndSaidWithTheirRows) {
    const toy::Folder folder, files;
    const tokenizer::Tokenizer tokenizer = byte_tokenizer(folder);
    const auto warnings = [&](const std::string& template_name, const std::string& rows,
                              const tokenizer::Tokenizer& with) {
        DatasetOptions options;
        options.log_warnings = false;
        const auto encoder = make_row_encoder(with, template_name);
        std::string text;
        const Dataset data = Dataset::load(files.write("d.jsonl", rows), options, encoder.get());
        for (const std::string& warning : data.stats().warnings) text += warning + "\n";
        return text;
    };
    const std::string twice = R"({"text": "a"}
{"text": "<|begin_of_text|>b"}
{"text": "<|begin_of_text|>c"})";
    toy::expect_contains(warnings("auto", twice, tokenizer),
                         {"2 of 3 rows begin with two BOS tokens (<|begin_of_text|>)", "d.jsonl:2", "d.jsonl:3"});
    EXPECT_EQ(warnings("auto", R"({"text": "a <|begin_of_text|>"})", tokenizer), "");

    const std::string talk =
        R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]})";
    const std::string guess = "the model has no chat template: llama-3 was guessed",
                      open = "does not end with a token that ends a generation (<|end_of_text|>)";
    toy::expect_contains(warnings("auto", talk, tokenizer), {"1 of 1 rows", guess, open, "d.jsonl:1"});
    const std::string named = warnings("llama-3", talk, tokenizer);
    EXPECT_EQ(named.find(guess), std::string::npos) << named;
    toy::expect_contains(named, {open});
    folder.write("generation_config.json", R"({"eos_token_id": [257, 260]})");  // <|eot_id|> ends generations too
    EXPECT_EQ(warnings("llama-3", talk, tokenizer::Tokenizer::load(folder.path())), "");
    EXPECT_EQ(warnings("auto", R"({"instruction": "a", "output": "b"})", tokenizer), "")
        << "no chat template is needed";

    toy::expect_contains(warnings("llama-3",
                                  R"({"messages": [{"role": "user", "content": "Hi"},)"
                                  R"( {"role": "assistant", "content": "Yo", "reasoning": "Be kind."}]})",
                                  tokenizer),
                         {"1 of 1 rows have messages with reasoning", "template llama-3 writes nothing"});
    const std::string plain = R"({"prompt": "q", "completion": "a"})";
    toy::expect_contains(warnings("llama-3", plain, tokenizer), {"data.template llama-3 is not applied"});
    EXPECT_EQ(warnings("auto", plain, tokenizer), "");
    toy::expect_contains(warnings("auto", R"({"text": "a<|end_of_text|><|end_of_text|>"})", tokenizer),
                         {"ends with the same token twice (<|end_of_text|>"});
    toy::expect_contains(warnings("auto", R"({"prompt": "q", "completion": "a", "system": "s"})", tokenizer),
                         {"have a column \"system\" together with a text"});
}

TEST(TokenizerEncoder, AnAnswerThatSharesATokenWithItsPromptIsWarnedOf) {
    const toy::Folder files;
    const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(toy::golden("tokenizer/llama3_small"));
    ASSERT_EQ(tokenizer.encode("Say the", false).size(), 3u) << "' the' must be one token";
    const auto encoder = make_row_encoder(tokenizer, "auto");
    DatasetOptions options;
    options.log_warnings = false;
    const Dataset data = Dataset::load(files.write("a.jsonl", R"({"prompt": "Say", "completion": " the"}
{"prompt": "Say ", "completion": "the"}
)"),
                                       options, encoder.get());
    EXPECT_EQ(data.targets(0), data.targets(1) + 1);
    ASSERT_EQ(data.stats().warnings.size(), 1u);
    toy::expect_contains(
        data.stats().warnings[0],
        {"1 of 2 rows have an answer whose first token also holds the end of the prompt", "a.jsonl:2"});
}

}  // namespace
}  // namespace unsloth::data
