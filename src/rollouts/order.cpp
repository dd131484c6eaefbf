#include "unsloth/rollouts/order.h"

#include "unsloth/core/error.h"

namespace unsloth::rollouts {

RolloutOrder::RolloutOrder(const config::Config& config, int data_ranks, bool shares)
    : group_size(config.grpo.num_generations),
      of_sample(shares ? group_size : 1),
      rows_each(config.training.per_device_train_batch_size * data_ranks),
      slices(config.grpo.slices(config.training.gradient_accumulation_steps)),
      passes(config.grpo.num_iterations),
      accumulation(config.training.gradient_accumulation_steps) {
    if (rows() % group_size == 0) return;
    throw Error(
        "option.conflict",
        cat("a generation batch has ", rows(), " completions (training.per_device_train_batch_size ",
            config.training.per_device_train_batch_size, " x ", data_ranks, " ranks x grpo.steps_per_generation ",
            slices, "), no multiple of grpo.num_generations ", group_size),
        "Groups are whole: change one of them.");
}

RolloutOrder::Place RolloutOrder::place(int64_t micro) const {
    const int64_t of_generation = slices * passes, within = micro % of_generation;
    return {micro / of_generation, within % slices, within == 0};
}

int64_t RolloutOrder::generations(int64_t steps) const {
    const int64_t of_generation = slices * passes;
    return (steps * accumulation + of_generation - 1) / of_generation;
}

}  // namespace unsloth::rollouts
