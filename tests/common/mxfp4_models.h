// A small model whose experts lie in MXFP4, and the same values in bf16. Decoded apart from the product's code.
#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/formats/hf_config.h"
#include "unsloth/formats/random_model.h"
#include "unsloth/formats/safetensors.h"
#include "unsloth/spec/convert.h"

namespace unsloth::test {

namespace fs = std::filesystem;

/// What a code and the scale of its block stand for.
inline float mxfp4_value(int code, int scale) {
    constexpr float magnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return std::copysign(std::ldexp(magnitudes[code % 8], scale - 127), code < 8 ? 1.0F : -1.0F);
}

/// A parameter of all experts in MXFP4.
struct Mxfp4Parameter {
    Mxfp4Parameter(const std::string& name, int64_t experts, int64_t rows, int64_t cols)
        : blocks{{name + "_blocks", spec::DType::u8, {experts, rows, cols / 32, 16}}, {}},
          scales{{name + "_scales", spec::DType::u8, {experts, rows, cols / 32}}, {}},
          cols(cols) {
        std::mt19937 random(static_cast<unsigned>(std::hash<std::string>()(name)));
        for (std::size_t i = 0; i < blocks.decl.bytes(); ++i)
            blocks.data.push_back(static_cast<std::byte>(random() % 256));
        for (std::size_t i = 0; i < scales.decl.bytes(); ++i)
            scales.data.push_back(static_cast<std::byte>(119 + random() % 4));
    }
    /// Of all experts' rows one after another.
    float value(int64_t row, int64_t column) const {
        const auto pair = static_cast<int>(blocks.data[static_cast<std::size_t>((row * cols + column) / 2)]);
        const auto scale = static_cast<int>(scales.data[static_cast<std::size_t>((row * cols + column) / 32)]);
        return mxfp4_value(column % 2 == 0 ? pair % 16 : pair / 16, scale);
    }
    formats::TensorBlob blocks, scales;
    int64_t cols;
};

inline std::string mxfp4_config(const std::string& config) {
    nlohmann::json json = nlohmann::json::parse(config);
    json["quantization_config"] = {{"quant_method", "mxfp4"},
                                   {"modules_to_not_convert", {"model.layers.*.self_attn", "lm_head"}}};
    return json.dump();
}

/// Three layers, the last two with three experts. Inputs of 96 and 32: some weights have whole tiles of 64, others not.
inline spec::ModelSpec mxfp4_spec(int64_t hidden = 96, int64_t of_experts = 32) {
    return formats::parse_model_spec(
        cat(R"({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": )", hidden,
            R"(, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
              "head_dim": 16, "vocab_size": 256, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "num_experts": 3,
              "num_experts_per_tok": 2, "moe_intermediate_size": )",
            of_experts, R"(, "mlp_only_layers": [0], "norm_topk_prob": true, "torch_dtype": "bfloat16"})"),
        "a test");
}

inline std::vector<formats::TensorBlob> blobs_of(const fs::path& file) {
    const formats::SafetensorsFile opened(file);
    std::vector<formats::TensorBlob> blobs;
    for (const formats::TensorView& view : opened.tensors())
        blobs.push_back({{view.name, view.dtype, view.shape}, {view.data.begin(), view.data.end()}});
    return blobs;
}

/// The blobs of experts' weights below `stem` take the values of the parameters.
inline void set_values(const std::string& stem, const Mxfp4Parameter& gate_up, const Mxfp4Parameter& down,
                       std::vector<formats::TensorBlob>& blobs) {
    for (formats::TensorBlob& blob : blobs) {
        if (!blob.decl.name.starts_with(stem)) continue;
        const int64_t expert = std::stoll(blob.decl.name.substr(stem.size()));
        const bool of_down = blob.decl.name.find("down_proj") != std::string::npos,
                   up = blob.decl.name.find("up_proj") != std::string::npos;
        const Mxfp4Parameter& from = of_down ? down : gate_up;
        const int64_t rows = blob.decl.shape[0], cols = blob.decl.shape[1],
                      first = expert * (of_down ? rows : 2 * rows) + (up ? rows : 0);
        std::vector<float> decoded;
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t column = 0; column < cols; ++column) decoded.push_back(from.value(first + row, column));
        spec::convert_from_f32(blob.decl.dtype, decoded.data(), rows * cols, blob.data.data());
    }
}

inline void write_mxfp4_models(const spec::ModelSpec& spec, const fs::path& packed, const fs::path& plain) {
    fs::create_directories(packed);
    fs::create_directories(plain);
    formats::write_random_model({.spec = spec, .seed = 11}, plain);
    std::vector<formats::TensorBlob> values = blobs_of(plain / "model.safetensors"), codes = values;
    std::erase_if(codes, [](const auto& blob) { return blob.decl.name.find(".experts.") != std::string::npos; });
    for (int layer = 0; layer < static_cast<int>(spec.num_layers); ++layer) {
        if (!spec.has_experts(layer)) continue;
        const std::string stem = cat("model.layers.", layer, ".mlp.experts.");
        const int64_t experts = spec.experts->count, width = spec.experts->intermediate_size;
        const Mxfp4Parameter gate_up(stem + "gate_up_proj", experts, 2 * width, spec.hidden_size),
            down(stem + "down_proj", experts, spec.hidden_size, width);
        set_values(stem, gate_up, down, values);
        for (const Mxfp4Parameter* const parameter : {&gate_up, &down})
            for (const formats::TensorBlob& part : {parameter->blocks, parameter->scales}) codes.push_back(part);
    }
    formats::write_safetensors(plain / "model.safetensors", values);
    formats::write_safetensors(packed / "model.safetensors", codes);
    std::ofstream(packed / "config.json") << mxfp4_config(read_file(plain / "config.json"));
}

}  // namespace unsloth::test
