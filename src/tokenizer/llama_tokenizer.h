// What transformers' LlamaTokenizer has in addition to vocabulary and merges, whichever file these come from.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "tokenizer/tokenizer_spec.h"

namespace unsloth::tokenizer {

/// The settings of tokenizer_config.json, and the tokens and roles that it and the files next to it name.
struct LlamaSettings {
    std::string tokenizer_class;  ///< may be empty
    bool legacy = false;
    std::optional<bool> add_prefix_space, add_bos, add_eos;
    std::optional<std::string> bos, eos;
    std::vector<AddedToken> tokens;  ///< by first mention, as transformers collects them; without ids

    /// Does nothing for one that is there.
    void add(const AddedToken& token) {
        if (!token.content.empty() && known_.insert(token.content).second) tokens.push_back(token);
    }

  private:
    std::unordered_set<std::string> known_;  ///< their contents
};

AddedToken plain_token(const std::string& content, bool special);

/// Of a folder's tokenizer_config.json, which may be absent. The tokens are those of added_tokens_decoder (or, where
/// there is none, `of_tokenizer_json`), of added_tokens.json, and the named special ones.
LlamaSettings read_llama_settings(const std::filesystem::path& folder,
                                  const std::vector<AddedToken>& of_tokenizer_json = {});

/// Sets all of `spec` but vocabulary, merges and unknown token. `prefix`: whether a space goes in front of a text
/// unless the settings say so. The tokens around a text stay as they are if `add_bos` and `add_eos` are unset. Input
/// Error for a BOS or EOS that is not known.
void make_llama_pipeline(const std::filesystem::path& folder, const LlamaSettings& settings, bool prefix,
                         TokenizerSpec& spec);

}  // namespace unsloth::tokenizer
