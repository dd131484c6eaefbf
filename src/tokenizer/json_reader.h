// The JSON files of a tokenizer's folder.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "unsloth/core/files.h"
#include "unsloth/core/json.h"
#include "unsloth/core/json_reader.h"

namespace unsloth::tokenizer {

using JsonReader = unsloth::JsonReader<nlohmann::json>;

/// Vocabularies are large: no second pass looks for keys that are there twice. No reader of them recurses.
inline constexpr JsonRules tokenizer_rules{.deepest = any_depth, .distinct_keys = false};

inline nlohmann::json parse_json(std::string_view text, const std::string& where) {
    return unsloth::parse_json<nlohmann::json>(text, where, tokenizer_rules);
}

/// A file's document; null where there is no such file.
class JsonFile {
  public:
    explicit JsonFile(const std::filesystem::path& path)
        : path_(path.string()),
          document_(std::filesystem::exists(path) ? parse_json(read_file(path), path_) : nlohmann::json()) {}
    JsonReader root() const { return {document_, path_}; }

  private:
    std::string path_;
    nlohmann::json document_;
};

/// The keys of tokenizer_config.json and special_tokens_map.json that give tokens a role.
inline constexpr std::string_view role_keys[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                 "pad_token", "cls_token", "mask_token"};

}  // namespace unsloth::tokenizer
