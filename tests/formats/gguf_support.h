// A small model whose values say where they stand, and the files that it becomes.
#pragma once

#include <cstring>

#include "formats/support.h"
#include "unsloth/formats/gguf_export.h"
#include "unsloth/spec/convert.h"

namespace unsloth::formats {

using namespace test;

inline spec::ModelSpec small_spec(const std::string& family = "llama") {
    spec::ModelSpec spec;
    spec.model_type = family;
    spec.hidden_size = 32, spec.intermediate_size = 64, spec.num_layers = 2, spec.num_heads = 4, spec.num_kv_heads = 2;
    spec.head_dim = 8, spec.vocab_size = 12, spec.max_position_embeddings = 64, spec.rms_norm_eps = 1e-5;
    spec.layers.assign(2, {});
    spec.dtype = spec::DType::f32;
    if (family == "qwen3") spec.qk_norm = spec.tie_word_embeddings = true;
    return spec;
}

/// A model whose every value says where it stands: tensor number + row / 256 + column / 65536.
inline WeightFile write_model(const fs::path& folder, const spec::ModelSpec& spec, float spoilt = 0) {
    std::vector<TensorBlob> blobs;
    float number = 0;
    for (const spec::TensorRule& rule : spec::tensor_table(spec)) {
        TensorBlob blob{{rule.hf_name, spec::DType::f32, rule.shape}, {}};
        const int64_t cols = rule.shape.back(), rows = rule.shape.size() > 1 ? rule.shape[0] : 1;
        std::vector<float> values;
        for (int64_t i = 0; i < rows * cols; ++i)
            values.push_back(number + static_cast<float>(i / cols) / 256 + static_cast<float>(i % cols) / 65536);
        if (spoilt != 0 && rule.role == spec::TensorRole::final_norm) values[3] = spoilt;
        if (spoilt != 0 && rule.role == spec::TensorRole::embed_tokens) values[7] = spoilt;
        blob.data.resize(values.size() * sizeof(float));
        std::memcpy(blob.data.data(), values.data(), blob.data.size());
        blobs.push_back(std::move(blob));
        ++number;
    }
    write_text(folder / "config.json", write_model_config(spec));
    write_safetensors(folder / "model.safetensors", blobs);
    return WeightFile::open(folder.string());
}

inline spec::Vocabulary small_vocabulary(std::size_t tokens = 10) {
    spec::Vocabulary vocabulary;
    vocabulary.pre_tokenizer = "gpt-2";
    for (std::size_t i = 0; i < tokens; ++i) vocabulary.tokens.push_back({cat("t", i), 0, spec::TokenKind::normal});
    vocabulary.tokens[2] = {};
    vocabulary.tokens[1].kind = spec::TokenKind::control;
    vocabulary.merges = {"t 3"};
    vocabulary.bos = 1;
    vocabulary.add_bos = true;
    vocabulary.chat_templates = {{"default", "{{ messages }}"}, {"tool_use", "{{ tools }}"}};
    return vocabulary;
}

inline std::vector<float> floats(const GgufFile& file, const std::string& name) {
    const GgufTensor& tensor = *file.find_tensor(name);
    std::vector<float> values(tensor.data.size() / sizeof(float));
    std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
    return values;
}

class GgufExport : public testing::Test {
  protected:
    const ScratchFolder folder_;
    const fs::path out_ = folder_ / "m.gguf";
    const GgufExportOptions f32_{GgufFileType::f32, "name"};
};

}  // namespace unsloth::formats
