// What transformers' LlamaTokenizer is made of beside a vocabulary and merges, whichever file these come from.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tokenizer/flat_map.h"
#include "tokenizer/json_reader.h"
#include "tokenizer/tokenizer_spec.h"

namespace unsloth::tokenizer {

/// The settings of tokenizer_config.json, and the roles that it or special_tokens_map.json names.
struct LlamaSettings {
    std::string tokenizer_class;  ///< may be empty
    bool legacy = false;
    std::optional<bool> add_prefix_space, add_bos, add_eos;
    std::optional<std::string> bos, eos;
};

/// Tokens by first mention, as transformers collects them.
class TokenList {
  public:
    void add(const AddedToken& token) {
        if (!token.content.empty() && places_.emplace(token.content, tokens_.size()).second) tokens_.push_back(token);
    }
    void mark_special(const std::string& content) {
        if (AddedToken* token = find(content)) token->special = true;
    }
    std::vector<AddedToken> take() { return std::move(tokens_); }

  private:
    AddedToken* find(const std::string& content) {
        const auto it = places_.find(content);
        return it == places_.end() ? nullptr : &tokens_[it->second];
    }
    std::vector<AddedToken> tokens_;
    std::unordered_map<std::string, std::size_t> places_;  ///< in tokens_, by content
};

AddedToken plain_token(const std::string& content, bool special);

/// Of a folder's tokenizer_config.json, which may be absent.
LlamaSettings read_llama_settings(const std::filesystem::path& folder);

/// The tokens of added_tokens_decoder (or, where tokenizer_config.json has none, `of_tokenizer_json`), of
/// added_tokens.json and of the named special tokens, whose roles go into `settings`.
TokenList read_llama_tokens(const std::filesystem::path& folder, const std::vector<AddedToken>& of_tokenizer_json,
                            LlamaSettings& settings);

/// Sets all of `spec` but vocabulary, merges, unknown token and what stands around a text. `prefix`: whether a space
/// goes in front of a text unless the settings say so.
void make_llama_pipeline(const LlamaSettings& settings, bool prefix, std::vector<AddedToken> added,
                         const StringTable& vocab, TokenizerSpec& spec);

/// BOS and EOS around a text, where `add_bos` and `add_eos` have a word on it; else what is there stays. Input Error
/// for a token that is not known.
void surround(const std::filesystem::path& folder, const LlamaSettings& settings, TokenizerSpec& spec);

}  // namespace unsloth::tokenizer
