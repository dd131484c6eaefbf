// A model's chat template, and renderings with trained ranges in brackets.
#pragma once

#include <nlohmann/json.hpp>

#include "tokenizer/support.h"
#include "unsloth/tokenizer/chat.h"

namespace unsloth::test {

using Ordered = nlohmann::ordered_json;

/// llama3_small in a folder of its own, with templates.
class ChatTemplates : public testing::Test {
  protected:
    ChatTemplates() { folder.write("tokenizer.json", read_text(golden("tokenizer/llama3_small/tokenizer.json"))); }
    tokenizer::Tokenizer tokenizer(const std::string& chat_template = {}) const {
        json config = {
            {"bos_token", "<|begin_of_text|>"}, {"eos_token", {{"content", "<|eot_id|>"}}}, {"pad_token", nullptr}};
        if (!chat_template.empty()) config["chat_template"] = chat_template;
        folder.write("tokenizer_config.json", config.dump());
        return tokenizer::Tokenizer::load(folder.path());
    }
    std::string text(const std::string& chat_template, const std::string& row) const {
        return tokenizer::ChatTemplate::choose("auto", tokenizer(chat_template))
            .render(Ordered::parse(row), tokenizer::TrainedTurns::none)
            .text;
    }
    /// The text with each trained range in brackets.
    std::string marked(const std::string& chat_template, const std::string& row,
                       tokenizer::TrainedTurns turns = tokenizer::TrainedTurns::all) const {
        return marked(
            tokenizer::ChatTemplate::choose("auto", tokenizer(chat_template)).render(Ordered::parse(row), turns));
    }
    static std::string marked(const tokenizer::Rendered& rendered) {
        std::string out;
        std::size_t at = 0;
        for (const auto& [begin, end] : rendered.trained_bytes) {
            EXPECT_LE(at, begin);
            EXPECT_LT(begin, end);
            out += rendered.text.substr(at, begin - at) + "⟦" + rendered.text.substr(begin, end - begin) + "⟧";
            at = end;
        }
        return out + rendered.text.substr(at);
    }
    ScratchFolder folder;
};

inline constexpr const char* two_turns =
    R"({"messages": [{"role": "user", "content": "Q1"}, {"role": "assistant", "content": "A1"},
                     {"role": "user", "content": "A1"}, {"role": "assistant", "content": "A2 "}]})";

inline constexpr const char* plain_template =
    "{% for m in messages %}<{{ m.role }}>\n{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}";

/// Like Qwen 3's: only the turns behind the last question keep their reasoning, and an empty block is added.
inline constexpr const char* thinking_template =
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = "
    "loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>\n"
    "{% if m.role == 'assistant' %}{% set c = m.content.split('</t>') %}{% if loop.index0 > ns.last %}"
    "{{ '<t>' + (c[0].split('<t>')[-1] if c | length > 1 else '') + '</t>' }}{% endif %}{{ c[-1] }}{% else "
    "%}{{ m.content }}{% endif %}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}";

}  // namespace unsloth::test
