// Adapters of single experts, as PEFT made them where experts are modules (transformers 4).
#pragma once

#include "unsloth/formats/peft.h"

namespace unsloth::formats {

/// Makes the adapters "….mlp.experts.{e}.gate_proj", "up_proj" and "down_proj" those of the tensors that hold all of a
/// layer's experts, exactly, as PEFT 0.21 does: gate and up become one of both ranks' sum, each with zeros in B where
/// the other has its rows. config.lora and `file` are then as if it had been trained so; without such adapters they
/// stay as they are. Input Error for adapters of some experts alone, or of ranks or scales that differ within a layer,
/// and for one of a router.
void join_experts(PeftConfig& config, SafetensorsFile& file, const spec::ModelSpec& model);

}  // namespace unsloth::formats
