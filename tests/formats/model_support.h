// A small model and adapter written by the tests themselves, of any shape.
#pragma once

#include <random>

#include "formats/support.h"
#include "unsloth/formats/hf_config.h"
#include "unsloth/formats/peft.h"
#include "unsloth/spec/convert.h"
#include "unsloth/spec/tensor_table.h"

namespace unsloth::test {

inline spec::ModelSpec tiny_spec(bool tied = false, spec::DType dtype = spec::DType::bf16) {
    spec::ModelSpec spec;
    spec.model_type = "llama";
    spec.hidden_size = 24;
    spec.intermediate_size = 40;
    spec.num_layers = 2;
    spec.num_heads = 4;
    spec.num_kv_heads = 2;
    spec.head_dim = 6;
    spec.vocab_size = 50;
    spec.max_position_embeddings = 64;
    spec.layers.assign(2, {});
    spec.tie_word_embeddings = tied;
    spec.dtype = dtype;
    return spec;
}

/// Normal values, rounded to `dtype`.
inline formats::TensorBlob random_blob(const formats::TensorDecl& decl, uint64_t seed, float scale = 0.1F) {
    std::mt19937_64 random(seed * 7919 + std::hash<std::string>()(decl.name));
    std::normal_distribution<float> normal(0.0F, scale);
    int64_t count = 1;
    for (const int64_t size : decl.shape) count *= size;
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = normal(random);
    formats::TensorBlob blob{decl, std::vector<std::byte>(decl.bytes())};
    spec::convert_from_f32(decl.dtype, values.data(), count, blob.data.data());
    return blob;
}

inline std::vector<formats::TensorBlob> random_weights(const spec::ModelSpec& spec, uint64_t seed = 1) {
    std::vector<formats::TensorBlob> blobs;
    for (const spec::TensorRule& rule : spec::tensor_table(spec))
        blobs.push_back(random_blob({rule.hf_name, spec.dtype, rule.shape}, seed));
    return blobs;
}

inline void write_model_folder(const fs::path& folder, const spec::ModelSpec& spec,
                               const std::vector<formats::TensorBlob>& weights) {
    fs::create_directories(folder);
    formats::write_safetensors(folder / "model.safetensors", weights);
    write_text(folder / "config.json", formats::write_model_config(spec));
}

inline void write_adapter_folder(const fs::path& folder, const spec::ModelSpec& spec, const spec::LoraSpec& lora,
                                 const std::string& base, uint64_t seed = 2) {
    fs::create_directories(folder);
    std::vector<formats::TensorBlob> blobs;
    for (const formats::TensorDecl& decl : formats::adapter_tensors(lora, spec))
        blobs.push_back(random_blob(decl, seed));
    formats::write_safetensors(folder / "adapter_model.safetensors", blobs);
    write_text(folder / "adapter_config.json", formats::write_peft_config({lora, base}));
}

inline std::vector<float> floats_of(const formats::TensorView& tensor) {
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    spec::convert_to_f32(tensor.dtype, tensor.data.data(), tensor.elements(), values.data());
    return values;
}

}  // namespace unsloth::test
