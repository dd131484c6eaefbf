// Fields of TRL's GRPOConfig and RLOOConfig, which axolotl passes on, and ms-swift has with names of its own.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "import/importer.h"

namespace unsloth::import {

/// Where the fields are, and what differs between the programs.
struct PolicySource {
    std::string prefix;                ///< of the fields' names: "trl." of axolotl
    const char* rows = "";             ///< the field of a micro-batch's rows
    std::vector<const char*> lengths;  ///< fields of which each says model.max_seq_length
    bool rloo = false;                 ///< RLOOConfig
    bool bias_correction = true;       ///< that release's use_bias_correction_kl
    bool short_names = false;          ///< reward_funcs may be names of TRL's scripts
    /// Options and values, where that program's defaults are not those of TRL's GRPOConfig.
    std::vector<std::pair<const char*, Json>> defaults = {};
    std::map<std::string, std::string> names = {};  ///< {TRL's name: that program's}, where they differ
    bool vllm_corrects = true;                      ///< use_vllm switches a correction on unless another field says no
    /// The entry of grpo.rewards for a name of reward_funcs; null: there is none, which was reported. Empty: TRL's.
    std::function<Json(const std::string&)> reward = {};
    std::size_t lost_rewards = 0;  ///< sources after those of reward_funcs, which have weights too
    const char* long_prompts =
        "longer prompts were cut there; here the run refuses them by their rows, or skips them "
        "with data.skip_invalid";
};

/// Takes these fields, and writes section grpo and what else training.objective grpo needs; after set_default() of the
/// rest.
void import_policy(Importer& importer, const PolicySource& source);

/// lora_dropout and disable_dropout: completions are sampled and scored there with dropout, here without.
void import_dropout_of_policy(Importer& importer);

}  // namespace unsloth::import
