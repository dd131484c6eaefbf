// Rows through a real tokenizer: one of bytes, made here, and with UNSLOTH_SHARED also Llama 3.1's against
// the reference's renderings.
#include "unsloth/data/encoder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/toy.h"
#include "unsloth/core/files.h"

namespace unsloth::data {
namespace {

using Json = nlohmann::ordered_json;
using Ints = std::vector<int32_t>;

std::string utf8(uint32_t code_point) {
    if (code_point < 0x80) return {static_cast<char>(code_point)};
    return {static_cast<char>(0xC0 | (code_point >> 6)), static_cast<char>(0x80 | (code_point & 0x3F))};
}

/// GPT-2's spelling of a byte: printable ones as they are, the others counted from U+0100.
std::vector<std::string> byte_spellings() {
    std::vector<std::string> spellings;
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; ++byte) {
        const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        spellings.push_back(utf8(printable ? byte : next++));
    }
    return spellings;
}

constexpr int32_t special_base = 256;
const std::vector<std::string> specials{"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>",
                                        "<|end_header_id|>", "<|eot_id|>"};
constexpr int32_t bos = special_base, eos = bos + 1, header = bos + 2, header_end = bos + 3, turn_end = bos + 4;

/// A Llama 3 style tokenizer without merges: byte b has id b. It adds BOS; `names_eos` leaves eos_token out.
tokenizer::Tokenizer byte_tokenizer(const toy::Folder& folder, bool names_eos = true) {
    Json vocabulary, added = Json::array();
    const auto spellings = byte_spellings();
    for (std::size_t byte = 0; byte < 256; ++byte) vocabulary[spellings[byte]] = byte;
    for (std::size_t i = 0; i < specials.size(); ++i)
        added.push_back({{"id", special_base + static_cast<int32_t>(i)},
                         {"content", specials[i]},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", false},
                         {"special", true}});
    const Json first{{"SpecialToken", {{"id", specials[0]}, {"type_id", 0}}}},
        text{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, pair{{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
    const Json tokenizer{
        {"version", "1.0"},
        {"truncation", nullptr},
        {"padding", nullptr},
        {"added_tokens", added},
        {"normalizer", nullptr},
        {"pre_tokenizer",
         {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}},
        {"post_processor",
         {{"type", "TemplateProcessing"},
          {"single", {first, text}},
          {"pair", {first, text, first, pair}},
          {"special_tokens", {{specials[0], {{"id", specials[0]}, {"ids", {bos}}, {"tokens", {specials[0]}}}}}}}},
        {"decoder", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}}},
        {"model",
         {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", vocabulary},
          {"merges", Json::array()}}}};
    Json config{{"bos_token", specials[0]}};
    if (names_eos) config["eos_token"] = specials[1];
    folder.write("tokenizer_config.json", config.dump());
    return tokenizer::Tokenizer::load(folder.write("tokenizer.json", tokenizer.dump()).parent_path());
}

/// Ids of the byte tokenizer: each byte's value.
Ints byte_ids(std::string_view text) {
    Ints ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
}

/// The only row of a file with this line.
Sample row_of(const RowEncoder& encoder, const std::string& line) {
    const toy::Folder folder;
    std::string one_line = line;
    std::erase(one_line, '\n');
    return Dataset::load(folder.write("a.jsonl", one_line + "\n"), {}, &encoder).sample(0);
}

/// The ids of a row must be `prompt`, not trained, and `answer`, trained.
void expect_row(const Sample& row, const Ints& prompt, const Ints& answer) {
    EXPECT_EQ(row.ids, toy::joined({prompt, answer}));
    EXPECT_EQ(row.labels, toy::joined({Ints(prompt.size(), ignore_label), answer}));
}

TEST(TokenizerEncoder, TextBeginsWithBosAndEndsWithOneEos) {
    const toy::Folder folder;
    const auto encoder = make_row_encoder(byte_tokenizer(folder), "auto");
    EXPECT_EQ(row_of(*encoder, R"({"text": "h\u00e9 "})").ids, toy::joined({{bos}, byte_ids("h\xC3\xA9 "), {eos}}));
    EXPECT_EQ(row_of(*encoder, R"({"text": "x<|end_of_text|>"})").ids, toy::joined({{bos}, byte_ids("x"), {eos}}));
    const Sample rendered = row_of(*encoder, R"({"text": "x<|end_of_text|>\n"})");
    EXPECT_EQ(rendered.ids, toy::joined({{bos}, byte_ids("x"), {eos}, byte_ids("\n")}));
    EXPECT_EQ(rendered.labels, toy::joined({{bos}, byte_ids("x"), {eos, ignore_label}}));
    const Sample row = row_of(*encoder, R"({"text": "xy"})");
    EXPECT_EQ(row.labels, row.ids);
}

TEST(TokenizerEncoder, AnswersThatBringTheirEndGetNoOther) {
    const toy::Folder folder;
    folder.write("generation_config.json", R"({"eos_token_id": [257, 260]})");  // <|eot_id|> ends generations too
    const auto encoder = make_row_encoder(byte_tokenizer(folder), "auto");
    expect_row(row_of(*encoder, R"({"prompt": "q", "completion": "a"})"), toy::joined({{bos}, byte_ids("q")}),
               toy::joined({byte_ids("a"), {eos}}));
    expect_row(row_of(*encoder, R"({"prompt": "q", "completion": "a<|end_of_text|>"})"),
               toy::joined({{bos}, byte_ids("q")}), toy::joined({byte_ids("a"), {eos}}));
    expect_row(row_of(*encoder, R"({"prompt": "q", "completion": "a<|eot_id|>"})"), toy::joined({{bos}, byte_ids("q")}),
               toy::joined({byte_ids("a"), {turn_end}}));
    // What a chat template wrote, white space behind it included.
    const Sample rendered = row_of(*encoder, R"({"prompt": "q", "completion": "a<|eot_id|>\n"})");
    EXPECT_EQ(rendered.ids, toy::joined({{bos}, byte_ids("qa"), {turn_end}, byte_ids("\n")}));
    EXPECT_EQ(rendered.labels, toy::joined({{ignore_label, ignore_label}, byte_ids("a"), {turn_end, ignore_label}}));
    // An end in the middle is none.
    expect_row(row_of(*encoder, R"({"prompt": "q", "completion": "a<|eot_id|>b"})"),
               toy::joined({{bos}, byte_ids("q")}), toy::joined({byte_ids("a"), {turn_end}, byte_ids("b"), {eos}}));
    const Ints alpaca = row_of(*encoder, R"({"instruction": "q", "output": "a<|end_of_text|>"})").ids;
    EXPECT_EQ(Ints(alpaca.end() - 3, alpaca.end()), toy::joined({byte_ids("\na"), {eos}}));

    const toy::Folder files;
    DatasetOptions options;
    options.log_warnings = false;
    options.objective = config::Objective::dpo;
    const Dataset pair =
        Dataset::load(files.write("p.jsonl", R"({"prompt": "q", "chosen": "a<|end_of_text|>", "rejected": "b"})"
                                             "\n"),
                      options, encoder.get());
    EXPECT_EQ(pair.sample(0).ids, toy::joined({{bos}, byte_ids("qa"), {eos, bos}, byte_ids("qb"), {eos}}));
}

/// llama3_small, whose merges make words.
TEST(TokenizerEncoder, ImplicitPromptsEndWhereTokensDiffer) {
    const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(toy::golden("tokenizer/llama3_small"));
    const auto encoder = make_row_encoder(tokenizer, "auto");
    const auto common = [&](const std::string& a, const std::string& b) {
        const std::size_t end = encoder->common_prompt(a, b);
        EXPECT_EQ(end, encoder->common_prompt(b, a));
        return a.substr(0, end);
    };
    ASSERT_EQ(tokenizer.encode("Say the", false).size(), 3u) << "' the' must be one token";
    EXPECT_EQ(common("Say the", "Say to"), "Say") << "the words have their space";
    EXPECT_EQ(common("Say the", "Say thing"), "Say") << "the letters in common are of different tokens";
    EXPECT_EQ(common("Say the", "Say the"), "Say the");
    EXPECT_EQ(common("yes", "no"), "");
    EXPECT_EQ(common("q\u00e4", "q\u00f6"), "q") << "no character is cut";
    EXPECT_EQ(common("q<|eot_id|>", "q."), "q") << "a token that ends an answer at once";
    toy::expect_contains(
        toy::message_of("data.no-prompt", [&] { (void)common("q\n<|start_header_id|>a", "q\n<|eot_id|>"); }),
        {"<|start_header_id|>", "begins", "prompt"});
}

TEST(TokenizerEncoder, AlpacaRowsTakeTheThreeSections) {
    const toy::Folder folder;
    const tokenizer::Tokenizer tokenizer = byte_tokenizer(folder);
    for (const char* name : {"auto", "alpaca"}) {
        const auto encoder = make_row_encoder(tokenizer, name);
        expect_row(
            row_of(*encoder, R"({"instruction": "Add.", "input": "1 2", "output": "3", "system": "Count."})"),
            toy::joined({{bos}, byte_ids("Count.\n\n### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:\n")}),
            toy::joined({byte_ids("3"), {eos}}));
        const Sample plain = row_of(*encoder, R"({"instruction": "Add.", "output": "3"})");
        expect_row(
            plain,
            toy::joined({{bos},
                         byte_ids("Below is an instruction that describes a task. Write a response that appropriately "
                                  "completes the request.\n\n### Instruction:\nAdd.\n\n### Response:\n")}),
            toy::joined({byte_ids("3"), {eos}}));
    }
}

TEST(TokenizerEncoder, AlpacaRowsThroughANamedTemplateAreAConversation) {
    const toy::Folder folder;
    const auto encoder = make_row_encoder(byte_tokenizer(folder), "llama-3");
    const auto turn = [](const char* role, const char* content) {
        return toy::joined({{header}, byte_ids(role), {header_end}, byte_ids("\n\n"), byte_ids(content)});
    };
    expect_row(row_of(*encoder, R"({"instruction": "Add.", "input": "1 2", "output": "3", "system": "Count."})"),
               toy::joined({{bos},
                            turn("system", "Count."),
                            {turn_end},
                            turn("user", "Add.\n1 2"),
                            {turn_end},
                            turn("assistant", "")}),
               toy::joined({byte_ids("3"), {turn_end}}));
    expect_row(row_of(*encoder, R"({"instruction": "Hi", "output": "Yo"})"),
               toy::joined({{bos}, turn("user", "Hi"), {turn_end}, turn("assistant", "")}),
               toy::joined({byte_ids("Yo"), {turn_end}}));
}

TEST(TokenizerEncoder, MessagesTakeTheTokenizersTemplate) {
    const toy::Folder folder;
    const tokenizer::Tokenizer tokenizer = byte_tokenizer(folder);
    const std::string line =
        R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]})";
    const Sample row = row_of(*make_row_encoder(tokenizer, "auto"), line);
    expect_row(row,
               toy::joined({{bos, header},
                            byte_ids("user"),
                            {header_end},
                            byte_ids("\n\nHi"),
                            {turn_end, header},
                            byte_ids("assistant"),
                            {header_end},
                            byte_ids("\n\n")}),
               toy::joined({byte_ids("Yo"), {turn_end}}));
    EXPECT_EQ(row_of(*make_row_encoder(tokenizer, "alpaca"), line).ids.back(), eos);
}

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
        const Sample sample = row_of(*make_row_encoder(tokenizer, files.write("sees.jinja", sees).string()), row);
        expect_row(sample,
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
    EXPECT_GT(row_of(*encoder, empty + answer).ids.size(), 0u) << "nothing is lost";
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
        const Sample sample = row_of(*make_row_encoder(tokenizer, name, run), row);
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

    const Sample shared = row_of(*make_row_encoder(tokenizer, name),
                                 R"({"conversations": [{"from": "gpt", "value": "A"}], "style": "s"})");
    EXPECT_EQ(tokenizer.decode(shared.ids, false), "s[assistant]A");
    const Sample parts = row_of(*make_row_encoder(tokenizer, name), R"({"style": "p", "completion": [{"role":
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
                         {"have a column \"system\" beside a text"});
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

/// Unpacks a shared file into `folder`; false when that is not possible.
bool unpack(const std::filesystem::path& packed, const toy::Folder& folder, const std::string& name) {
    const std::string target = folder.write(name, "").string();
    return std::filesystem::exists(packed) &&
           std::system(cat("xz -dc '", packed.string(), "' > '", target, "'").c_str()) == 0;
}

TEST(TokenizerEncoder, Llama31ConversationsEqualTheReference) {
    const char* const shared = std::getenv("UNSLOTH_SHARED");
    if (!shared) GTEST_SKIP() << "UNSLOTH_SHARED does not name the folder of shared reference data";
    const std::filesystem::path root(shared);
    const toy::Folder folder;
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
        if (!unpack(root / "tokenizers/llama3_1" / (std::string(name) + ".xz"), folder, name))
            GTEST_SKIP() << "no " << name;
    const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(folder.write("unused", "").parent_path());
    const auto encoder = make_row_encoder(tokenizer, "llama-3");

    // What the built-in template covers: plain roles, no generation prompt, no system text that the
    // reference's own template adds (dates, tools). Whether a case is one of these is told by its text.
    int compared = 0;
    std::istringstream cases(read_file(root / "golden/chat/llama3_1.jsonl"));
    for (std::string line; std::getline(cases, line);) {
        const Json reference = Json::parse(line);
        if (reference["add_generation_prompt"].get<bool>() || !reference.contains("ids") ||
            reference["assistant_tokens"].empty())
            continue;
        if (reference["text"].get<std::string>().find("Cutting Knowledge Date") != std::string::npos) continue;
        const Sample row = row_of(*encoder, Json{{"messages", reference["messages"]}}.dump());
        const auto ids = reference["ids"].get<Ints>();
        EXPECT_EQ(row.ids, ids) << line;
        Ints labels(ids.size(), ignore_label);
        for (const Json& span : reference["assistant_tokens"])
            for (std::size_t t = span[0]; t < span[1].get<std::size_t>(); ++t) labels[t] = ids[t];
        EXPECT_EQ(row.labels, labels) << line;
        ++compared;
    }
    EXPECT_GE(compared, 5);
}

}  // namespace
}  // namespace unsloth::data
