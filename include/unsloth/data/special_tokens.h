// A tokenizer whose special tokens are those that model.special_tokens names.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/spec/model_spec.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::data {

/// {role, content}: bos_token, eos_token, pad_token or unk_token, and a token of the vocabulary.
using SpecialTokenNames = std::vector<std::pair<std::string, std::string>>;

/// A folder with the tokenizer files of `folder`, in which these tokens have these roles: in tokenizer_config.json,
/// special_tokens_map.json and generation_config.json. It is made once a process, in the system's folder for temporary
/// files, and removed when the process ends. Usage Error for a token that the vocabulary lacks: it would need new
/// embedding rows, which are not made.
std::filesystem::path with_special_tokens(const std::filesystem::path& folder, const SpecialTokenNames& tokens);

/// Gives the ids of these roles in a model's config.json the values that with_special_tokens() gives them.
void set_special_ids(spec::ModelSpec& spec, const SpecialTokenNames& tokens, const tokenizer::Tokenizer& tokenizer);

}  // namespace unsloth::data
