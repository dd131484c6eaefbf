// Adapters of random values, for services to load.
#pragma once

#include <random>

#include "serve/support.h"
#include "unsloth/spec/convert.h"

namespace unsloth::test {

/// Random values, of a seed, that change the model's answers.
inline fs::path write_random_adapter(const fs::path& folder, spec::LoraSpec lora, uint32_t seed,
                                     const fs::path& base = RunningOptions{}.model) {
    const spec::ModelSpec model = formats::WeightFile::open(base.string()).spec;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0F, 0.08F);
    std::vector<formats::TensorBlob> blobs;
    for (const formats::TensorDecl& decl : formats::adapter_tensors(lora, model)) {
        int64_t count = 1;
        for (const int64_t size : decl.shape) count *= size;
        std::vector<float> values(static_cast<std::size_t>(count));
        for (float& value : values) value = normal(random);
        formats::TensorBlob blob{decl, std::vector<std::byte>(decl.bytes())};
        spec::convert_from_f32(decl.dtype, values.data(), count, blob.data.data());
        blobs.push_back(std::move(blob));
    }
    fs::create_directories(folder);
    formats::write_safetensors(folder / "adapter_model.safetensors", blobs);
    write_text(folder / "adapter_config.json", formats::write_peft_config({lora, "base", ""}));
    return folder;
}

inline spec::LoraSpec lora_of(int64_t r, std::vector<std::string> modules = {"q_proj", "v_proj", "down_proj"}) {
    spec::LoraSpec lora;
    lora.r = r;
    lora.lora_alpha = 16;
    lora.target_modules = std::move(modules);
    return lora;
}

}  // namespace unsloth::test
