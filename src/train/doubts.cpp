#include "unsloth/train/doubts.h"

#include "unsloth/core/error.h"
#include "unsloth/train/learning_rate.h"

namespace unsloth::train {

std::optional<std::string> doubt_learning_rate(const config::Config& config, const spec::ModelSpec& spec) {
    struct Usual {
        double low, high;
        const char* what;
    };
    const bool full = config.lora.finetuning_type == config::FinetuningType::full;
    const Usual lora{1e-5, 2e-3, "a LoRA (1e-5 to 2e-3, often 2e-4)"},
        all{1e-7, 1e-4, "training all weights (1e-7 to 1e-4, often 1e-5)"},
        preferences{1e-7, 2e-4, "preferences (1e-7 to 2e-4, often 1e-5)"};
    const Usual usual = config::compares_answers(config.training.objective) ? preferences : full ? all : lora;
    const double rate = config.training.learning_rate.value();
    if (rate >= usual.low && rate <= usual.high) return std::nullopt;
    return cat("training.learning_rate ", rate, " is far from what is usual for ", usual.what,
               rate > usual.high ? ": the loss may rise instead of falling" : ": little will be learnt",
               "; auto takes ", learning_rate_rule(config, spec).rate);
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
