// What lora.r auto means.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "unsloth/config/config.h"
#include "unsloth/spec/lora_spec.h"

namespace unsloth::train {

struct RankRule {
    int64_t r = 0;
    std::string reason;  ///< with its numbers and its source
};

/// The least of 8, 16, …, 256 with which the adapters have at least as many parameters as the run has different
/// targets. Where rewards or preferences teach, 16. `targets`: nullopt where the number is unknown: 32.
///
/// Source: "LoRA Without Regret" (Schulman and Thinking Machines Lab, 2025-09) and the LoRA primer of their
/// tinker-cookbook: a LoRA learns as well as all weights as long as it has at least as many parameters as there are
/// tokens with a loss; a reward teaches about a bit, for which small ranks are enough; 32 is their default.
///
/// `lora`: its r is not read; ranks of rank_pattern count as they are.
RankRule rank_rule(const config::Config& config, const spec::ModelSpec& spec, spec::LoraSpec lora,
                   std::optional<int64_t> targets);

}  // namespace unsloth::train
