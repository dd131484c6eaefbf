#include "unsloth/train/doubts.h"

#include "unsloth/core/error.h"

namespace unsloth::train {

std::optional<std::string> doubt_learning_rate(const config::Config& config) {
    const bool full = config.lora.finetuning_type == config::FinetuningType::full;
    const double low = full ? 1e-7 : 1e-5, high = full ? 1e-4 : 2e-3;
    const double rate = config.training.learning_rate;
    if (rate >= low && rate <= high) return std::nullopt;
    return cat("training.learning_rate ", rate, " is far from what is usual for ",
               full ? "training all weights (1e-7 to 1e-4, often 1e-5)" : "a LoRA (1e-5 to 2e-3, often 2e-4)",
               rate > high ? ": the loss may rise instead of falling" : ": little will be learnt");
}

std::optional<std::string> LossWatch::observe(int64_t step, double loss) {
    // Below a nat, tenfold is what easy and hard rows differ by.
    constexpr double factor = 10, worth_a_word = 1;
    if (!told_ && loss > worth_a_word && loss > factor * least_) {
        told_ = true;
        return cat("step ", step, ": the loss is ", loss, ", more than ten times the ", least_, " of step ",
                   least_step_,
                   ": the run diverges; a lower training.learning_rate or more training.warmup_steps may help");
    }
    if (loss < least_) {
        least_ = loss;
        least_step_ = step;
    }
    return std::nullopt;
}

}  // namespace unsloth::train
