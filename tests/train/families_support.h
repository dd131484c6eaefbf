// The reference sets of model families (tests/golden/families; the full ones where UNSLOTH_SHARED names them).
#pragma once

#include "train/mesh_ranks.h"
#include "unsloth/formats/model_writer.h"
#include "unsloth/formats/peft.h"
#include "unsloth/train/observer.h"
#include "unsloth/train/router_loads.h"
#include "unsloth/train/save.h"

namespace unsloth {

using namespace test;

inline const std::vector<std::string> families = {"ministral3",      "granite", "phi3",        "phi3_longrope",
                                                  "gemma3_text",     "olmo3",   "smollm3",     "qwen3_moe",
                                                  "qwen3_moe_step2", "gpt_oss", "qwen3_5_text"};

inline fs::path family_set(const std::string& family) {
    const char* const shared = std::getenv("UNSLOTH_SHARED");
    const fs::path full = shared != nullptr ? fs::path(shared) / "golden/families" / family : fs::path();
    return !full.empty() && fs::exists(full) ? full : golden("families/" + family);
}

inline nlohmann::json family_json(const std::string& family, const char* name) {
    return read_json(unpacked(family_set(family)) / name);
}

/// The family's reference runs: adapters of its projections, of its experts, and with experts' loads balanced.
inline std::vector<fs::path> family_runs(const std::string& family) {
    std::vector<fs::path> runs;
    for (const char* const name : {"lora", "lora_experts", "lora_aux", "lora_aux_accumulated"})
        if (fs::exists(family_set(family) / name)) runs.push_back(family_set(family) / name);
    return runs;
}

/// Without a cache, whose context would decide on LongRoPE's factors.
inline LoadedModel load_scoring_model(const fs::path& folder, const std::optional<std::string>& adapter = std::nullopt,
                                      const std::string& device = "cpu", at::ScalarType dtype = at::kFloat,
                                      bool in_4bit = false) {
    model::LoadRequest request;
    request.device = ops::choose_device(device);
    request.dtype = dtype;
    request.load_in_4bit = in_4bit;
    request.adapter = adapter;
    request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = 80;
    request.sizes.segments = 8;
    request.run.head_tile = 16;
    request.sizes.training = false;
    return load_model(folder, request);
}

inline at::Tensor logits_of(const fs::path& model, const std::vector<int32_t>& row,
                            const std::optional<std::string>& adapter = std::nullopt) {
    const LoadedModel loaded = load_scoring_model(model, adapter);
    return score_every_position(*loaded.model, {row}).logits_TV;
}

inline std::vector<int32_t> long_row(const std::string& family) {
    return family_json(family, "forward.json")["rows"][1]["input_ids"].get<std::vector<int32_t>>();
}

inline void merge_family(const fs::path& model, const fs::path& adapter, const fs::path& to, spec::WeightType type) {
    const formats::WeightFile base = formats::WeightFile::open(model.string());
    const formats::Adapter trained = formats::read_adapter(adapter, base.spec);
    fs::create_directories(to);
    formats::write_model(formats::MergedModel(base, &trained), to, {.type = type});
}

}  // namespace unsloth
