// Rows through a real tokenizer: one of bytes, made here, and with UNSLOTH_SHARED also Llama 3.1's against
// the reference's renderings.
#include "unsloth/data/encoder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/encoder_support.h"

namespace unsloth::data {
namespace {

using Json = nlohmann::ordered_json;
using Ints = std::vector<int32_t>;

TEST(TokenizerEncoder, TextBeginsWithBosAndEndsWithOneEos) {
    const toy::Folder folder;
    const auto encoder = make_row_encoder(byte_tokenizer(folder), "auto");
    EXPECT_EQ(only_row(*encoder, R"({"text": "h\u00e9 "})").ids, toy::joined({{bos}, byte_ids("h\xC3\xA9 "), {eos}}));
    EXPECT_EQ(only_row(*encoder, R"({"text": "x<|end_of_text|>"})").ids, toy::joined({{bos}, byte_ids("x"), {eos}}));
    const Sample rendered = only_row(*encoder, R"({"text": "x<|end_of_text|>\n"})");
    EXPECT_EQ(rendered.ids, toy::joined({{bos}, byte_ids("x"), {eos}, byte_ids("\n")}));
    EXPECT_EQ(rendered.labels, toy::joined({{bos}, byte_ids("x"), {eos, ignore_label}}));
    const Sample row = only_row(*encoder, R"({"text": "xy"})");
    EXPECT_EQ(row.labels, row.ids);
}

TEST(TokenizerEncoder, AnswersThatBringTheirEndGetNoOther) {
    const toy::Folder folder;
    folder.write("generation_config.json", R"({"eos_token_id": [257, 260]})");  // <|eot_id|> ends generations too
    const auto encoder = make_row_encoder(byte_tokenizer(folder), "auto");
    expect_answer(only_row(*encoder, R"({"prompt": "q", "completion": "a"})"), toy::joined({{bos}, byte_ids("q")}),
                  toy::joined({byte_ids("a"), {eos}}));
    expect_answer(only_row(*encoder, R"({"prompt": "q", "completion": "a<|end_of_text|>"})"),
                  toy::joined({{bos}, byte_ids("q")}), toy::joined({byte_ids("a"), {eos}}));
    expect_answer(only_row(*encoder, R"({"prompt": "q", "completion": "a<|eot_id|>"})"),
                  toy::joined({{bos}, byte_ids("q")}), toy::joined({byte_ids("a"), {turn_end}}));
    // What a chat template wrote, white space behind it included.
    const Sample rendered = only_row(*encoder, R"({"prompt": "q", "completion": "a<|eot_id|>\n"})");
    EXPECT_EQ(rendered.ids, toy::joined({{bos}, byte_ids("qa"), {turn_end}, byte_ids("\n")}));
    EXPECT_EQ(rendered.labels, toy::joined({{ignore_label, ignore_label}, byte_ids("a"), {turn_end, ignore_label}}));
    // An end in the middle is none.
    expect_answer(only_row(*encoder, R"({"prompt": "q", "completion": "a<|eot_id|>b"})"),
                  toy::joined({{bos}, byte_ids("q")}), toy::joined({byte_ids("a"), {turn_end}, byte_ids("b"), {eos}}));
    const Ints alpaca = only_row(*encoder, R"({"instruction": "q", "output": "a<|end_of_text|>"})").ids;
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
        expect_answer(
            only_row(*encoder, R"({"instruction": "Add.", "input": "1 2", "output": "3", "system": "Count."})"),
            toy::joined({{bos}, byte_ids("Count.\n\n### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:\n")}),
            toy::joined({byte_ids("3"), {eos}}));
        const Sample plain = only_row(*encoder, R"({"instruction": "Add.", "output": "3"})");
        expect_answer(
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
    expect_answer(only_row(*encoder, R"({"instruction": "Add.", "input": "1 2", "output": "3", "system": "Count."})"),
                  toy::joined({{bos},
                               turn("system", "Count."),
                               {turn_end},
                               turn("user", "Add.\n1 2"),
                               {turn_end},
                               turn("assistant", "")}),
                  toy::joined({byte_ids("3"), {turn_end}}));
    expect_answer(only_row(*encoder, R"({"instruction": "Hi", "output": "Yo"})"),
                  toy::joined({{bos}, turn("user", "Hi"), {turn_end}, turn("assistant", "")}),
                  toy::joined({byte_ids("Yo"), {turn_end}}));
}

TEST(TokenizerEncoder, MessagesTakeTheTokenizersTemplate) {
    const toy::Folder folder;
    const tokenizer::Tokenizer tokenizer = byte_tokenizer(folder);
    const std::string line =
        R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]})";
    const Sample row = only_row(*make_row_encoder(tokenizer, "auto"), line);
    expect_answer(row,
                  toy::joined({{bos, header},
                               byte_ids("user"),
                               {header_end},
                               byte_ids("\n\nHi"),
                               {turn_end, header},
                               byte_ids("assistant"),
                               {header_end},
                               byte_ids("\n\n")}),
                  toy::joined({byte_ids("Yo"), {turn_end}}));
    EXPECT_EQ(only_row(*make_row_encoder(tokenizer, "alpaca"), line).ids.back(), eos);
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
        const Sample row = only_row(*encoder, Json{{"messages", reference["messages"]}}.dump());
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
