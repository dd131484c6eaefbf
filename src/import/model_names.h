// What is known of a model by its name on the hub alone.
#pragma once

#include <string>

#include "import/config_names.h"

namespace unsloth::import {

/// Whether `name` ("eos_token") of the tokenizer of `model` ("ORG/NAME") is `token` anyway. Tokenizers of a local
/// folder are read; of others those of well-known families are known, and all else is false.
bool has_special_token(const std::string& model, const std::string& name, const std::string& token);

/// Whether it is a model for texts and images that is trained on both: Qwen2.5-VL, Qwen3-VL, Llama 3.2 Vision.
bool has_vision(const std::string& model);

/// Whether its template writes an empty thought in front of a last answer that has none: the first Qwen3 models.
bool has_hybrid_thinking(const std::string& model);

/// Whether its embeddings have a multiple of 32 rows, and its tokenizer no more tokens than these.
bool has_rows_of_32(const std::string& model);

/// Whether it is a model of experts whose weights are 16-bit: Qwen3 MoE.
bool has_experts(const std::string& model);

/// Whether the token ends an answer of a chat template that names it, so that the template finds it by itself.
bool ends_turn(const std::string& token);

}  // namespace unsloth::import
