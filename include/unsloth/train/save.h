// What a run leaves: a PEFT adapter folder, or a model folder after full fine-tuning. Every file is complete or absent.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "unsloth/formats/peft.h"
#include "unsloth/formats/shards.h"
#include "unsloth/model/model.h"

namespace unsloth::train {

/// The fp32 values of a parameter, flat, on the CPU. Asked for once each, one after the other.
using ReadValues = std::function<at::Tensor(const weights::Parameter&)>;
/// Of the flat fp32 values, on any device.
ReadValues values_in(const at::Tensor& params_P);

/// adapter_model.safetensors (fp32) and adapter_config.json. `stand_ins`: tensors that are stored with it as they are.
void save_adapter(const std::filesystem::path& folder, const weights::ParameterTable& table, const ReadValues& values,
                  const formats::PeftConfig& config, const std::vector<const formats::TensorView*>& stand_ins = {});

/// config.json and model.safetensors (shards of at most `shard_bytes` and an index when larger) in spec.dtype.
void save_model(const std::filesystem::path& folder, const weights::ParameterTable& table, const ReadValues& values,
                const spec::ModelSpec& spec, const std::filesystem::path& source_folder,
                int64_t shard_bytes = static_cast<int64_t>(formats::default_shard_bytes));

}  // namespace unsloth::train
