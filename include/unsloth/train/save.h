// What a run leaves: a PEFT adapter folder, or a model folder after full fine-tuning. Every file is complete or absent.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/formats/peft.h"
#include "unsloth/model/model.h"

namespace unsloth::train {

/// adapter_model.safetensors (fp32) and adapter_config.json. `params_P`: the flat fp32 values, on any device. `base` is the base's path as the user gave it.
void save_adapter(const std::filesystem::path& folder, const model::ParameterTable& table, const at::Tensor& params_P, const LoraSpec& lora, const std::string& base);

/// config.json and model.safetensors (shards of at most `shard_bytes` and an index when larger) in the checkpoint's own dtype.
void save_model(const std::filesystem::path& folder, const model::ParameterTable& table, const at::Tensor& params_P, const ModelSpec& spec,
                const std::filesystem::path& source_folder, int64_t shard_bytes = 5'000'000'000);

/// "model-00001-of-00002.safetensors", or "model.safetensors" for a single one; `index` from 0.
std::string shard_file_name(std::size_t index, std::size_t count);
/// model.safetensors.index.json: which file holds each tensor.
std::string shard_index_json(const std::map<std::string, std::string>& file_of_tensor, std::size_t total_bytes);

/// Copies files of the folder `from` to the same places below `to` (atomically, skipping those already there under the same path).
void copy_files(const std::vector<std::filesystem::path>& files, const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace unsloth::train
