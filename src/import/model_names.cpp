#include "import/model_names.h"

#include <algorithm>
#include <filesystem>
#include <regex>

#include "unsloth/config/read_tree.h"

namespace unsloth::import {
namespace {

bool fits(const std::string& model, const char* pattern) {
    return std::regex_search(model, std::regex(pattern, std::regex::icase));
}

/// Tokens of published tokenizers; the first line that fits the model's name holds.
struct FamilyTokens {
    const char* models;
    const char *bos, *eos, *unk;  ///< nullptr: it has none, or it is not known
};

const std::vector<FamilyTokens>& families() {
    static const std::vector<FamilyTokens> all = {
        {"llama-3[.-].*instruct", "<|begin_of_text|>", "<|eot_id|>", nullptr},
        {"llama-3([.-]|$)", "<|begin_of_text|>", "<|end_of_text|>", nullptr},
        {"(llama-2|codellama|open_?llama|tinyllama|huggyllama/llama-7b)", "<s>", "</s>", "<unk>"},
        {"mistral-7b-(instruct-)?v0\\.[123]$", "<s>", "</s>", "<unk>"},
        {"phi-3-mini-4k-instruct", "<s>", "<|endoftext|>", "<unk>"},
        {"qwen(2|2\\.5|3).*(instruct|chat)|qwen3-[0-9.]+b$", nullptr, "<|im_end|>", nullptr},
        {"qwen2(\\.5)?-[0-9.]+b$", nullptr, "<|endoftext|>", nullptr},
        {"gemma-?[23]", "<bos>", "<eos>", "<unk>"}};
    return all;
}

/// "</s>" of "</s>" and of {"content": "</s>", …}.
std::string content_of(const Json& token) {
    if (token.is_string()) return token;
    const Json content = token.is_object() ? token.value("content", Json("")) : Json("");
    return content.is_string() ? content.get<std::string>() : "";
}

}  // namespace

bool has_special_token(const std::string& model, const std::string& name, const std::string& token) {
    const std::filesystem::path file = std::filesystem::path(model) / "tokenizer_config.json";
    if (std::filesystem::is_regular_file(file)) {
        const Json config = config::read_tree(file);
        return config.is_object() && config.contains(name) && content_of(config[name]) == token;
    }
    const auto family = std::find_if(families().begin(), families().end(),
                                     [&](const FamilyTokens& one) { return fits(model, one.models); });
    if (family == families().end()) return false;
    const char* const known = name == "bos_token"   ? family->bos
                              : name == "eos_token" ? family->eos
                              : name == "unk_token" ? family->unk
                                                    : nullptr;
    return known != nullptr && token == known;
}

bool has_vision(const std::string& model) {
    return fits(model, "qwen2\\.5-vl-|qwen3-vl-(?!.*-a[0-9]+b)|llama-3\\.2-[0-9]+b-vision");
}

bool has_hybrid_thinking(const std::string& model) {
    return fits(model, "qwen/qwen3-[0-9.]+b$");
}

bool has_rows_of_32(const std::string& model) {
    return fits(model, "(llama-[23]|mistral-7b-(instruct-)?v0\\.[123]|phi-(3|3\\.5|4)-|qwen(2|2\\.5|3)-)");
}

bool has_experts(const std::string& model) {
    return fits(model, "qwen3-(coder-)?[0-9]+b-a[0-9]+b");
}

bool ends_turn(const std::string& token) {
    static const std::vector<std::string> known = {"<|im_end|>", "<end_of_turn>", "<|eot_id|>", "<|end|>",
                                                   "</s>",       "<turn|>",       "<|return|>", "<|call|>"};
    return std::find(known.begin(), known.end(), token) != known.end();
}

}  // namespace unsloth::import
