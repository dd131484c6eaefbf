// The parts of a tokenizer.json around its model. Each reader takes the part's value, which may be null, and
// gives an input Error that names the key for what is malformed or not known.
#pragma once

#include <cstdint>
#include <vector>

#include "tokenizer/decoder.h"
#include "tokenizer/json_reader.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"

namespace unsloth::tokenizer {

/// GPT-2's splitting, which ByteLevel does where `use_regex` holds.
inline constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::vector<NormalizerStep> read_normalizer(const JsonReader& part);
/// `normalized`: there is a normalizer.
std::vector<PreTokenizerStep> read_pre_tokenizer(const JsonReader& part, bool normalized);
Decoder read_decoder(const JsonReader& part);
/// Ids put in front of and behind a single text.
void read_post_processor(const JsonReader& part, std::vector<int32_t>& prefix, std::vector<int32_t>& suffix);

}  // namespace unsloth::tokenizer
