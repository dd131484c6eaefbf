// The fields of a model's file.
#pragma once

#include "unsloth/formats/gguf_export.h"

namespace unsloth::formats::gguf {

inline constexpr uint32_t quantization_version = 2;  ///< GGML_QNT_VERSION: the layout of the blocks

/// llama.cpp's architecture for a model: Mistral's is "llama".
std::string architecture_name(const spec::ModelSpec& spec);
/// Whether it wants the rows of q and k in another order (see Item::head_dim).
bool permutes_heads(const spec::ModelSpec& spec);

/// Input Error for what the architecture has no tensors or formulas for in llama.cpp; logs what it computes otherwise.
void check_expressible(const spec::ModelSpec& spec);

void add_model_fields(const spec::ModelSpec& spec, const GgufExportOptions& options, GgufMetadata& out);
/// Tokens beyond the vocabulary's, up to the model's vocab_size, become "[PAD…]" of kind unused, as do holes.
/// Input Error when the vocabulary has more tokens than the model.
void add_vocabulary_fields(const spec::ModelSpec& spec, const spec::Vocabulary& vocabulary, GgufMetadata& out);

/// Tensors that say how a rope is scaled, by name: what each frequency is divided by.
using RopeTensors = std::vector<std::pair<std::string, std::vector<float>>>;
RopeTensors rope_tensors(const spec::ModelSpec& spec);

}  // namespace unsloth::formats::gguf
