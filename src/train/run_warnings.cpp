#include "unsloth/train/run_warnings.h"

#include <algorithm>
#include <filesystem>

#include "unsloth/config/auto_values.h"
#include "unsloth/config/load.h"
#include "unsloth/config/schedule_arguments.h"
#include "unsloth/config/step_intervals.h"
#include "unsloth/core/error.h"
#include "unsloth/placement/recipe.h"
#include "unsloth/train/schedule.h"

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
    const Usual usual = config::compares_completions(config.training.objective) ? preferences : full ? all : lora;
    const double rate = config.training.learning_rate.value();
    if (rate >= usual.low && rate <= usual.high) return std::nullopt;
    return cat("training.learning_rate ", rate, " is far from what is usual for ", usual.what,
               rate > usual.high ? ": the loss may rise instead of falling" : ": little will be learned",
               "; auto takes ", config::learning_rate_rule(config, spec).rate);
}

std::optional<std::string> doubt_targets(const spec::LoraSpec& lora, const spec::ModelSpec& spec) {
    if (!spec.delta) return std::nullopt;
    const std::vector<spec::LayerLora> layers = spec::resolve_lora(lora, spec);
    for (const spec::LayerLora& layer : layers)
        if (std::ranges::any_of(layer, [](const auto& adapted) { return spec::is_of_delta(adapted.first); }))
            return std::nullopt;
    return cat("lora.target_modules names none of in_proj_qkv, in_proj_z and out_proj: ",
               std::ranges::count(spec.layers, true, &spec::LayerSpec::delta), " of ", spec.num_layers,
               " layers have gated delta nets in the place of attention, and no adapter there");
}

std::optional<std::string> doubt_quantization(const config::Config& config, const spec::ModelSpec& spec,
                                              bool quantized_folder) {
    if (!spec.delta || quantized_folder || !config.model.load_in_4bit || !config.model.precision.empty() ||
        config.lora.finetuning_type == config::FinetuningType::full)
        return std::nullopt;
    return "this family is said to lose more in 4 bits than others: `unsloth-train evaluate --sensitivity nf4` "
           "measures it with your rows and proposes a value of model.precision";
}

std::vector<std::string> options_without_effect(const config::Config& config, bool on_gpu, int data_parallel_size) {
    std::vector<std::string> idle;
    const auto only_on_gpus = [&](const std::string& option, bool given) {
        if (given && !on_gpu) idle.push_back(cat(option, " has no effect: the run is on the CPU"));
    };
    const config::TrainingOptions& training = config.training;
    only_on_gpus("training.max_memory_gib", training.max_memory_gib > 0);
    for (const auto& [device, size] : config.model.max_memory)
        only_on_gpus(cat("model.max_memory's '", device, "'"), device != "cpu");
    if (config.distributed.zero_stage > 0 && data_parallel_size == 1)
        idle.push_back(
            cat("distributed.zero_stage ", config.distributed.zero_stage, " has no effect: ",
                config.distributed.pp_size > 1
                    ? "each stage of the pipeline has one rank; twice as many processes would share it"
                    : "one process holds the model; unsloth-train launch --nproc_per_node N starts several"));
    return idle;
}

std::optional<std::string> doubt_warmup(const config::TrainingOptions& training, int64_t total_steps) {
    if (total_steps == 0 || *training.learning_rate == 0) return std::nullopt;
    const config::ScheduleOptions schedule = config::schedule_options(training, total_steps);
    const int64_t warmup = schedule.warmup_steps;
    double most = 0;  // no schedule rises after its warm-up
    for (const int64_t step : {int64_t{0}, std::min(warmup, total_steps) - 1, std::min(warmup, total_steps - 1)})
        most = std::max(most, schedule_multiplier(training.lr_scheduler_type, schedule, std::max<int64_t>(step, 0)));
    constexpr double nearly = 1 - 1e-6;  // a polynomial's rounding
    const bool reaches = most >= nearly, rises = schedule_multiplier(training.lr_scheduler_type, schedule, 0) < nearly;
    if (reaches && (!rises || 2 * warmup <= total_steps)) return std::nullopt;
    const double rate = *training.learning_rate;
    return cat(training.warmup_ratio > 0 ? "training.warmup_ratio makes " : "training.warmup_steps is ", warmup,
               training.warmup_ratio > 0 ? " steps of warm-up" : "", ", and the run has ", total_steps, " steps: ",
               reaches ? cat("most of them train at less than training.learning_rate ", rate)
                       : cat("the learning rate never reaches ", rate, ", it is ", most * rate, " at most"),
               "; 5 to 10 % of the steps are usual: --warmup_steps ", total_steps / 10);
}

std::optional<std::string> doubt_adapter(const config::Config& config) {
    if (!config.model.adapter_name_or_path) return std::nullopt;
    const std::filesystem::path file =
        std::filesystem::path(*config.model.adapter_name_or_path) / config::run_config_file;
    if (std::error_code failed; !std::filesystem::exists(file, failed)) return std::nullopt;
    std::string differs;
    try {
        config::LoadedConfig here{config, {}, {}};
        for (const std::string& option : config::take_options(here, config::load_config(file, {}).config,
                                                              {config::base_precision(), {{"data.template"}, {}}}))
            differs += (differs.empty() ? "" : ", ") + option;
    } catch (const Error&) {  // written by another version
        return std::nullopt;
    }
    if (differs.empty()) return std::nullopt;
    return cat("the adapter ", *config.model.adapter_name_or_path, " was trained with ", differs,
               "; this run has other values than it learned with");
}

std::vector<std::string> doubt_lengths(const config::Config& config, const RunLength& run) {
    const config::TrainingOptions& t = config.training;
    const config::TrainingOptions defaults;
    std::vector<std::string> doubts;
    const auto too_long = [&](const char* option, double every, double unasked, const char* what) {
        if (every > static_cast<double>(run.steps) && every != unasked)
            doubts.push_back(cat("training.", option, " is ", static_cast<int64_t>(every), ", and the run has ",
                                 run.steps, " steps: ", what));
    };
    if (run.steps == 0) return doubts;
    too_long("eval_steps", t.eval_steps, defaults.eval_steps, "the only evaluation comes at its end");
    too_long("save_steps", t.save_steps, defaults.save_steps, "the only checkpoint is that of its end");
    too_long("logging_steps", t.logging_steps, defaults.logging_steps, "the last step alone is logged");
    const config::StepIntervals intervals = config::step_intervals(t, run.steps, run.epoch_steps);
    const auto too_rare = [&](const char* option, double per_epoch, const config::StepInterval& steps,
                              const char* what) {
        if (per_epoch > 0 && steps.count(run.steps) == 0)
            doubts.push_back(cat("training.", option, " ", per_epoch, " is every ", steps.every,
                                 " steps, and the run has ", run.steps, ": ", what));
    };
    too_rare("evals_per_epoch", t.evals_per_epoch, intervals.eval, "the only evaluation comes at its end");
    too_rare("saves_per_epoch", t.saves_per_epoch, intervals.save, "the only checkpoint is that of its end");
    if (t.early_stopping_patience > 0 && intervals.eval.every > 0)
        if (const int64_t before_the_end = intervals.eval.count(run.steps - 1);
            before_the_end <= t.early_stopping_patience)
            doubts.push_back(cat("training.early_stopping_patience is ", t.early_stopping_patience, ", and ",
                                 before_the_end,
                                 " evaluations come before the run's end: it cannot stop early; evaluate more often, "
                                 "or lower the patience"));
    if (t.max_steps < 0 && t.num_train_epochs < 0.1)
        doubts.push_back(cat("training.num_train_epochs is ", t.num_train_epochs, ": the run has ", run.steps,
                             run.steps == 1 ? " step, which sees " : " steps, which see ",
                             std::min(run.steps * run.rows_of_step, run.rows), " of ", run.rows, " rows"));
    if (t.max_tokens_per_batch == 0 && run.rows_of_step > run.rows)
        doubts.push_back(cat("training.per_device_train_batch_size and gradient_accumulation_steps make steps of ",
                             run.rows_of_step, " rows, and there are ", run.rows,
                             ": each epoch is one step; lower gradient_accumulation_steps"));
    return doubts;
}

std::optional<std::string> describe_router_loss(const config::Config& config, const spec::ModelSpec& spec) {
    if (!spec.experts || spec.experts->router_aux == 0 || config.training.router_aux_loss_coef) return std::nullopt;
    const std::string asked = "config.json says output_router_logits: ";
    const double coefficient = placement::router_aux_coefficient(config.training, spec);
    if (coefficient == 0) return asked + "only training.objective sft adds its load-balancing loss; this run has none";
    return cat(asked, "the load-balancing loss is added with its router_aux_loss_coef ", coefficient,
               ", as in transformers, and evaluations are without it (training.router_aux_loss_coef 0: none)");
}

std::optional<std::string> doubt_host_threads(const config::DistributedOptions& distributed, int threads, int cpus) {
    if (distributed.offload_optimizer != config::OptimizerPlace::cpu || threads > 1 || cpus < 2) return std::nullopt;
    return cat("distributed.offload_optimizer cpu: the optimizer runs on one thread, and the machine has ", cpus,
               " CPUs: set OMP_NUM_THREADS to the CPUs of a rank (torchrun sets 1, unsloth-train launch their number)");
}

std::optional<std::string> LossWatch::observe(int64_t step, double loss) {
    // Below a nat, tenfold is what easy and hard rows differ by.
    constexpr double factor = 10, worth_a_word = 1;
    if (!warned_ && loss > worth_a_word && loss > factor * least_) {
        warned_ = true;
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
