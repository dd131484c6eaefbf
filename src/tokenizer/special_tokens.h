// What the files beside tokenizer.json say about the roles of tokens, and the chat template.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unsloth {

struct SpecialTokens {
    std::optional<int32_t> bos, eos;
    std::vector<int32_t> stop;  ///< eos and generation_config's eos_token_id
    std::string chat_template;  ///< raw Jinja
};

/// Each file may be absent. Input Error for one that is malformed; a named token that the vocabulary lacks is
/// warned of and taken as not named.
SpecialTokens read_special_tokens(const std::filesystem::path& folder,
                                  const std::function<std::optional<int32_t>(std::string_view)>& id_of);

}  // namespace unsloth
