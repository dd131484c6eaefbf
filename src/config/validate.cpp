#include "unsloth/config/validate.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "unsloth/config/allocator.h"
#include "unsloth/config/device_map.h"
#include "unsloth/config/option_table.h"
#include "unsloth/config/schedule_arguments.h"
#include "unsloth/config/split.h"
#include "unsloth/core/error.h"
#include "unsloth/core/suggest.h"
#include "unsloth/spec/precision.h"

namespace unsloth::config {
namespace {

/// What the option table says of options together.
void validate_relations(LoadedConfig& loaded, OptionSet& options, Errors& errors) {
    apply_conditional_defaults(options, loaded.given);
    Names sections;
    for (const Section& section : options.sections())
        if (!section.name.empty()) sections.push_back(section.name);
    check_relations(options, loaded.given, sections, errors, loaded.notes);
}

void refuse_duplicates(const std::vector<std::string>& names, const char* option) {
    std::set<std::string> seen;
    for (const auto& name : names)
        if (!seen.insert(name).second) throw Error("option.conflict", cat(option, ": '", name, "' is listed twice"));
}

/// The default of model.precision replaces load_in_8bit and load_in_4bit, which then say what it does.
void validate_precision(LoadedConfig& loaded, Errors& errors) {
    ModelOptions& model = loaded.config.model;
    const LoraOptions& lora = loaded.config.lora;
    errors.check({"model.precision", "model.load_in_8bit", "model.load_in_4bit"}, [&] {
        const spec::PrecisionMap precision(model.precision);
        const spec::WeightType type = precision.of_default();
        if (type == spec::WeightType::automatic) return;
        const auto becomes = [&](const char* option, bool& field, bool value) {
            if (loaded.is_given(option) && field != value)
                throw Error("option.conflict",
                            cat("model.precision says that the default is ", name_of(type), ", but ", option, " is ",
                                field ? "true" : "false"),
                            cat("Leave ", option, " or the default out."));
            field = value;
        };
        becomes("model.load_in_8bit", model.load_in_8bit, type == spec::WeightType::int8);
        becomes("model.load_in_4bit", model.load_in_4bit, spec::is_4bit(type));
    });
    errors.check({"model.precision", "lora.modules_to_save"}, [&] {
        const spec::PrecisionMap precision(model.precision);
        const auto trains = [&](const char* module, bool named) {
            const auto& saved = lora.modules_to_save;
            if (named && std::find(saved.begin(), saved.end(), module) != saved.end())
                throw Error("option.conflict",
                            cat("model.precision is for frozen weights, but lora.modules_to_save trains ", module),
                            cat("Leave ", module, " out of one of them."));
        };
        trains("embed_tokens", precision.names_embeddings());
        trains("lm_head", precision.names_head());
    });
}

void check_lora(const LoraOptions& lora, Errors& errors) {
    errors.check({"lora.target_modules"}, [&] {
        if (lora.target_modules.empty())
            throw Error("option.invalid-value", "lora.target_modules is empty: nothing would get an adapter",
                        "Name at least one projection, such as q_proj.");
        refuse_duplicates(lora.target_modules, "lora.target_modules");
    });
    errors.check({"lora.target_parameters"},
                 [&] { refuse_duplicates(lora.target_parameters, "lora.target_parameters"); });
    errors.check({"lora.layers_to_transform"}, [&] {
        if (lora.layers_to_transform && lora.layers_to_transform->empty())
            throw Error("option.invalid-value", "lora.layers_to_transform is empty: no layer would get an adapter",
                        "null means all layers.");
    });
    errors.check({"lora.modules_to_save"}, [&] { refuse_duplicates(lora.modules_to_save, "lora.modules_to_save"); });
}

void check_special_tokens(const ModelOptions& model, Errors& errors) {
    errors.check({"model.special_tokens"}, [&] {
        for (const auto& [role, content] : model.special_tokens) {
            if (role != "bos_token" && role != "eos_token" && role != "pad_token" && role != "unk_token")
                throw Error("option.unknown-key", cat("model.special_tokens: '", role, "' is no role of a token"),
                            "Roles are bos_token, eos_token, pad_token and unk_token.");
            if (content.empty())
                throw Error("option.invalid-value", cat("model.special_tokens: ", role, " is empty"),
                            "Name a token of the vocabulary, or leave the role out.");
        }
    });
}

void check_prompt_length(const Config& config, Errors& errors) {
    errors.check({"preference.max_prompt_length", "model.max_seq_length"}, [&] {
        const int64_t prompt = config.preference.max_prompt_length, whole = config.model.max_seq_length;
        if (prompt > 0 && whole > 0 && prompt >= whole)
            throw Error("option.out-of-range",
                        cat("preference.max_prompt_length is ", prompt, ", and model.max_seq_length ", whole,
                            " is of prompt and answer together"),
                        "Leave room for the answer: lower the one or raise the other.");
    });
}

void check_weights(const DataOptions& data) {
    const auto weighted = std::count_if(data.datasets.begin(), data.datasets.end(),
                                        [](const DataSource& source) { return source.weight.has_value(); });
    if (weighted != 0 && weighted != static_cast<std::ptrdiff_t>(data.datasets.size()))
        throw Error("option.missing", "data.datasets: some sources have a weight and some have none",
                    "Give every source a weight, or none: then each row is taken once an epoch.");
}

void check_sources(const DataOptions& data, Errors& errors) {
    errors.check({"data.train_split"}, [&] { (void)parse_split(data.train_split, "data.train_split"); });
    errors.check({"data.eval_split"}, [&] { (void)parse_split(data.eval_split, "data.eval_split"); });
    errors.check({"data.datasets"}, [&] {
        for (std::size_t i = 0; i < data.datasets.size(); ++i)
            (void)parse_split(data.datasets[i].split, cat("data.datasets[", i, "].split"));
        check_weights(data);
    });
}

/// Of an option that is a count, or below 1 a fraction.
void check_share(const char* option, double value, const char* counted, Errors& errors) {
    errors.check({option}, [&] {
        if (value >= 1 && std::floor(value) != value)
            throw Error("option.out-of-range",
                        cat(option, ": expected a fraction below 1 or a whole number of ", counted, ", found ", value));
    });
}

/// The best evaluation is by a value that evaluations have.
void check_best(const Config& config, Errors& errors) {
    const TrainingOptions& t = config.training;
    errors.check(
        {"training.metric_for_best_model", "training.objective", "data.eval_files", "training.eval_metric"}, [&] {
            std::vector<std::string> known = {"eval_loss", "eval_token_accuracy", "eval_perplexity"};
            const char* const judged = t.eval_metric == AnswerMetric::regex ? "regex" : "exact_match";
            if (t.eval_metric != AnswerMetric::none) known.push_back(cat("eval_", judged));
            for (const auto& [name, file] : config.data.eval_files) {
                known.push_back(cat("eval_", name, "_loss"));
                if (t.eval_metric != AnswerMetric::none) known.push_back(cat("eval_", name, "_", judged));
            }
            const std::string metric = best_metric(t);
            const bool has = std::find(known.begin(), known.end(), metric) != known.end();
            // The figures of other objectives are their own to name: the first evaluation knows them.
            if (has || t.objective != Objective::sft) return;
            std::string all;
            for (const std::string& name : known) all += (all.empty() ? "" : ", ") + name;
            throw Error("option.invalid-value", cat("training.metric_for_best_model: an evaluation has no ", metric),
                        cat("It has ", all, "."));
        });
}

void check_evaluation(const Config& config, Errors& errors) {
    const DataOptions& data = config.data;
    errors.check({"data.eval_files"}, [&] {
        constexpr const char* allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
        for (const auto& [name, file] : data.eval_files)
            if (name.empty() || file.empty() || name.find_first_not_of(allowed) != std::string::npos)
                throw Error("option.invalid-value",
                            cat("data.eval_files: '", name, "': '", file, "' is no name and file"),
                            "Names are of letters, digits, _, - and .: they become keys such as eval_NAME_loss.");
    });
    check_share("data.val_size", data.val_size, "rows", errors);
}

void check_training(const TrainingOptions& training, Errors& errors) {
    errors.check({"training.output_dir"}, [&] {
        if (training.output_dir.empty())
            throw Error("option.invalid-value", "training.output_dir is empty", "Name a folder to write to.");
    });
    check_share("training.eval_steps", training.eval_steps, "steps", errors);
    check_share("training.save_steps", training.save_steps, "steps", errors);
    check_share("training.logging_steps", training.logging_steps, "steps", errors);
    errors.check({"training.lr_scheduler_type", "training.lr_scheduler_kwargs"}, [&] {
        // Throws for what it cannot read. Where the rate comes from a rule, the trainer settles it and calls again.
        if (training.learning_rate) schedule_options(training, /*total_steps=*/0);
    });
}

/// Numbers of a JSON text, which may be of a list or an object.
bool holds_numbers(const std::string& json) {
    const Json values = Json::parse(json);
    return std::all_of(values.begin(), values.end(), [](const Json& value) { return value.is_number(); });
}

/// Of report_to: wandb is TensorBoard's files, and the endpoint has a port.
void validate_reports(LoadedConfig& loaded, Errors& errors) {
    std::vector<std::string>& names = loaded.config.training.report_to;
    LoggingOptions& logging = loaded.config.logging;
    const auto has = [&](const char* name) { return std::find(names.begin(), names.end(), name) != names.end(); };
    const std::string folder = std::filesystem::path(loaded.config.training.output_dir) / logging.tensorboard_dir;
    if (has("wandb")) {
        loaded.notes.push_back(
            cat("training.report_to wandb: TensorBoard's files are written; this uploads them: wandb sync ", folder));
        std::erase(names, "wandb");
        if (!has("tensorboard")) names.emplace_back("tensorboard");
    }
    if (logging.metrics_port > 0 && !has("prometheus")) names.emplace_back("prometheus");
    if (has("prometheus") && logging.metrics_port == 0) logging.metrics_port = 9400;
    errors.check({"training.report_to"}, [&] { refuse_duplicates(names, "training.report_to"); });
    errors.check({"training.report_to", "logging.metrics_file"}, [&] {
        if (has("html") && logging.metrics_file.empty())
            throw Error("option.no-effect",
                        "training.report_to html draws what logging.metrics_file holds, which is none",
                        "Give logging.metrics_file a name, or leave html out.");
    });
}

}  // namespace

void check_grpo(const Config& config, Errors& errors) {
    const GrpoOptions& grpo = config.grpo;
    errors.check({"grpo.loss_type", "grpo.importance_sampling_level", "grpo.sampler_correction"}, [&] {
        const bool sums = grpo.importance_sampling_level == spec::RatioLevel::sequence_sum;
        if (sums && grpo.loss_type != spec::PolicyLossType::grpo)
            throw Error("option.conflict", "grpo.importance_sampling_level sequence_sum is for grpo.loss_type grpo",
                        "It is RLOO's: set grpo.loss_type grpo.");
        if (grpo.loss_type == spec::PolicyLossType::vespo && corrects_rows(grpo.sampler_correction))
            throw Error("option.conflict",
                        "grpo.loss_type vespo weighs whole completions itself, and takes no correction of them",
                        "Use grpo.sampler_correction token_truncate or token_mask.");
    });
    errors.check({"grpo.sampler_correction", "grpo.sampler_clip_max", "grpo.sampler_clip_min"}, [&] {
        using spec::SamplerCorrection;
        const bool truncates = grpo.sampler_correction == SamplerCorrection::token_truncate ||
                               grpo.sampler_correction == SamplerCorrection::sequence_truncate;
        if (truncates && !grpo.sampler_clip_max && !grpo.sampler_clip_min)
            throw Error("option.conflict", "grpo.sampler_correction truncates at bounds, and there are none",
                        "Give grpo.sampler_clip_max or grpo.sampler_clip_min.");
        if (grpo.sampler_clip_max && grpo.sampler_clip_min && *grpo.sampler_clip_min >= *grpo.sampler_clip_max)
            throw Error("option.conflict", cat("grpo.sampler_clip_min ", *grpo.sampler_clip_min,
                                               " is not below grpo.sampler_clip_max ", *grpo.sampler_clip_max));
    });
    errors.check({"grpo.reward_weights"}, [&] {
        if (!holds_numbers(grpo.reward_weights))
            throw Error("option.invalid-value", "grpo.reward_weights: expected numbers");
    });
    errors.check({"grpo.reward_clip_range"}, [&] {
        const Json range = Json::parse(grpo.reward_clip_range);
        if (range.is_null()) return;
        if (!range.is_array() || range.size() != 2 || !holds_numbers(grpo.reward_clip_range) || range[0] >= range[1])
            throw Error("option.invalid-value",
                        cat("grpo.reward_clip_range: expected [low, high], found ", grpo.reward_clip_range));
    });
    errors.check({"grpo.beta", "lora.finetuning_type"}, [&] {
        if (grpo.beta > 0 && config.lora.finetuning_type == FinetuningType::full)
            throw Error("option.conflict",
                        "grpo.beta measures against a reference, which full training has no second copy of",
                        "Set grpo.beta 0, or train adapters.");
    });
}

void require_distributed(const Config& config) {
    Config bound;
    OptionSet options;
    declare_options(options, bound);
    bound = config;  // the options are bound to `bound`
    Errors errors;
    std::vector<std::string> notes;
    check_relations(options, {}, {"distributed"}, errors, notes);
    errors.raise();
}

void check_device(const std::string& device, const std::string& option) {
    if (device == "auto" || device == "cpu" || device == "cuda") return;
    constexpr std::string_view prefix = "cuda:";
    const std::string index = device.starts_with(prefix) ? device.substr(prefix.size()) : "";
    constexpr std::size_t most_digits = 4;
    const bool is_index =
        !index.empty() && index.size() <= most_digits && index.find_first_not_of("0123456789") == std::string::npos;
    if (is_index) return;
    throw Error("option.invalid-value", cat(option, ": expected auto, cpu, cuda or cuda:N, found '", device, "'"));
}

void validate(LoadedConfig& loaded, OptionSet& options, Errors& errors) {
    validate_relations(loaded, options, errors);
    const Config& config = loaded.config;
    if (config.lora.finetuning_type == FinetuningType::lora) {
        validate_precision(loaded, errors);
        check_lora(config.lora, errors);
        check_prompt_length(config, errors);
        check_special_tokens(config.model, errors);
    }
    validate_reports(loaded, errors);
    check_sources(config.data, errors);
    check_evaluation(config, errors);
    check_best(config, errors);
    check_training(config.training, errors);
    if (samples_completions(config.training.objective)) check_grpo(config, errors);
    errors.check({"model.device_map"}, [&] { (void)DeviceMap(config.model); });
    errors.check({"distill.teacher_device_map"}, [&] {
        ModelOptions teacher = config.model;
        teacher.device_map = config.distill.teacher_device_map;
        (void)DeviceMap(teacher);
    });
    errors.check({"model.max_memory"}, [&] { max_memory(config.model, 0); });
    errors.check({"hardware.allocator"}, [&] { (void)allocator_settings(config.hardware); });
    errors.check({"hardware.device"}, [&] { check_device(config.hardware.device, "hardware.device"); });
}

}  // namespace unsloth::config
