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

std::vector<std::string> options_without_effect(const config::Config& config, bool on_gpu, int sharers) {
    std::vector<std::string> idle;
    const auto only_on_gpus = [&](const std::string& option, bool given) {
        if (given && !on_gpu) idle.push_back(cat(option, " has no effect: the run is on the CPU"));
    };
    const config::TrainingOptions& training = config.training;
    only_on_gpus("training.max_memory_gib", training.max_memory_gib > 0);
    for (const auto& [device, size] : config.model.max_memory)
        only_on_gpus(cat("model.max_memory's '", device, "'"), device != "cpu");
    if (config.distributed.zero_stage > 0 && sharers == 1)
        idle.push_back(
            cat("distributed.zero_stage ", config.distributed.zero_stage, " has no effect: ",
                config.distributed.pp_size > 1
                    ? "each stage of the pipeline has one rank; twice as many processes would share it"
                    : "one process holds the model; unsloth-train launch --nproc_per_node N starts several"));
    return idle;
}

std::optional<std::string> doubt_warmup(const config::TrainingOptions& training, int64_t total_steps) {
    const bool asked = training.warmup_steps > config::TrainingOptions().warmup_steps;  // short trials keep the default
    if (!asked || training.lr_scheduler_type == config::Schedule::constant || total_steps == 0 ||
        training.warmup_steps < total_steps)
        return std::nullopt;
    return cat("training.warmup_steps is ", training.warmup_steps, ", and the run has ", total_steps,
               " steps: training.learning_rate is never reached; 5 to 10 % of the steps are usual");
}

std::optional<std::string> doubt_host_threads(const config::DistributedOptions& distributed, int threads, int cpus) {
    if (distributed.offload_optimizer != config::OptimizerPlace::cpu || threads > 1 || cpus < 2) return std::nullopt;
    return cat("distributed.offload_optimizer cpu: the optimizer runs on one thread, and the machine has ", cpus,
               " CPUs: set OMP_NUM_THREADS to the CPUs of a rank (torchrun sets 1, unsloth-train launch their number)");
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
