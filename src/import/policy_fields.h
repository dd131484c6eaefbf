// Fields of TRL's GRPOConfig and RLOOConfig, which axolotl passes on.
#pragma once

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
};

/// Takes these fields, and writes section grpo and what else training.objective grpo needs; after set_default() of the
/// rest.
void import_policy(Importer& importer, const PolicySource& source);

/// lora_dropout and disable_dropout: completions are sampled and scored there with dropout, here without.
void import_dropout_of_policy(Importer& importer);

}  // namespace unsloth::import
