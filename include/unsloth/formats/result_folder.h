// What an output folder holds already: the result of a run of this program or of another one. Notes, logs and whatever
// else is in it are none.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace unsloth::formats {

struct HeldResult {
    std::string what;               ///< "a run", "a PEFT adapter (adapter_model.safetensors)", …
    std::filesystem::path weights;  ///< the folder whose weights a new run can begin from
    bool ours = false;              ///< of this program
    bool resumable = false;         ///< there are checkpoints of this program
};

/// What a new run in the folder would replace or mix with; nullopt: nothing. What a killed run of this program left
/// before its first checkpoint and its result counts as nothing.
std::optional<HeldResult> find_result(const std::filesystem::path& folder);

/// Whether transformers' Trainer wrote this checkpoint-N, on which Unsloth, TRL, axolotl and LLaMA-Factory build.
bool is_trainer_checkpoint(const std::filesystem::path& checkpoint);

/// How a new run begins from the weights in a folder: "model.adapter_name_or_path FOLDER" or "model.path FOLDER".
std::string weights_option(const std::filesystem::path& folder);

/// The entries of a folder that make up a result, but for those of another user: weights with their configurations, and
/// what a trainer keeps to resume (checkpoints, its state).
struct ResultEntries {
    std::vector<std::string> weights, state;
};
ResultEntries result_entries(const std::filesystem::path& folder);

/// The weights of a folder with their configurations, by name, of any owner.
std::vector<std::string> weight_files(const std::filesystem::path& folder);

/// Whether config.json is there and describes no model: it is somebody's file and no result.
bool has_foreign_config(const std::filesystem::path& folder);

}  // namespace unsloth::formats
