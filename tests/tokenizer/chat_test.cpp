#include "unsloth/tokenizer/chat.h"

#include <algorithm>
#include <map>

#include "tokenizer/support.h"

namespace unsloth::test {
namespace {

using Spans = std::vector<std::pair<std::size_t, std::size_t>>;

std::vector<nlohmann::ordered_json> read_ordered_rows(const std::filesystem::path& path) {
    std::istringstream in(read_text(path));
    std::vector<nlohmann::ordered_json> rows;
    for (std::string line; std::getline(in, line);) rows.push_back(nlohmann::ordered_json::parse(line));
    return rows;
}

tokenizer::Tokenizer small(const char* name) {
    return tokenizer::Tokenizer::load(golden(std::string("tokenizer/") + name));
}

std::vector<tokenizer::Message> messages_of(const json& row) {
    std::vector<tokenizer::Message> messages;
    for (const json& message : row["messages"]) messages.push_back({message["role"], message["content"]});
    return messages;
}

tokenizer::Rendered render(std::string_view name, std::span<const tokenizer::Message> messages,
                           bool add_generation_prompt, const tokenizer::Tokenizer& tokenizer) {
    return tokenizer::ChatTemplate::choose(name, tokenizer).render(messages, add_generation_prompt);
}

tokenizer::Rendered render_row(const char* name, const json& row, const tokenizer::Tokenizer& tokenizer) {
    return render(name, messages_of(row), row["add_generation_prompt"].get<bool>(), tokenizer);
}

/// Trained bytes as code points, which the golden files count in.
Spans in_code_points(const tokenizer::Rendered& rendered) {
    Spans spans;
    for (const auto& [begin, end] : rendered.trained_bytes) {
        const auto count = [&](std::size_t bytes) {
            return static_cast<std::size_t>(std::count_if(rendered.text.begin(), rendered.text.begin() + bytes,
                                                          [](char c) { return (c & 0xC0) != 0x80; }));
        };
        spans.emplace_back(count(begin), count(end));
    }
    return spans;
}

void expect_text(const char* name, const json& row, const tokenizer::Tokenizer& tokenizer) {
    const tokenizer::Rendered rendered = render_row(name, row, tokenizer);
    EXPECT_EQ(rendered.text, row["text"].get<std::string>());
    if (row.contains("assistant_chars")) {
        EXPECT_EQ(in_code_points(rendered), row["assistant_chars"].get<Spans>());
    }
}

TEST(Chat, Llama3EqualsItsOwnTemplate) {
    const tokenizer::Tokenizer tokenizer = small("llama3_small");
    for (const json& row : read_rows(golden("chat/llama3_1.jsonl"))) expect_text("llama-3", row, tokenizer);
}

/// Qwen3's template is ChatML plus think blocks around the last answers; rows without those must be the same.
TEST(Chat, ChatMlEqualsQwenWhereItsTemplateAddsNothing) {
    const tokenizer::Tokenizer tokenizer = small("qwen_small");
    int compared = 0;
    for (const json& row : read_rows(golden("chat/qwen3.jsonl"))) {
        if (row["text"].get<std::string>().find("<think>") != std::string::npos) continue;
        expect_text("chatml", row, tokenizer);
        ++compared;
    }
    EXPECT_EQ(compared, 6);
}

TEST(Chat, ChatMlKeepsContentsAsTheyAre) {
    const std::vector<tokenizer::Message> messages = {
        {"system", " S\n"}, {"user", "Q"}, {"assistant", " A "}, {"tool", "T"}};
    const tokenizer::Rendered rendered = render("chatml", messages, true, small("qwen_small"));
    EXPECT_EQ(rendered.text,
              "<|im_start|>system\n S\n<|im_end|>\n<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n A "
              "<|im_end|>\n"
              "<|im_start|>tool\nT<|im_end|>\n<|im_start|>assistant\n");
    ASSERT_EQ(rendered.trained_bytes.size(), 1u);
    const auto [begin, end] = rendered.trained_bytes[0];
    EXPECT_EQ(rendered.text.substr(begin, end - begin), " A <|im_end|>");
}

TEST(Chat, Llama3TrimsAsPythonDoes) {
    const std::vector<tokenizer::Message> messages = {{"user", "\u3000\x1c hi \u00a0\n"}};
    EXPECT_EQ(render("llama-3", messages, false, small("llama3_small")).text,
              "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>");
}

/// Ids and trained tokens that the reference library's own offsets give.
void expect_turns(const char* template_name, const char* tokenizer_name, const char* conversations) {
    const tokenizer::Tokenizer tokenizer = small(tokenizer_name);
    std::map<std::string, json> expected;
    for (const json& row : read_rows(golden(std::string("tokenizer/") + tokenizer_name + ".chat.jsonl"))) {
        if (row.contains("trained")) expected[row["text"]] = row;
    }
    int compared = 0;
    for (const json& row : read_rows(golden(std::string("chat/") + conversations))) {
        const auto found = expected.find(row["text"]);
        const tokenizer::Rendered rendered = render_row(template_name, row, tokenizer);
        if (found == expected.end() || rendered.text != row["text"].get<std::string>() ||
            !row.contains("assistant_tokens"))
            continue;
        const tokenizer::EncodedTurns turns = tokenizer::encode_rendered(tokenizer, rendered);
        EXPECT_EQ(turns.ids, found->second["ids"].get<std::vector<int32_t>>()) << rendered.text;
        EXPECT_EQ(turns.trained, found->second["trained"].get<Spans>()) << rendered.text;
        ++compared;
    }
    EXPECT_GE(compared, 3);
}

TEST(Chat, TrainsTheTokensOfAssistantTurns) {
    expect_turns("llama-3", "llama3_small", "llama3_1.jsonl");
    expect_turns("chatml", "qwen_small", "qwen3.jsonl");
}

/// Through the models' own templates, which have no {% generation %} blocks; Qwen 3's changes earlier turns.
TEST(Chat, RealTokenizersGiveTheGoldenIdsAndSpans) {
    for (const char* name : {"llama3_1", "qwen3"}) {
        const ScratchFolder folder;
        if (!expand_shared(name, folder)) GTEST_SKIP() << "set UNSLOTH_SHARED to a folder with tokenizers/" << name;
        const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(folder.path());
        const tokenizer::ChatTemplate chat = tokenizer::ChatTemplate::choose("auto", tokenizer);
        EXPECT_EQ(chat.name(), "default (of the model)");
        for (const auto& row : read_ordered_rows(golden(std::string("chat/") + name + ".jsonl"))) {
            if (row.contains("error")) {
                EXPECT_THROW(chat.render(row), Error);
                continue;
            }
            nlohmann::ordered_json given = row;
            for (const char* key : {"text", "ids", "assistant_chars", "assistant_tokens"}) given.erase(key);
            const tokenizer::Rendered rendered = chat.render(given);
            EXPECT_EQ(rendered.text, row["text"].get<std::string>());
            const tokenizer::EncodedTurns turns = tokenizer::encode_rendered(tokenizer, rendered);
            EXPECT_EQ(turns.ids, row["ids"].get<std::vector<int32_t>>());
            if (!row.contains("assistant_tokens")) continue;
            EXPECT_EQ(in_code_points(rendered), row["assistant_chars"].get<Spans>()) << rendered.text;
            EXPECT_EQ(turns.trained, row["assistant_tokens"].get<Spans>()) << rendered.text;
        }
    }
}

/// The line feed of the answer merges with those of the header: that token is read, not learned.
TEST(Chat, ATokenAcrossTheEdgeIsNotTrained) {
    const tokenizer::Tokenizer tokenizer = small("llama3_small");
    ASSERT_TRUE(tokenizer.token_id("\u010a\u010a")) << "the golden tokenizer must merge two line feeds";
    const std::string text = "a\n\nb<|eot_id|>";
    const tokenizer::EncodedTurns turns = tokenizer::encode_rendered(tokenizer, {text, {{2, text.size()}}});
    const tokenizer::Encoding encoding = tokenizer.encode_with_offsets(text, false);
    ASSERT_EQ(turns.trained.size(), 1u);
    EXPECT_EQ(encoding.offsets[turns.trained[0].first].first, 3u);
    EXPECT_EQ(turns.trained[0].second, turns.ids.size());
    // A range that holds no whole token leaves nothing.
    EXPECT_TRUE(tokenizer::encode_rendered(tokenizer, {text, {{2, 3}}}).trained.empty());
}

TEST(Chat, AutoFollowsTheTokensWithoutATemplate) {
    const auto chosen = [](const char* name, const char* tokenizer) {
        return tokenizer::ChatTemplate::choose(name, small(tokenizer)).name();
    };
    EXPECT_EQ(chosen("auto", "llama3_small"), "llama-3");
    EXPECT_EQ(chosen("auto", "qwen_small"), "chatml");
    EXPECT_EQ(chosen("auto", "gpt2_small"), "alpaca");
    EXPECT_EQ(chosen("chatml", "gpt2_small"), "chatml");
    const std::string message = error_of("template.unknown", [&] { chosen("llama3", "gpt2_small"); });
    EXPECT_NE(message.find("llama-3, llama-2, mistral, chatml, qwen, alpaca, zephyr"), std::string::npos) << message;
}

TEST(Chat, AlpacaPromptHasThreeSections) {
    EXPECT_EQ(tokenizer::alpaca_prompt("Do it."),
              "Below is an instruction that describes a task. Write a response that appropriately completes the "
              "request.\n\n### Instruction:\nDo it.\n\n### Response:\n");
    EXPECT_EQ(tokenizer::alpaca_prompt("Do it.", "this"),
              "Below is an instruction that describes a task, paired with an input that provides further "
              "context. Write "
              "a response that appropriately completes the request.\n\n### Instruction:\nDo it.\n\n### "
              "Input:\nthis\n\n"
              "### Response:\n");
    EXPECT_EQ(tokenizer::alpaca_prompt("Do it.", "this", "You are a lawyer."),
              "You are a lawyer.\n\n### Instruction:\nDo it.\n\n### Input:\nthis\n\n### Response:\n");
}

TEST(Chat, AlpacaConversation) {
    const std::vector<tokenizer::Message> messages = {
        {"system", "S"}, {"user", "Q1"}, {"assistant", "A1"}, {"user", "Q2"}, {"assistant", "A2"}};
    const tokenizer::Rendered rendered = render("alpaca", messages, false, small("llama3_small"));
    EXPECT_EQ(rendered.text,
              "<|begin_of_text|>S\n\n### Instruction:\nQ1\n\n### Response:\nA1<|eot_id|>\n\n### "
              "Instruction:\nQ2\n\n"
              "### Response:\nA2<|eot_id|>");
    ASSERT_EQ(rendered.trained_bytes.size(), 2u);
    for (const auto& [i, answer] : {std::pair{0, "A1<|eot_id|>"}, std::pair{1, "A2<|eot_id|>"}}) {
        const auto [begin, end] = rendered.trained_bytes[i];
        EXPECT_EQ(rendered.text.substr(begin, end - begin), answer);
    }
    const std::vector<tokenizer::Message> one = {{"user", "Q"}};
    EXPECT_EQ(render("alpaca", one, true, small("qwen_small")).text,
              tokenizer::alpaca_prompt("Q"));  // that one adds no BOS
}

TEST(Chat, PromptAndCompletion) {
    const tokenizer::Tokenizer tokenizer = small("llama3_small");
    const tokenizer::Rendered rendered =
        tokenizer::build_prompt_completion(tokenizer, tokenizer::alpaca_prompt("Q"), "the answer");
    EXPECT_EQ(rendered.text, "<|begin_of_text|>" + tokenizer::alpaca_prompt("Q") + "the answer<|eot_id|>");
    const tokenizer::EncodedTurns turns = tokenizer::encode_rendered(tokenizer, rendered);
    EXPECT_EQ(turns.ids.front(), tokenizer.bos_id());
    EXPECT_EQ(turns.ids.back(), tokenizer.eos_id());
    ASSERT_EQ(turns.trained.size(), 1u);
    const auto [begin, end] = turns.trained[0];
    EXPECT_EQ(end, turns.ids.size());
    const std::vector<int32_t> learned(turns.ids.begin() + static_cast<std::ptrdiff_t>(begin), turns.ids.end());
    EXPECT_EQ(tokenizer.decode(learned, false), "the answer<|eot_id|>");
}

TEST(Chat, RefusesWhatItCannotRender) {
    const tokenizer::Tokenizer llama = small("llama3_small"), gpt2 = small("gpt2_small");
    const std::vector<tokenizer::Message> one = {{"user", "Q"}}, tool = {{"user", "Q"}, {"tool", "T"}};
    const auto message = [&](const char* name, const std::vector<tokenizer::Message>& messages,
                             const tokenizer::Tokenizer& tokenizer) {
        return error_of(ErrorKind::input, [&] { render(name, messages, false, tokenizer); });
    };
    EXPECT_NE(message("llama-3", {}, llama).find("without messages"), std::string::npos);
    EXPECT_NE(message("llama-3", one, gpt2).find("<|begin_of_text|>"), std::string::npos);
    EXPECT_NE(message("chatml", one, gpt2).find("<|im_start|>"), std::string::npos);
    EXPECT_NE(message("alpaca", tool, llama).find("'tool'"), std::string::npos);
    const ScratchFolder folder;  // without tokenizer_config.json there is no EOS
    folder.write("tokenizer.json", small_json("qwen_small").dump());
    EXPECT_NE(message("alpaca", one, tokenizer::Tokenizer::load(folder.path())).find("end-of-sequence"),
              std::string::npos);
}

}  // namespace
}  // namespace unsloth::test
