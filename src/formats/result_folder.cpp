#include "unsloth/formats/result_folder.h"

#include <algorithm>
#include <array>

#include "formats/json.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/folder.h"
#include "unsloth/formats/checkpoint_folder.h"
#include "unsloth/formats/decision_calibration.h"
#include "unsloth/formats/trainer_state.h"

namespace unsloth::formats {
namespace {

namespace fs = std::filesystem;

bool is_one_of(const std::string& name, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_adapter_file(const std::string& name) {
    return is_one_of(name, {"adapter_model.safetensors", "adapter_model.bin", "adapter_config.json"});
}

/// Under the names that transformers gives weights: other .safetensors files may hold anything.
bool is_model_file(const std::string& name) {
    const bool shard = name.find("-of-") != std::string::npos;
    return is_one_of(name, {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                            "pytorch_model.bin.index.json"}) ||
           (shard && name.starts_with("model-") && name.ends_with(".safetensors")) ||
           (shard && name.starts_with("pytorch_model-") && name.ends_with(".bin"));
}

/// Files that transformers' Trainer writes next to the weights.
bool is_trainer_file(const std::string& name) {
    return is_one_of(name, {"trainer_state.json", "training_args.bin", "optimizer.pt", "scheduler.pt", "scaler.pt"}) ||
           (name.starts_with("rng_state") && name.ends_with(".pth"));
}

enum class ConfigKind : uint8_t { none, model, foreign };

ConfigKind config_kind(const fs::path& folder) {
    const fs::path file = folder / "config.json";
    std::error_code ignored;
    if (!fs::is_regular_file(file, ignored)) return ConfigKind::none;
    try {
        const auto json = parse_json<Json>(read_file(file), file.string());
        const bool model = json.is_object() && (json.contains("model_type") || json.contains("architectures"));
        return model ? ConfigKind::model : ConfigKind::foreign;
    } catch (const Error&) {
        return ConfigKind::foreign;
    }
}

bool is_own_checkpoint(const fs::path& checkpoint) {
    return fs::exists(checkpoint / "manifest.json") || fs::exists(checkpoint / "run_state.json");
}

}  // namespace

bool is_trainer_checkpoint(const fs::path& checkpoint) {
    return fs::exists(checkpoint / trainer_state_file) && !is_own_checkpoint(checkpoint);
}

std::string weights_option(const fs::path& folder) {
    return cat(fs::exists(folder / "adapter_config.json") ? "model.adapter_name_or_path " : "model.path ",
               folder.string());
}

std::optional<HeldResult> find_result(const fs::path& folder) {
    const Folder opened = Folder::named(folder);
    std::vector<std::string> names = opened.names();
    std::sort(names.begin(), names.end(), std::greater<>());  // weights before their configurations
    const auto has = [&](const char* name) { return opened.look(name).has_value(); };
    const std::vector<CheckpointFolder> checkpoints = list_checkpoints(folder);
    const auto own = std::find_if(checkpoints.begin(), checkpoints.end(),
                                  [](const CheckpointFolder& c) { return is_own_checkpoint(c.path); });
    const bool began = has("run_config.json"), finished = has(trainer_state_file);
    if (own != checkpoints.end() || (began && finished))
        return HeldResult{"a run", folder, /*ours=*/true, /*resumable=*/own != checkpoints.end()};
    if (!checkpoints.empty()) {
        const fs::path& newest = checkpoints.front().path;
        return HeldResult{cat(is_trainer_checkpoint(newest) ? "a checkpoint of transformers' Trainer ("
                                                            : "a checkpoint of another program (",
                              newest.filename().string(), ")"),
                          newest};
    }
    if (finished) return HeldResult{cat("a result of transformers' Trainer (", trainer_state_file, ")"), folder};
    if (began) return std::nullopt;
    for (const auto& [is_part, what] : {std::pair{&is_adapter_file, "a PEFT adapter ("}, {&is_model_file, "a model ("}})
        for (const std::string& name : names)
            if (is_part(name)) return HeldResult{cat(what, name, ")"), folder};
    if (config_kind(folder) == ConfigKind::model) return HeldResult{"a model's config.json", folder};
    return std::nullopt;
}

ResultEntries result_entries(const fs::path& folder) {
    const Folder opened = Folder::named(folder);
    ResultEntries entries;
    for (const CheckpointFolder& checkpoint : list_checkpoints(folder))
        entries.state.push_back(checkpoint.path.filename());
    for (const std::string& name : opened.names()) {
        const auto entry = opened.look(name);
        if (!entry || !opened.owns(*entry)) continue;
        const bool config = name == "config.json" && config_kind(folder) == ConfigKind::model;
        if (config || is_adapter_file(name) || is_model_file(name) || name == decision_calibration_file)
            entries.weights.push_back(name);
        if (is_trainer_file(name)) entries.state.push_back(name);
    }
    return entries;
}

std::vector<std::string> weight_files(const fs::path& folder) {
    const Folder opened = Folder::named(folder);
    const bool model = config_kind(folder) == ConfigKind::model;
    std::vector<std::string> names;
    for (const std::string& name : opened.names())
        if (is_adapter_file(name) || is_model_file(name) || name == decision_calibration_file ||
            (name == "config.json" && model))
            names.push_back(name);
    std::sort(names.begin(), names.end());
    return names;
}

bool has_foreign_config(const fs::path& folder) {
    return config_kind(folder) == ConfigKind::foreign;
}

}  // namespace unsloth::formats
