// A small tokenizer with harmony's tokens, and a chat template of that kind.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tokenizer/support.h"

namespace unsloth::test {

/// As gpt-oss's: roles, channels and recipients between special tokens, and a tool's name from the call before.
inline constexpr const char* harmony_template = R"({%- set last = namespace(name="") -%}
{%- if tools %}<|start|>developer<|message|>{% for t in tools %}{{ t.function.name }} {% endfor %}<|end|>{% endif -%}
{%- for m in messages -%}
{%- if m.role == "assistant" and m.tool_calls -%}
{%- set call = m.tool_calls[0].function -%}
{%- set last.name = call.name -%}
{%- if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif -%}
<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>{{ call.arguments | tojson }}<|call|>
{%- elif m.role == "tool" -%}
<|start|>functions.{{ last.name }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>
{%- elif m.role == "assistant" -%}
<|start|>assistant<|channel|>final<|message|>{{ m.content }}{{ "<|return|>" if loop.last else "<|end|>" }}
{%- else -%}
<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|start|>assistant{% endif -%})";

/// The example's tokenizer, whose last words make room for the tokens: its ids are still below 2048.
inline std::filesystem::path harmony_folder(const ScratchFolder& folder) {
    using Json = nlohmann::ordered_json;
    const std::filesystem::path from = source_folder() / "examples/legal/base";
    Json all = Json::parse(std::ifstream(from / "tokenizer.json"));
    const std::vector<std::string> added = {"<|start|>",     "<|channel|>", "<|message|>",
                                            "<|constrain|>", "<|return|>",  "<|call|>"};
    Json vocabulary = Json::object(), merges = Json::array();
    const auto words = all["model"]["vocab"].size() - added.size();
    for (const auto& [word, id] : all["model"]["vocab"].items())
        if (id < words) vocabulary[word] = id;
    for (const Json& merge : all["model"]["merges"]) {
        std::string word = merge.is_string() ? merge.get<std::string>() : "";
        if (merge.is_array()) word = merge[0].get<std::string>() + merge[1].get<std::string>();
        if (const std::size_t space = word.find(' '); space != std::string::npos) word.erase(space, 1);
        if (vocabulary.contains(word)) merges.push_back(merge);
    }
    all["model"]["vocab"] = vocabulary;
    all["model"]["merges"] = merges;
    for (std::size_t i = 0; i < added.size(); ++i) {
        Json token = all["added_tokens"][0];
        token["id"] = words + i;
        token["content"] = added[i];
        all["added_tokens"].push_back(token);
    }
    Json config = Json::parse(std::ifstream(from / "tokenizer_config.json"));
    config["eos_token"] = "<|return|>";
    folder.write("tokenizer.json", all.dump());
    folder.write("tokenizer_config.json", config.dump());
    return folder.path();
}

}  // namespace unsloth::test
