// The policy loss that the options of section grpo describe.
#pragma once

#include "unsloth/config/config.h"
#include "unsloth/spec/policy_batch.h"

namespace unsloth::config {

spec::PolicyRule policy_rule(const GrpoOptions& options);

/// Of a micro-batch; its divisors' `rows`, `tokens` and `generation_tokens` are left at 1. `accumulation` and `slices`:
/// micro-batches of an optimizer step and of a generation batch.
spec::PolicyBatchOptions policy_batch_options(const GrpoOptions& options, double accumulation, double slices);

/// Whether passes need the log-probabilities that the policy had at generation: where one optimizer step is not the
/// whole generation batch, or where something is measured against them.
bool needs_old_logps(const GrpoOptions& options, int64_t gradient_accumulation_steps);

}  // namespace unsloth::config
