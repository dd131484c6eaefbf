// What the files next to tokenizer.json say about the roles of tokens, and the chat template.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unsloth::tokenizer {

struct SpecialTokens {
    std::optional<int32_t> bos, eos;
    std::vector<int32_t> stop;  ///< eos and generation_config's eos_token_id
    /// Raw Jinja by name; "default" is the one for ordinary conversations.
    std::vector<std::pair<std::string, std::string>> chat_templates;
    /// bos_token, eos_token, unk_token, … and their texts, as templates see them.
    std::vector<std::pair<std::string, std::string>> texts;
};

/// The .jinja files of additional_chat_templates/, sorted.
std::vector<std::filesystem::path> additional_templates(const std::filesystem::path& folder);

/// Each file may be absent. Input Error for one that is malformed; a named token that the vocabulary lacks is
/// warned of and taken as not named.
SpecialTokens read_special_tokens(const std::filesystem::path& folder,
                                  const std::function<std::optional<int32_t>(std::string_view)>& id_of);

}  // namespace unsloth::tokenizer
