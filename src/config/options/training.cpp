#include "config/options/named_value.h"
#include "config/options/sections.h"
#include "unsloth/config/option_table.h"
#include "unsloth/config/schedule_arguments.h"

namespace unsloth::config {
namespace {

std::vector<std::pair<std::string, Objective>> objective_names() {
    std::vector<std::pair<std::string, Objective>> names;
    for (const ObjectiveTraits& objective : objectives)
        names.emplace_back(objective.name, static_cast<Objective>(names.size()));
    return names;
}

void declare_optimizer(OptionSet& options, TrainingOptions& training) {
    options.add("weight_decay", training.weight_decay, "Decoupled weight decay.")
        .at_least(0)
        .on_resume(OnResume::logged);
    options.add("max_grad_norm", training.max_grad_norm, "Clip the gradients' global norm to this; 0: no clipping.")
        .at_least(0)
        .suggested_for({"grad_clip", "clip_grad", "gradient_clip", "gradient_clipping"})
        .on_resume(OnResume::logged);
    options
        .add(
            "skip_on_spike", training.skip_on_spike,
            "Skip the update of a step whose loss or gradient norm is an outlier. That is more than this many standard "
            "deviations above the mean of the last 128 steps. 6 is usual; it applies from the 33rd step. 0: never.")
        .at_least(0)
        .synonym(nullptr, 0)
        .suggested_for({"skip_spikes"})
        .on_resume(OnResume::logged);
    options
        .add_choice("optim", training.optim,
                    {{"adamw_torch", Optimizer::adamw_torch}, {"adamw_8bit", Optimizer::adamw_8bit}},
                    "AdamW with 32-bit moments (adamw_torch) or block-wise 8-bit ones (adamw_8bit).")
        .synonym("adamw_torch_fused", "adamw_torch")
        .synonym("adamw_hf", "adamw_torch")
        .synonym("adamw_bnb_8bit", "adamw_8bit")
        .synonym("paged_adamw_8bit", "adamw_8bit", "taken as adamw_8bit: its states stay on the device")
        .synonym("paged_adamw_32bit", "adamw_torch", "taken as adamw_torch: its states stay on the device")
        .synonym("paged_adamw", "adamw_torch", "taken as adamw_torch: its states stay on the device")
        .suggested_for({"optimizer"})
        .on_resume(OnResume::immutable);
    options.add("adam_beta1", training.adam_beta1, "Decay of the first moment.")
        .at_least(0)
        .below(1)
        .on_resume(OnResume::logged);
    options.add("adam_beta2", training.adam_beta2, "Decay of the second moment.")
        .at_least(0)
        .below(1)
        .on_resume(OnResume::logged);
    options.add("adam_epsilon", training.adam_epsilon, "Added to the root of the second moment.")
        .above(0)
        .suggested_for({"adam_eps", "eps"})
        .on_resume(OnResume::logged);
}

/// How a step is computed.
void declare_passes(OptionSet& options, TrainingOptions& training) {
    options
        .add("neftune_noise_alpha", training.neftune_noise_alpha,
             "NEFTune: uniform noise of up to alpha / sqrt(tokens x hidden size) is added to the embeddings in "
             "training (5 is "
             "usual); 0: none.")
        .at_least(0)
        .synonym(nullptr, 0)
        .suggested_for({"noisy_embedding_alpha", "neftune_alpha"})
        .on_resume(OnResume::logged)
        .not_with("training.objective", {"grpo"})
        .because("the sampler has none, and its probabilities would differ from the trained ones");
    options
        .add("router_aux_loss_coef", training.router_aux_loss_coef,
             "Weight of the load-balancing loss of a model of experts, the mean of the step's micro-batches (0.001 is "
             "usual); 0: none. auto: that of config.json where it says output_router_logits, else none, as in "
             "transformers.")
        .at_least(0)
        .synonym("auto", nullptr)
        .on_resume(OnResume::logged)
        .only_with("training.objective", {"sft"})
        .not_with("lora.finetuning_type", {"full"})
        .because("models of experts are trained by adapters");
    options.add("seed", training.seed, "Seed of initial adapters, data order, held-out rows, dropout and noise.")
        .at_least(0)
        .suggested_for({"random_seed", "random_state"})
        .on_resume(OnResume::immutable);
}

/// What passes keep, and where.
void declare_activations(OptionSet& options, TrainingOptions& training) {
    options
        .add_choice("gradient_checkpointing", training.gradient_checkpointing,
                    {{"auto", GradientCheckpointing::automatic},
                     {"none", GradientCheckpointing::none},
                     {"mlp", GradientCheckpointing::mlp},
                     {"attention", GradientCheckpointing::attention},
                     {"full", GradientCheckpointing::full},
                     {"none+offload", GradientCheckpointing::none_offload},
                     {"mlp+offload", GradientCheckpointing::mlp_offload},
                     {"attention+offload", GradientCheckpointing::attention_offload},
                     {"full+offload", GradientCheckpointing::full_offload}},
                    "Activation checkpointing. none recomputes nothing in the backward pass, mlp a layer's MLP, "
                    "attention all but its attention, full all but its input. With +offload, saved activations are in "
                    "pinned host memory. auto mixes these policies over the layers, as predicted to be fastest within "
                    "the available memory. true means full, false none, \"unsloth\" full+offload.")
        .synonym(true, "full")
        .synonym(false, "none")
        .synonym("unsloth", "full+offload")
        .synonym(nullptr, "auto")
        .bare_flag()
        .alias("training", "activation_checkpointing")
        .alias("lora", "use_gradient_checkpointing")
        .suggested_for({"enable_activation_offloading", "offload_activations"})
        .on_resume(OnResume::mutable_);
    options
        .add_choice("activation_offload_dtype", training.keep_inputs_in,
                    {{"auto", KeptInputs::automatic}, {"same", KeptInputs::same}, {"fp8", KeptInputs::fp8}},
                    "Type of layer inputs that are offloaded to host memory (+offload). same: the compute type. fp8: "
                    "e4m3 with a scale per token, in half the bytes; recomputed activations and gradients then differ "
                    "slightly. auto uses fp8 only where no other plan fits.")
        .formerly("training", "keep_inputs_in")
        .on_resume(OnResume::logged);
    options
        .add_choice("image_features", training.image_features,
                    {{"auto", ImageFeatures::automatic},
                     {"keep", ImageFeatures::keep},
                     {"recompute", ImageFeatures::recompute}},
                    "What a frozen vision tower makes of the images. keep: features stay in host memory, and from the "
                    "second epoch on the tower does not run. Images that do not fit are recomputed. recompute: the "
                    "tower runs in each pass. auto keeps them if there is more than one epoch, and room for a quarter "
                    "of them, unless the images are small.")
        .suggested_for({"cache_image_features", "cache_vision_features"})
        .on_resume(OnResume::logged);
    options
        .add("max_memory_gib", training.max_memory_gib,
             "Most GiB of each GPU that the run plans for; with model.max_memory the smaller of the two. 0: what is "
             "free.")
        .at_least(0)
        .at_most(100000)
        .synonym(nullptr, 0)
        .suggested_for({"memory_budget", "gpu_memory_limit", "memory_limit"})
        .on_resume(OnResume::mutable_);
    options
        .add("deterministic", training.deterministic,
             "Bitwise reproducible results on a GPU. It costs a tenth of the speed or less with cuDNN attention. With "
             "other attention kernels it costs more, as the log reports. The CPU is always reproducible.")
        .on_resume(OnResume::logged);
}

void declare_task(OptionSet& options, TrainingOptions& training) {
    options.add("output_dir", training.output_dir, "Folder for the adapter, the metrics and the run's configuration.")
        .path("DIR")
        .most_used("Folder of the results")
        .synonym(nullptr, training.output_dir)
        .suggested_for({"out", "output", "save_dir"})
        .on_resume(OnResume::mutable_);
    options
        .add_choice(
            "objective", training.objective, objective_names(),
            "Training objective. sft: the labels of each example. dpo (with its variants) and orpo: pairs "
            "{prompt, chosen, rejected}. kto: completions with a label {prompt, completion, label}. distill: "
            "the outputs of distill.teacher for the labels. grpo: completions that the run samples and scores "
            "itself. decision: questions {input, question, answer}, by the probabilities of their options. A pair "
            "counts as one example.")
        .suggested_for({"stage", "rl", "method"})
        .needs({"distill.teacher"})
        .when({"distill"})
        .or_else("Name a model folder, or a file of `unsloth-train score --top_k N`.")
        .needs({"grpo.rewards", "grpo.replay_rollouts"})
        .when({"grpo"})
        .or_else("List reward functions (docs/reference/rewards.md), or name a file of rollouts.")
        .on_resume(OnResume::immutable);
    options
        .add(
            "decision_brier_weight", training.decision_brier_weight,
            "Weight of the Brier score, the squared error of the options' probabilities, added to their cross-entropy.")
        .at_least(0)
        .only_with("training.objective", {"decision"})
        .on_resume(OnResume::immutable);
}

void declare_batches(OptionSet& options, TrainingOptions& training) {
    options
        .add("per_device_train_batch_size", training.per_device_train_batch_size,
             "Rows of a micro-batch on one device.")
        .most_used("Rows of a micro-batch")
        .at_least(1)
        .at_most(1e6)
        .alias("training", "per_gpu_train_batch_size")
        .suggested_for({"batch_size", "train_batch_size", "micro_batch_size", "per_device_batch_size", "batch"})
        .on_resume(OnResume::logged);
    options
        .add("max_tokens_per_batch", training.max_tokens_per_batch,
             "Tokens of a micro-batch on one device, filled with as many rows as fit, instead of "
             "per_device_train_batch_size rows; 0: "
             "off.")
        .at_least(0)
        .at_most(1e9)
        .suggested_for({"max_tokens", "tokens_per_batch", "batch_tokens"})
        .on_resume(OnResume::immutable)
        .not_with("training.objective", {"grpo"})
        .because("a generation batch counts completions");
    options
        .add("gradient_accumulation_steps", training.gradient_accumulation_steps,
             "Micro-batches of one optimizer step.")
        .most_used("Micro-batches of a step")
        .at_least(1)
        .at_most(1e6)
        .suggested_for({"grad_accum", "accumulation_steps", "gradient_accumulation"})
        .on_resume(OnResume::logged);
    options
        .add_choice("auto_micro_batch", training.micro_batch,
                    {{"auto", PassRows::automatic}, {"as_given", PassRows::as_given}},
                    "Sequences per forward and backward pass. auto: the number predicted to be fastest on this GPU "
                    "within its memory; losses are equal up to rounding. as_given: per_device_train_batch_size; auto "
                    "means this on the CPU and with deterministic. A step has per_device_train_batch_size x "
                    "gradient_accumulation_steps sequences either way.")
        .formerly("training", "micro_batch")
        .synonym(true, "auto")
        .synonym(false, "as_given")
        .on_resume(OnResume::logged);
}

void declare_schedule(OptionSet& options, TrainingOptions& training) {
    options.add("num_train_epochs", training.num_train_epochs, "Passes over the data; may be a fraction.")
        .most_used("Passes over the rows")
        .above(0)
        .at_most(1e6)
        .suggested_for({"epochs", "num_epochs", "max_epochs"})
        .on_resume(OnResume::logged);
    options
        .add("max_steps", training.max_steps,
             "Optimizer steps; -1: as num_train_epochs says; 0: check everything, plan memory and stop.")
        .most_used("Steps; 0: check and stop")
        .at_least(-1)
        .at_most(1e9)
        .suggested_for({"steps", "num_steps", "num_train_steps"})
        .on_resume(OnResume::logged);
    named_value(options
                    .add("learning_rate", training.learning_rate,
                         "Peak learning rate; a string such as \"2e-4\" is read too. auto: by a published rule, from "
                         "the model's family and hidden size and the objective. The log tells the reason.")
                    .most_used("Peak learning rate")
                    .at_least(0)
                    .at_most(1)  // beyond it every update of AdamW replaces a weight, and the run can only diverge
                    .number_as_text()
                    .suggested_for({"lr"})
                    .on_resume(OnResume::logged),
                "auto", nullptr);
    options
        .add_choice("lr_scheduler_type", training.lr_scheduler_type, schedule_names(),
                    "Course of the learning rate; names and formulas are transformers'.")
        .suggested_for({"scheduler", "lr_scheduler", "schedule"})
        .not_with("training.objective", {"grpo"})
        .when({"reduce_lr_on_plateau"})
        .because("it follows the evaluation's loss, and completions of held-out prompts have rewards")
        .on_resume(OnResume::logged);
    options
        .add("lr_scheduler_kwargs", training.lr_scheduler_kwargs,
             "The schedule's own arguments, such as {\"num_cycles\": 2} or {\"num_decay_steps\": 100}.")
        .synonym(nullptr, Json::object())
        .on_resume(OnResume::logged);
    options.add("warmup_steps", training.warmup_steps, "Steps in which the learning rate rises from 0.")
        .at_least(0)
        .at_most(1e9)
        .suggested_for({"warmup"})
        .not_with("training.warmup_ratio")
        .when_not({0})
        .because("--warmup_steps 0 selects the ratio")
        .default_with("training.warmup_ratio", 0)
        .on_resume(OnResume::logged);
    options.add("warmup_ratio", training.warmup_ratio, "The same as a share of all steps. Give one of the two.")
        .at_least(0)
        .at_most(1)
        .on_resume(OnResume::logged);
}

}  // namespace

void declare_training(OptionSet& options, TrainingOptions& training) {
    options.section("training", "Training", "The run: batches, length, optimizer, schedule, what is written when.");
    declare_task(options, training);
    declare_batches(options, training);
    declare_schedule(options, training);
    declare_optimizer(options, training);
    declare_passes(options, training);
    declare_activations(options, training);
    declare_saving(options, training);
}

}  // namespace unsloth::config
