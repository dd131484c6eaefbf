// The validated configuration of a run. Field names are the JSON keys of docs/reference/options; each option (key,
// flag, type, default, check, help) is declared once, in src/config/options.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/config/objective.h"
#include "unsloth/spec/coded_products.h"
#include "unsloth/spec/dtype.h"
#include "unsloth/spec/policy_loss.h"
#include "unsloth/spec/serve_grid.h"

namespace unsloth::config {

enum class FinetuningType { lora, full };
enum class DataFormat {
    automatic,
    tokenized,
    alpaca,
    messages,
    sharegpt,
    prompt_completion,
    preference,
    text,
    decision
};
/// What a row of a plain text file is: a run of lines between blank ones, or the whole file.
enum class TextUnit { paragraph, file };
/// What becomes of a row that is not UTF-8: it is a bad row, or its broken bytes become U+FFFD.
enum class InvalidUtf8 { refuse, replace };
/// What becomes of a row of more than max_seq_length tokens; `automatic` splits plain text and cuts what else there is.
enum class LongRows { automatic, truncate, split, drop };
enum class Optimizer { adamw_torch, adamw_8bit };
/// What an evaluation judges generated answers by, in addition to the loss.
enum class AnswerMetric { none, exact_match, regex };
/// The model that preferences are measured against: the base without adapters, or what was there at the start.
enum class Reference { base, initial };
/// How the margin of a pair becomes a loss.
enum class PreferenceLoss { sigmoid, hinge, ipo, robust, simpo };
/// How far a student is from its teacher.
enum class Divergence { forward_kl, reverse_kl, jsd };
/// What a layer keeps for the backward pass (spec/keep.h); `automatic` takes what fits.
enum class GradientCheckpointing {
    automatic,
    none,
    mlp,
    attention,
    full,
    none_offload,  ///< these four: kept in pinned host memory
    mlp_offload,
    attention_offload,
    full_offload
};
/// How many of a step's rows a pass holds: per_device_train_batch_size, or as many as are predicted to be fastest.
enum class PassRows { as_given, automatic };
/// In which type layers' inputs wait in host memory for their backward pass; `automatic`: e4m3 where nothing else fits.
enum class KeptInputs { automatic, same, fp8 };
/// Whether features of images stay in host memory after their first pass; `automatic`: where another pass follows and a
/// useful share of them fits.
enum class ImageFeatures { automatic, keep, recompute };
/// Which tokens of a prompt longer than preference.max_prompt_length stay.
enum class TruncationMode { keep_end, keep_start };
/// Whether 4-bit weights are dequantized once for the whole run; `automatic`: when there is room.
enum class WeightCache { automatic, off, on };
/// The names of transformers' SchedulerType, in lower case.
enum class Schedule {
    linear,
    cosine,
    cosine_with_restarts,
    polynomial,
    constant,
    constant_with_warmup,
    inverse_sqrt,
    reduce_lr_on_plateau,
    cosine_with_min_lr,
    cosine_warmup_with_min_lr,
    warmup_stable_decay,
};

struct ModelOptions {
    std::string path;
    bool load_in_4bit = true;
    bool load_in_8bit = false;
    std::vector<std::pair<std::string, std::string>> precision;  ///< {module, type} (spec/precision.h)
    spec::DType dtype = spec::DType::bf16;                       ///< compute type: f32, bf16 or f16
    spec::CodedProducts compute_dtype = spec::CodedProducts::none;
    std::optional<std::string> adapter_name_or_path;
    bool ignore_serve_grid = false;                               ///< use an adapter of lora.serve_grid as it is
    int64_t max_seq_length = 2048;                                ///< 0: as many as the model has positions
    std::string rope_scaling = "{}";                              ///< JSON: Hugging Face's object; {}: config.json's
    std::string device_map = "\"auto\"";                          ///< JSON: a word or an object (config/device_map.h)
    std::vector<std::pair<std::string, std::string>> max_memory;  ///< {a GPU's number or "cpu", size}
    std::optional<std::string> offload_folder;
    std::vector<std::pair<std::string, std::string>> special_tokens;  ///< {role (bos_token, …), content}
};

struct LoraOptions {
    FinetuningType finetuning_type = FinetuningType::lora;
    int64_t r = 16;
    double lora_alpha = 16;
    double lora_dropout = 0.0;
    bool use_rslora = false;
    bool use_dora = false;
    bool vision = false;  ///< adapters in the tower over images too
    std::vector<std::string> target_modules = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                               "gate_proj", "up_proj", "down_proj"};
    std::vector<std::string> target_parameters;
    std::vector<std::string> modules_to_save;
    std::vector<std::pair<std::string, int64_t>> rank_pattern;  ///< order of the file
    std::vector<std::pair<std::string, double>> alpha_pattern;
    std::optional<std::vector<int64_t>> layers_to_transform;
    double loraplus_lr_ratio = 0;                        ///< learning rate of B over that of A; 0: one rate
    std::optional<double> loraplus_lr_embedding;         ///< of embed_tokens in modules_to_save; absent: the usual one
    spec::ServeGrid serve_grid = spec::ServeGrid::none;  ///< adapters are trained through the rounding of such a file
};

/// One source of training rows.
struct DataSource {
    std::string path;         ///< file, folder or glob
    std::string config_name;  ///< JSON key: name; of a data set's configurations one; empty: none is asked for
    DataFormat format = DataFormat::automatic;
    std::optional<double> weight;  ///< share of an epoch, relative to the other sources'; absent: each row once
    std::string split;             ///< as config/split.h reads it; names are those of files; empty: see data/source.h
    std::vector<std::pair<std::string, std::string>> columns;  ///< {name here, name in the file}
    std::string template_name;                                 ///< JSON key: template; empty: data.template
    int64_t max_samples = 0;                                   ///< at most this many rows, from its beginning; 0: all
};

struct DataOptions {
    std::string train_file;
    std::string train_split;           ///< of train_file, as DataSource::split
    std::vector<DataSource> datasets;  ///< instead of train_file
    std::optional<std::string> eval_file;
    std::string eval_split;                                       ///< of eval_file, else of train_file
    std::vector<std::pair<std::string, std::string>> eval_files;  ///< instead: {name, file}
    double val_size = 0;  ///< below 1 a fraction of the rows, else a number of rows
    DataFormat format = DataFormat::automatic;
    std::string template_name = "auto";                        ///< JSON key: template
    std::string chat_template_kwargs = "{}";                   ///< JSON object: variables of the template
    std::vector<std::pair<std::string, std::string>> columns;  ///< {name here, name in the file}
    TextUnit text_unit = TextUnit::paragraph;
    InvalidUtf8 invalid_utf8 = InvalidUtf8::refuse;
    std::string image_root;        ///< folder that paths of images are relative to; empty: that of their rows' file
    int64_t image_max_pixels = 0;  ///< larger images are made smaller before the model's processor; 0: none is
    int64_t min_length = 0;        ///< rows of fewer tokens are dropped
    bool train_on_prompt = false;
    bool train_on_last_turn_only = false;
    bool shuffle = true;
    bool packing = false;
    bool skip_bad_rows = false;
    bool drop_duplicates = false;
    LongRows long_rows = LongRows::automatic;
    std::string cache_dir = "auto";  ///< auto: in the user's cache folder; empty: none
    double cache_max_gib = 64;       ///< bound on the cache's files; 0: none
};

struct TrainingOptions {
    std::string output_dir = "out/run1";
    int64_t per_device_train_batch_size = 2;
    int64_t max_tokens_per_batch = 0;  ///< of a micro-batch, instead of a number of rows; 0: off
    int64_t gradient_accumulation_steps = 4;
    PassRows micro_batch = PassRows::automatic;
    double num_train_epochs = 1;
    int64_t max_steps = -1;
    std::optional<double> learning_rate = 2e-4;  ///< absent: by rule, which the trainer settles
    Schedule lr_scheduler_type = Schedule::linear;
    /// Keyword arguments of the schedule (num_cycles, power, lr_end, min_lr, min_lr_rate, num_decay_steps, decay_type,
    /// …), in the file's order; a value is the JSON value's text without quotes.
    std::vector<std::pair<std::string, std::string>> lr_scheduler_kwargs;
    int64_t warmup_steps = 5;
    double warmup_ratio = 0.0;
    double weight_decay = 0.01;
    double max_grad_norm = 1.0;
    double skip_on_spike = 0;  ///< standard deviations above the mean of the steps before; 0: no step is skipped
    Optimizer optim = Optimizer::adamw_8bit;
    double adam_beta1 = 0.9;
    double adam_beta2 = 0.999;
    double adam_epsilon = 1e-8;
    double neftune_noise_alpha = 0;              ///< 0: no noise
    std::optional<double> router_aux_loss_coef;  ///< absent: as config.json says
    Objective objective = Objective::sft;
    double decision_brier_weight = 0;  ///< added to the cross-entropy of decisions
    int64_t seed = 3407;
    GradientCheckpointing gradient_checkpointing = GradientCheckpointing::automatic;
    KeptInputs keep_inputs_in = KeptInputs::automatic;
    ImageFeatures image_features = ImageFeatures::automatic;
    double max_memory_gib = 0;  ///< bound of the plan on each GPU; 0: none
    bool deterministic = false;
    double eval_steps = 0;       ///< here and in the next: below 1 a share of the run (config/step_intervals.h)
    double stop_at_step = 0;     ///< the schedule still spans the whole run; 0: at its end
    double evals_per_epoch = 0;  ///< instead; 0: eval_steps says it
    bool eval_on_start = false;
    int64_t early_stopping_patience = 0;  ///< evaluations without a better one that end a run; 0: none do
    double early_stopping_threshold = 0;  ///< by how much a better one is better
    bool load_best_model_at_end = false;
    std::string metric_for_best_model = "eval_loss";  ///< with or without eval_
    std::optional<bool> greater_is_better;            ///< absent: where the metric's name does not end in loss
    double save_steps = 500;
    double saves_per_epoch = 0;  ///< instead; 0: save_steps says it
    double save_minutes = 0;
    int64_t save_total_limit = 0;
    double save_grace_seconds = 25;
    bool overwrite_output_dir = false;
    double logging_steps = 1;
    std::vector<std::string> report_to;         ///< of tensorboard, prometheus, html
    std::optional<std::string> sample_prompts;  ///< file of prompts that evaluations answer
    int64_t sample_max_new_tokens = 64;
    AnswerMetric eval_metric = AnswerMetric::none;  ///< of evaluations in a run; the next two as EvaluateRequest's
    std::string eval_answer_regex;
    int64_t eval_max_new_tokens = 256;
    std::optional<std::string> resume_from_checkpoint;  ///< "auto", "true" or a folder; "false" counts as none
    bool push_to_hub = false;
    std::optional<std::string> hub_model_id;  ///< ORG/NAME or NAME; absent: output_dir's name
    bool hub_private_repo = true;             ///< of a repository that the upload creates
};

struct PreferenceOptions {
    Reference reference = Reference::base;
    bool reference_free = false;
    bool cache_reference = true;  ///< its log-probabilities, in data.cache_dir
    bool share_prompt = true;     ///< a pair's prompt is computed once
    PreferenceLoss loss_type = PreferenceLoss::sigmoid;
    double beta = 0.1;
    double label_smoothing = 0;
    double simpo_gamma = 0.5;
    double rpo_alpha = 0;  ///< 0: without the chosen answers' own loss
    double desirable_weight = 1, undesirable_weight = 1;
    int64_t max_prompt_length = 0;  ///< tokens; 0: no bound of its own
    TruncationMode truncation_mode = TruncationMode::keep_end;
};

struct DistillOptions {
    std::optional<std::string> teacher;  ///< model folder, or file of `score --top_k`
    std::optional<std::string> teacher_adapter;
    bool teacher_load_in_4bit = false;
    std::string teacher_device_map = "\"auto\"";  ///< as ModelOptions::device_map
    Divergence divergence = Divergence::forward_kl;
    double jsd_beta = 0.5;  ///< the teacher's share of jsd's mixture
    double temperature = 1;
    double alpha = 0.5;  ///< the divergence's share of the loss; the rest is the labels'
    int64_t top_k = 0;   ///< of a teacher's file: tokens of a position that count; 0: all that it has
};

enum class AdvantageBaseline { group_mean, leave_one_out };
enum class RewardScale { group, batch, none };
enum class RewardAggregation { sum_then_normalize, normalize_then_sum };
/// Whose log-probabilities of sampled tokens are the old ones.
enum class OldLogProbs { automatic, trainer, sampler };

/// What training.objective grpo takes; names as in TRL.
struct GrpoOptions {
    int64_t num_generations = 8;
    std::optional<int64_t> num_generations_eval;  ///< absent: num_generations
    int64_t max_completion_length = 512;
    std::optional<int64_t> steps_per_generation;  ///< absent: gradient_accumulation_steps
    int64_t num_iterations = 1;
    spec::PolicyLossType loss_type = spec::PolicyLossType::dapo;
    spec::RatioLevel importance_sampling_level = spec::RatioLevel::token;
    double epsilon = 0.2;
    std::optional<double> epsilon_high, delta;
    double beta = 0;
    bool use_bias_correction_kl = true;
    Reference reference = Reference::initial;
    RewardScale scale_rewards = RewardScale::group;
    RewardAggregation multi_objective_aggregation = RewardAggregation::sum_then_normalize;
    std::string reward_weights = "null";  ///< JSON: list of numbers, object of numbers or null
    AdvantageBaseline advantage = AdvantageBaseline::group_mean;
    bool normalize_advantages = false;
    std::string reward_clip_range = "null";  ///< JSON: [low, high] or null
    bool kl_in_reward = false;
    bool mask_truncated_completions = false;
    double top_entropy_quantile = 1, entropy_coef = 0;
    std::optional<double> off_policy_mask_threshold;
    double sapo_temperature_pos = 1, sapo_temperature_neg = 1.05;
    double vespo_k_pos = 2, vespo_lambda_pos = 3, vespo_k_neg = 3, vespo_lambda_neg = 2;
    double temperature = 1, top_p = 1;
    int64_t top_k = 0;
    std::optional<double> min_p;
    double repetition_penalty = 1;
    spec::SamplerCorrection sampler_correction = spec::SamplerCorrection::none;
    std::optional<double> sampler_clip_max = 3, sampler_clip_min;
    OldLogProbs old_logps = OldLogProbs::automatic;
    bool drop_zero_groups = false;
    int64_t max_rows_in_flight = 0;  ///< 0: as many as the plan has room for
    std::optional<std::string> replay_rollouts;
    bool log_completions = false;
    std::string rewards = "[]";  ///< JSON: list (reward/rewards.h)
    std::string reward_python = "auto";
    int64_t reward_workers = 1;
    double reward_memory_gib = 0;

    /// Micro-batches that a generation batch is cut into.
    int64_t slices(int64_t gradient_accumulation_steps) const {
        return steps_per_generation.value_or(gradient_accumulation_steps);
    }
};

struct HardwareOptions {
    std::string device = "auto";  ///< auto | cpu | cuda | cuda:N
    WeightCache weight_cache = WeightCache::automatic;
    int64_t weight_mantissa_bits = 0;  ///< of bfloat16's 7; 0: all
    bool offload_embedding = false;
    bool cuda_graphs = true;
    std::string allocator = "{}";  ///< JSON: a preset's name or an object (config/allocator.h); {}: LibTorch's own
    std::string kernels = "auto";  ///< what a choice of kernels is by: auto | library
};

/// How far a run is: a bar or log lines, or an object a logged step on standard output.
enum class ProgressStyle { automatic, json };

struct LoggingOptions {
    std::string level = "info";
    std::string metrics_file = "metrics.jsonl";   ///< relative to output_dir; empty: none
    std::string tensorboard_dir = "tensorboard";  ///< relative to output_dir
    ProgressStyle progress = ProgressStyle::automatic;
    bool layer_norms = false;  ///< of the gradients, in the rows of metrics
    int64_t metrics_port = 0;  ///< of the endpoint for Prometheus; 0: none
    std::string metrics_address = "127.0.0.1";
    std::string profile;  ///< Chrome trace of one step; empty: none
};

/// The memory where a rank's fp32 parameters and moments are stored, and updated.
enum class OptimizerPlace { device, cpu };
/// The order in which a pipeline's stages take micro-batches.
enum class PipelineSchedule { one_forward_one_backward, interleaved };

struct DistributedOptions {
    int64_t tp_size = 1, pp_size = 1, cp_size = 1;  ///< ranks a model is cut over; data parallel is what is left
    int64_t zero_stage = 0;
    OptimizerPlace offload_optimizer = OptimizerPlace::device;
    PipelineSchedule pipeline_schedule = PipelineSchedule::one_forward_one_backward;
    int64_t pipeline_micro_batches = 0;  ///< 0: as many as there are stages
    int64_t ddp_timeout = 120;           ///< seconds
    int64_t ddp_bucket_cap_mb = -1;      ///< MiB; 0: no buckets; -1: by the ranks' machines
    std::vector<std::pair<std::string, std::string>> nccl;
};

struct Config {
    ModelOptions model;
    LoraOptions lora;
    DataOptions data;
    TrainingOptions training;
    PreferenceOptions preference;
    DistillOptions distill;
    GrpoOptions grpo;
    HardwareOptions hardware;
    DistributedOptions distributed;
    LoggingOptions logging;
};

/// Whether a run writes checkpoint-N folders.
inline bool saves_checkpoints(const TrainingOptions& training) {
    return training.save_steps > 0 || training.saves_per_epoch > 0 || training.save_minutes > 0 ||
           training.load_best_model_at_end;
}

/// metric_for_best_model as rows of metrics name it: with eval_ in front.
std::string best_metric(const TrainingOptions& training);
/// Whether more of it is better.
bool more_is_better(const TrainingOptions& training);

/// A configuration with what was said about it.
struct LoadedConfig {
    Config config;
    std::vector<std::string> notes;  ///< decisions made while reading, one line each, for the log
    std::set<std::string> given;     ///< full names ("lora.r") of the options that a file or a flag set

    bool is_given(const std::string& option) const { return given.count(option) != 0; }
};

}  // namespace unsloth::config
