// Adapters of the linears of a tower over images.
#pragma once

#include <string>
#include <vector>

#include "unsloth/spec/lora_spec.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::spec {

/// A linear of a tower, and its adapter: A [r, k], B [n, r].
struct TowerLora {
    std::string module;  ///< as VisionTensor's names have it: "blocks.0.attn.qkv"
    int64_t n = 0, k = 0;
    LoraModule lora = {};
    std::string root = "visual.";  ///< before that in the folder's names; empty with tiles
    std::string name() const { return root + module; }
    /// In the whole model of transformers 5, as PEFT sees it.
    std::string path() const { return "model." + name(); }
};

/// Every linear that may have one, in the order of a forward pass: those of the blocks, and of the mergers or the
/// projector. Empty without a tower.
std::vector<TowerLora> tower_linears(const ModelSpec& model);
/// Those that get one. Usage Error where all are asked for, and the model has no such tower, or the adapters are
/// DoRA's.
std::vector<TowerLora> resolve_tower_lora(const LoraSpec& lora, const ModelSpec& model);
/// An expression that matches the paths of all of them, and nothing else of the model.
std::string tower_pattern(const ModelSpec& model);

}  // namespace unsloth::spec
