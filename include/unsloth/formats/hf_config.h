// config.json of a Llama-family model, as transformers 4.x and 5.x write it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/spec/model_spec.h"

namespace unsloth::formats {

/// `quantization_config`, as bitsandbytes' users know it. Which weights are quantised is decided by the tensors alone.
struct QuantizationConfig {
    std::string quant_method = "bitsandbytes";  ///< or "mxfp4", of experts alone: only the modules skipped count
    bool load_in_4bit = true;
    bool load_in_8bit = false;
    std::string bnb_4bit_quant_type = "nf4";
    bool bnb_4bit_use_double_quant = true;
    std::string bnb_4bit_compute_dtype = "bfloat16";
    std::string bnb_4bit_quant_storage = "uint8";
    /// Modules that stay as they are; nullopt: what transformers skips by default, lm_head.
    std::optional<std::vector<std::string>> llm_int8_skip_modules;
};

/// The model that folder/config.json describes. Input Error, naming file and key, for an architecture, rope type,
/// activation or quantisation method that this program does not know, and for sizes that are missing, not positive,
/// too large or contradict each other. `otherwise`: the type where the file names none.
spec::ModelSpec read_model_spec(const std::filesystem::path& folder, spec::DType otherwise = spec::DType::f32);
/// The same from a text; messages name it by `source`.
spec::ModelSpec parse_model_spec(const std::string& json_text, const std::string& source,
                                 spec::DType otherwise = spec::DType::f32);

/// nullopt: the file has no quantization_config.
std::optional<QuantizationConfig> read_quantization_config(const std::filesystem::path& folder);
std::optional<QuantizationConfig> parse_quantization_config(const std::string& json_text, const std::string& source);
/// Input Error where it is for experts and the model has none; messages name `source`.
void check_quantization_config(const std::optional<QuantizationConfig>& config, const spec::ModelSpec& model,
                               const std::string& source);

/// Replaces how the model scales its positions by Hugging Face's object rope_scaling, and sets the positions that it
/// then has: factor x original_max_position_embeddings, or x its own where the object has none; where config.json
/// scales in the same way, as much further as the factor is larger (dynamic leaves them: its formula is about its own).
/// The theta stays unless the object has rope_theta. Input Error, naming `source` and key, as for a config.json.
void set_rope_scaling(spec::ModelSpec& spec, const std::string& json_text, const std::string& source);

/// Checks what a config.json would be refused for, also for a spec made by hand. Messages name it by `source`.
void check_model_spec(const spec::ModelSpec& spec, const std::string& source);

/// A config.json that transformers loads, with sorted keys and the names of 4.x, which 5.x reads too.
/// With `original` (a config.json text) its unknown keys and its own spelling of the names are kept.
/// Without `quantization` the result has no quantization_config.
std::string write_model_config(const spec::ModelSpec& spec, const std::optional<QuantizationConfig>& quantization = {},
                               const std::string& original = {});

}  // namespace unsloth::formats
