// The tokenizer that a run encodes its rows with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "unsloth/config/config.h"
#include "unsloth/data/encoder.h"
#include "unsloth/tokenizer/tokenizer.h"

namespace unsloth::data {

/// The tokenizer's folder: that of model.adapter_name_or_path if it holds one, else the model's; with
/// model.special_tokens in a folder of its own (data/special_tokens.h, which has the errors).
std::filesystem::path run_tokenizer_folder(const config::Config& config, const std::filesystem::path& model_folder);

/// Input Error when there is none, or when its ids do not fit the model's `vocab_size` (0: not known).
tokenizer::Tokenizer load_run_tokenizer(const std::filesystem::path& folder, int64_t vocab_size);

/// Makes the encoder of text rows when it is first needed: tokenised rows do without a tokenizer.
EncoderMaker run_encoder_maker(const std::filesystem::path& folder, int64_t vocab_size,
                               const config::DataOptions& data);
/// What of the cache's keys depends on the encoders, of all sources' templates: see encoder_fingerprint().
std::string run_encoder_fingerprint(const std::filesystem::path& folder, const config::DataOptions& data);

}  // namespace unsloth::data
