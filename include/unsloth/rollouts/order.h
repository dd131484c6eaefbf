// Which completions a micro-batch has: generation batches, slices of them, and passes over these.
#pragma once

#include <cstdint>

#include "unsloth/config/config.h"

namespace unsloth::rollouts {

/// A generation batch is rows() completions, whole groups. It is cut into `slices` micro-batches of rows_each
/// completions, and they come `passes` times: 0 … slices - 1, 0 … slices - 1, …; then the next one follows. An
/// optimizer step is `accumulation` consecutive micro-batches, of whatever generation. As TRL's, without its shuffling
/// of a generation's rows.
struct RolloutOrder {
    int64_t group_size = 1;    ///< completions of a prompt
    int64_t of_sample = 1;     ///< of them, most that share their prompt's tokens in a pass (samples_of)
    int64_t rows_each = 1;     ///< completions of a micro-batch, of all ranks
    int64_t slices = 1;        ///< grpo.steps_per_generation
    int64_t passes = 1;        ///< grpo.num_iterations
    int64_t accumulation = 1;  ///< training.gradient_accumulation_steps

    /// `shares`: completions share their prompt's tokens (placement::shares_prompts). usage Error where a generation
    /// batch has a part of a group.
    RolloutOrder(const config::Config& config, int data_ranks, bool shares = true);

    int64_t rows() const { return rows_each * slices; }     ///< of a generation batch
    int64_t groups() const { return rows() / group_size; }  ///< likewise
    int64_t rows_of_step() const { return rows_each * accumulation; }

    struct Place {
        int64_t generation = 0;
        int64_t slice = 0;
        bool begins = false;  ///< the first micro-batch of its generation
    };
    /// Of a micro-batch, numbered from 0 over the whole run.
    Place place(int64_t micro) const;
    /// Of the first micro-batch of optimizer step number `step`, from 1.
    int64_t first_micro(int64_t step) const { return (step - 1) * accumulation; }
    /// Whole optimizer steps that this number of generations gives.
    int64_t steps(int64_t generations) const { return generations * slices * passes / accumulation; }
    /// Generations that this number of steps takes.
    int64_t generations(int64_t steps) const;
};

}  // namespace unsloth::rollouts
