#include "config/settle.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "unsloth/config/allocator.h"
#include "unsloth/config/device_map.h"
#include "unsloth/config/schedule_arguments.h"
#include "unsloth/core/error.h"
#include "unsloth/core/suggest.h"
#include "unsloth/spec/precision.h"

namespace unsloth::config {
namespace {

void refuse_duplicates(const std::vector<std::string>& names, const char* option) {
    std::set<std::string> seen;
    for (const auto& name : names)
        if (!seen.insert(name).second) throw Error("option.conflict", cat(option, ": '", name, "' is listed twice"));
}

void settle_full_training(LoadedConfig& loaded, Problems& problems) {
    ModelOptions& model = loaded.config.model;
    const LoraOptions& lora = loaded.config.lora;
    problems.check({"lora.finetuning_type", "model.adapter_name_or_path"}, [&] {
        if (model.adapter_name_or_path)
            throw Error("option.conflict", "lora.finetuning_type full cannot continue from model.adapter_name_or_path",
                        "Train the adapter with finetuning_type lora, or leave the adapter out.");
    });
    problems.check({"lora.finetuning_type", "model.load_in_4bit"}, [&] {
        if (model.load_in_4bit && loaded.is_given("model.load_in_4bit"))
            throw Error("option.conflict",
                        "lora.finetuning_type full trains the weights that model.load_in_4bit would freeze",
                        "Set model.load_in_4bit to false, or finetuning_type to lora.");
    });
    model.load_in_4bit = false;
    const auto for_frozen = [&](const char* option, bool given) {
        problems.check({"lora.finetuning_type", option}, [&] {
            if (given)
                throw Error("option.conflict",
                            cat("lora.finetuning_type full trains the weights that ", option, " would freeze"),
                            cat("Leave ", option, " out, or set finetuning_type to lora."));
        });
    };
    for_frozen("model.load_in_8bit", model.load_in_8bit);
    for_frozen("model.precision", !model.precision.empty());

    // A printed configuration lists every option, so only a value that differs from the default shows a wish.
    const LoraOptions defaults;
    const std::map<std::string, bool> modules = {
        {"lora.target_modules", lora.target_modules != defaults.target_modules},
        {"lora.modules_to_save", lora.modules_to_save != defaults.modules_to_save},
        {"lora.rank_pattern", lora.rank_pattern != defaults.rank_pattern},
        {"lora.alpha_pattern", lora.alpha_pattern != defaults.alpha_pattern},
        {"lora.layers_to_transform", lora.layers_to_transform != defaults.layers_to_transform}};
    for (const auto& [option, differs] : modules)
        problems.check({"lora.finetuning_type", option}, [&, &option = option, &differs = differs] {
            if (differs)
                throw Error("option.no-effect",
                            cat(option, " is for adapters, but lora.finetuning_type full trains all weights"),
                            cat("Leave ", option, " out, or set finetuning_type to lora."));
        });
    const std::map<std::string, bool> numbers = {
        {"lora.r", lora.r != defaults.r},
        {"lora.lora_alpha", lora.lora_alpha != defaults.lora_alpha},
        {"lora.lora_dropout", lora.lora_dropout != defaults.lora_dropout},
        {"lora.use_rslora", lora.use_rslora != defaults.use_rslora},
        {"lora.use_dora", lora.use_dora != defaults.use_dora},
        {"lora.loraplus_lr_ratio", lora.loraplus_lr_ratio != 0},
        {"lora.loraplus_lr_embedding", lora.loraplus_lr_embedding.has_value()}};
    for (const auto& [option, differs] : numbers)
        if (differs) loaded.notes.push_back(option + " has no effect with lora.finetuning_type full");
}

/// Of the three options for the base's types, precision's default holds before load_in_8bit, and that before
/// load_in_4bit, which is true where nobody says anything; the others then say what it does.
void settle_precision(LoadedConfig& loaded, Problems& problems) {
    ModelOptions& model = loaded.config.model;
    const LoraOptions& lora = loaded.config.lora;
    problems.check({"model.load_in_8bit", "model.load_in_4bit"}, [&] {
        if (model.load_in_8bit && model.load_in_4bit && loaded.is_given("model.load_in_4bit"))
            throw Error("option.conflict", "model.load_in_8bit and model.load_in_4bit are both true",
                        "Set one of them to false.");
    });
    if (model.load_in_8bit) model.load_in_4bit = false;
    problems.check({"model.precision", "model.load_in_8bit", "model.load_in_4bit"}, [&] {
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
    problems.check({"model.precision", "lora.modules_to_save"}, [&] {
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

/// What the model, the device or an adapter's own configuration brings is the plan's to refuse.
void check_compute_dtype(const Config& config, Problems& problems) {
    const spec::CodedProducts fp8 = config.model.compute_dtype;
    const bool full = config.lora.finetuning_type == FinetuningType::full;
    problems.check({"model.compute_dtype", "lora.finetuning_type"}, [&] {
        if (any(fp8) && full)
            throw Error("option.unsupported", cat("model.compute_dtype ", name_of(fp8), " is for a frozen base"),
                        "Train adapters (lora.finetuning_type lora), or leave compute_dtype out.");
    });
    problems.check({"model.compute_dtype", "lora.use_dora"}, [&] {
        if (any(fp8) && !full && config.lora.use_dora)
            throw Error("option.unsupported", cat("model.compute_dtype ", name_of(fp8), " ", why_not_dora(fp8)),
                        "Leave compute_dtype or lora.use_dora out.");
    });
}

void check_mantissa(const Config& config, Problems& problems) {
    problems.check({"hardware.weight_mantissa_bits", "hardware.weight_cache", "model.compute_dtype", "model.dtype",
                    "lora.finetuning_type"},
                   [&] {
                       if (config.hardware.weight_mantissa_bits == 0) return;
                       if (config.hardware.weight_cache != WeightCache::on)
                           throw Error("option.no-effect",
                                       "hardware.weight_mantissa_bits is for weights that lie expanded on a GPU",
                                       "Set hardware.weight_cache to on, or leave weight_mantissa_bits out.");
                       if (config.model.dtype != spec::DType::bf16 || forward_coded(config.model.compute_dtype) ||
                           config.lora.finetuning_type == FinetuningType::full)
                           throw Error("option.no-effect",
                                       "hardware.weight_mantissa_bits is for a frozen base in bfloat16",
                                       "Leave weight_mantissa_bits out.");
                   });
}

void check_lora(const LoraOptions& lora, std::optional<double> learning_rate, Problems& problems) {
    problems.check({"lora.target_modules"}, [&] {
        if (lora.target_modules.empty())
            throw Error("option.invalid-value", "lora.target_modules is empty: nothing would get an adapter",
                        "Name at least one projection, such as q_proj.");
        refuse_duplicates(lora.target_modules, "lora.target_modules");
    });
    problems.check({"lora.layers_to_transform"}, [&] {
        if (lora.layers_to_transform && lora.layers_to_transform->empty())
            throw Error("option.invalid-value", "lora.layers_to_transform is empty: no layer would get an adapter",
                        "null means all layers.");
    });
    problems.check({"lora.modules_to_save"}, [&] { refuse_duplicates(lora.modules_to_save, "lora.modules_to_save"); });
    problems.check({"lora.loraplus_lr_embedding", "training.learning_rate"}, [&] {
        if (lora.loraplus_lr_embedding && learning_rate == 0.0)
            throw Error("option.no-effect",
                        "lora.loraplus_lr_embedding is a share of training.learning_rate, which is 0",
                        "Leave it out, or give a learning_rate above 0.");
    });
}

void check_weights(const DataOptions& data) {
    const auto weighted = std::count_if(data.datasets.begin(), data.datasets.end(),
                                        [](const DataSource& source) { return source.weight.has_value(); });
    if (weighted != 0 && weighted != static_cast<std::ptrdiff_t>(data.datasets.size()))
        throw Error("option.missing", "data.datasets: some sources have a weight and some have none",
                    "Give every source a weight, or none: then each row is taken once an epoch.");
}

/// What follows evaluations needs some while the run goes on, and a value that they have.
void check_best(const Config& config, Problems& problems) {
    const TrainingOptions& t = config.training;
    const auto need_steps = [&](const char* option, bool wants) {
        problems.check({option, "training.eval_steps"}, [&] {
            if (wants && t.eval_steps == 0)
                throw Error("option.no-evaluation",
                            cat(option, " follows evaluations, and there is one at the end alone"),
                            "Give training.eval_steps.");
        });
    };
    need_steps("training.early_stopping_patience", t.early_stopping_patience > 0);
    need_steps("training.load_best_model_at_end", t.load_best_model_at_end);
    problems.check({"training.early_stopping_threshold", "training.early_stopping_patience"}, [&] {
        if (t.early_stopping_threshold > 0 && t.early_stopping_patience == 0)
            throw Error("option.no-effect",
                        "training.early_stopping_threshold serves training.early_stopping_patience, which is 0",
                        "Give both, or none.");
    });
    problems.check(
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

/// What training.eval_metric needs, and what needs it.
void check_answers(const Config& config, Problems& problems) {
    const TrainingOptions& t = config.training;
    const bool judges = t.eval_metric != AnswerMetric::none;
    problems.check({"training.eval_metric", "training.eval_answer_regex", "training.objective"}, [&] {
        if (!judges && !t.eval_answer_regex.empty())
            throw Error("option.no-effect", "training.eval_answer_regex serves training.eval_metric, which is none",
                        "Set training.eval_metric to exact_match or regex.");
        if (t.eval_metric == AnswerMetric::regex && t.eval_answer_regex.empty())
            throw Error("option.missing", "training.eval_metric regex needs training.eval_answer_regex",
                        "Give the expression that is looked for in answers.");
        if (judges && t.objective != Objective::sft)
            throw Error("option.unsupported", "training.eval_metric judges answers to rows of training.objective sft",
                        "Leave it out: other objectives have figures of their own.");
    });
}

void check_evaluation(const Config& config, Problems& problems) {
    const DataOptions& data = config.data;
    const bool evaluates = data.eval_file || !data.eval_files.empty() || data.val_size > 0;
    const auto not_both = [&](const char* one, bool has_one, const char* other, bool has_other) {
        problems.check({one, other}, [&] {
            if (has_one && has_other)
                throw Error("option.conflict", cat(one, " and ", other, " are both given"),
                            "Evaluation rows come from one of them.");
        });
    };
    not_both("data.eval_file", data.eval_file.has_value(), "data.val_size", data.val_size > 0);
    not_both("data.eval_files", !data.eval_files.empty(), "data.val_size", data.val_size > 0);
    not_both("data.eval_file", data.eval_file.has_value(), "data.eval_files", !data.eval_files.empty());
    problems.check({"data.eval_files"}, [&] {
        constexpr const char* allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
        for (const auto& [name, file] : data.eval_files)
            if (name.empty() || file.empty() || name.find_first_not_of(allowed) != std::string::npos)
                throw Error("option.invalid-value",
                            cat("data.eval_files: '", name, "': '", file, "' is no name and file"),
                            "Names are of letters, digits, _, - and .: they become keys such as eval_NAME_loss.");
    });
    problems.check({"data.val_size"}, [&] {
        if (data.val_size >= 1 && std::floor(data.val_size) != data.val_size)
            throw Error(
                "option.out-of-range",
                cat("data.val_size: expected a fraction below 1 or a whole number of rows, found ", data.val_size));
    });
    const auto need_rows = [&](const char* option, bool wants) {
        problems.check({option, "data.eval_file", "data.eval_files", "data.val_size"}, [&] {
            if (wants && !evaluates)
                throw Error("option.no-evaluation", cat(option, " is given, but there are no rows to evaluate on"),
                            "Give data.eval_file, data.eval_files or data.val_size.");
        });
    };
    need_rows("training.eval_on_start", config.training.eval_on_start);
    need_rows("training.eval_steps", config.training.eval_steps > 0);
    need_rows("training.eval_metric", config.training.eval_metric != AnswerMetric::none);
    check_answers(config, problems);
    check_best(config, problems);
}

void check_data(const Config& config, Problems& problems) {
    const DataOptions& data = config.data;
    problems.check({"data.train_file", "data.datasets"}, [&] {
        if (!data.train_file.empty() && !data.datasets.empty())
            throw Error("option.conflict", "data.train_file and data.datasets are both given",
                        "Training rows come from one of them.");
    });
    problems.check({"data.datasets"}, [&] { check_weights(data); });
    problems.check({"data.train_on_prompt", "data.train_on_last_turn_only"}, [&] {
        if (data.train_on_prompt && data.train_on_last_turn_only)
            throw Error("option.conflict",
                        "data.train_on_prompt and data.train_on_last_turn_only contradict each other",
                        "Leave one of them out.");
    });
    problems.check({"data.packing", "training.max_tokens_per_batch"}, [&] {
        if (data.packing && config.training.max_tokens_per_batch > 0)
            throw Error("option.conflict", "data.packing and training.max_tokens_per_batch are both given",
                        "Packing fills rows of max_seq_length, max_tokens_per_batch fills micro-batches; choose one.");
    });
    check_evaluation(config, problems);
}

/// Of options that differ from their defaults, those that the objective has no use for.
void check_preference(const Config& config, Problems& problems) {
    const Objective objective = config.training.objective;
    const PreferenceOptions& p = config.preference;
    const PreferenceOptions defaults;
    const bool dpo = objective == Objective::dpo, kto = objective == Objective::kto,
               prefers = compares_answers(objective);
    const bool simpo = p.loss_type == PreferenceLoss::simpo;
    const auto only_for = [&](const char* option, bool given, bool serves, const char* what) {
        problems.check({"training.objective", option}, [&] {
            if (given && !serves)
                throw Error("option.no-effect", cat(option, " serves ", what), cat("Leave ", option, " out."));
        });
    };
    const char* const any = "training.objective dpo, orpo and kto";
    only_for("preference.loss_type", p.loss_type != defaults.loss_type, dpo, "training.objective dpo");
    only_for("preference.beta", p.beta != defaults.beta, prefers, any);
    only_for("preference.reference", p.reference != defaults.reference, (dpo && !simpo && !p.reference_free) || kto,
             "objectives with a reference: kto, and dpo but for simpo and reference_free");
    only_for("preference.reference_free", p.reference_free, dpo && !simpo,
             "training.objective dpo with another loss_type than simpo, which has no reference");
    only_for("preference.label_smoothing", p.label_smoothing != 0,
             dpo && p.loss_type != PreferenceLoss::hinge && p.loss_type != PreferenceLoss::ipo,
             "training.objective dpo with loss_type sigmoid, robust or simpo");
    only_for("preference.simpo_gamma", p.simpo_gamma != defaults.simpo_gamma, dpo && simpo,
             "preference.loss_type simpo");
    only_for("preference.share_prompt", !p.share_prompt, prefers, any);
    only_for("preference.rpo_alpha", p.rpo_alpha != 0, dpo, "training.objective dpo");
    only_for("preference.desirable_weight", p.desirable_weight != 1, kto, "training.objective kto");
    only_for("preference.undesirable_weight", p.undesirable_weight != 1, kto, "training.objective kto");
    const auto not_for_answers = [&](const char* option, bool given) {
        problems.check({"training.objective", option}, [&] {
            if (given && prefers)
                throw Error("option.no-effect",
                            cat(option, " serves training.objective sft; preferences are about answers"),
                            cat("Leave ", option, " out."));
        });
    };
    not_for_answers("data.train_on_prompt", config.data.train_on_prompt);
    not_for_answers("data.train_on_last_turn_only", config.data.train_on_last_turn_only);
    problems.check({"training.objective", "data.long_rows"}, [&] {
        if (prefers && config.data.long_rows == LongRows::split)
            throw Error("option.unsupported",
                        "data.long_rows split would part an answer from its prompt and its verdict",
                        "Take truncate or drop.");
    });
}

void check_distill(const Config& config, Problems& problems) {
    const DistillOptions& d = config.distill;
    const DistillOptions defaults;
    const bool distills = config.training.objective == Objective::distill;
    problems.check({"training.objective", "distill.teacher"}, [&] {
        if (distills && !d.teacher)
            throw Error("option.missing",
                        "training.objective distill learns from a teacher, and distill.teacher is missing",
                        "Name a model folder, or a file of `unsloth-train score --top_k N`.");
    });
    const auto serves = [&](const char* option, bool given) {
        problems.check({"training.objective", option}, [&] {
            if (given && !distills)
                throw Error("option.no-effect", cat(option, " serves training.objective distill"),
                            cat("Leave ", option, " out."));
        });
    };
    serves("distill.teacher", d.teacher.has_value());
    serves("distill.teacher_adapter", d.teacher_adapter.has_value());
    serves("distill.teacher_load_in_4bit", d.teacher_load_in_4bit);
    serves("distill.teacher_device_map", d.teacher_device_map != defaults.teacher_device_map);
    serves("distill.divergence", d.divergence != defaults.divergence);
    serves("distill.alpha", d.alpha != defaults.alpha);
    problems.check({"distill.divergence", "distill.jsd_beta"}, [&] {
        if (d.jsd_beta != defaults.jsd_beta && d.divergence != Divergence::jsd)
            throw Error("option.no-effect", "distill.jsd_beta serves distill.divergence jsd",
                        "Leave distill.jsd_beta out.");
    });
    problems.check({"distill.teacher_device_map"}, [&] {
        ModelOptions teacher = config.model;
        teacher.device_map = d.teacher_device_map;
        (void)DeviceMap(teacher);
    });
}

void settle_warmup(LoadedConfig& loaded, Problems& problems) {
    TrainingOptions& training = loaded.config.training;
    if (training.warmup_ratio == 0) return;
    problems.check({"training.warmup_steps", "training.warmup_ratio"}, [&] {
        if (training.warmup_steps > 0 && loaded.is_given("training.warmup_steps"))
            throw Error("option.conflict", "training.warmup_steps and training.warmup_ratio are both given",
                        "Set one of them to 0: --warmup_steps 0 lets the ratio count.");
    });
    training.warmup_steps = 0;
}

void check_training(const TrainingOptions& training, Problems& problems) {
    problems.check({"training.output_dir"}, [&] {
        if (training.output_dir.empty())
            throw Error("option.invalid-value", "training.output_dir is empty", "Name a folder to write to.");
    });
    problems.check({"training.resume_from_checkpoint", "training.overwrite_output_dir"}, [&] {
        if (training.resume_from_checkpoint && training.overwrite_output_dir)
            throw Error("option.conflict",
                        "training.resume_from_checkpoint and training.overwrite_output_dir are both given",
                        "Go on with the run, or start it afresh.");
    });
    problems.check({"training.lr_scheduler_type", "training.lr_scheduler_kwargs"}, [&] {
        // Throws for what it cannot read. Where the rate comes from a rule, the trainer settles it and calls again.
        if (training.learning_rate) schedule_options(training, /*total_steps=*/0);
    });
}

/// Of report_to: wandb is TensorBoard's files, and the endpoint has a port.
void settle_reports(LoadedConfig& loaded, Problems& problems) {
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
    problems.check({"training.report_to"}, [&] { refuse_duplicates(names, "training.report_to"); });
    problems.check({"training.report_to", "logging.metrics_file"}, [&] {
        if (has("html") && logging.metrics_file.empty())
            throw Error("option.no-effect",
                        "training.report_to html draws what logging.metrics_file holds, which is none",
                        "Give logging.metrics_file a name, or leave html out.");
    });
}

void check_distributed(const Config& config, Problems& problems) {
    const DistributedOptions& distributed = config.distributed;
    const DistributedOptions defaults;
    const std::string context = cat("distributed.cp_size ", distributed.cp_size, " does not go with ");
    problems.check({"distributed.cp_size", "training.objective"}, [&] {
        if (distributed.cp_size > 1 && config.training.objective != Objective::sft)
            throw Error("parallel.unsupported",
                        context +
                            "an objective that looks at whole answers (training.objective): its ranks "
                            "have parts of the rows",
                        "Train sft, or take tp_size, pp_size or zero_stage.");
    });
    problems.check({"distributed.cp_size", "model.dtype"}, [&] {
        if (distributed.cp_size > 1 && config.model.dtype == spec::DType::f16)
            throw Error("parallel.unsupported", context + "model.dtype float16: sums over ranks are in bf16 or fp32",
                        "Use bfloat16.");
    });
    const auto for_pipelines = [&](const char* option, bool given) {
        problems.check({option, "distributed.pp_size"}, [&] {
            if (given && distributed.pp_size == 1)
                throw Error("option.no-effect", cat(option, " serves distributed.pp_size above 1"),
                            cat("Leave ", option, " out."));
        });
    };
    for_pipelines("distributed.pipeline_schedule", distributed.pipeline_schedule != defaults.pipeline_schedule);
    for_pipelines("distributed.pipeline_micro_batches", distributed.pipeline_micro_batches != 0);
}

}  // namespace

void require_distributed(const Config& config) {
    Problems problems;
    check_distributed(config, problems);
    problems.raise();
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

void settle(LoadedConfig& loaded, Problems& problems) {
    const Config& config = loaded.config;
    if (config.lora.finetuning_type == FinetuningType::full) {
        settle_full_training(loaded, problems);
    } else {
        settle_precision(loaded, problems);
        check_lora(config.lora, config.training.learning_rate, problems);
    }
    check_compute_dtype(config, problems);
    check_mantissa(config, problems);
    settle_warmup(loaded, problems);
    settle_reports(loaded, problems);
    check_data(config, problems);
    check_preference(config, problems);
    check_distill(config, problems);
    check_training(config.training, problems);
    check_distributed(config, problems);
    problems.check({"model.device_map"}, [&] { (void)DeviceMap(config.model); });
    problems.check({"model.max_memory"}, [&] { max_memory(config.model, 0); });
    problems.check({"hardware.allocator"}, [&] { (void)allocator_settings(config.hardware); });
    problems.check({"hardware.device"}, [&] { check_device(config.hardware.device, "hardware.device"); });
}

}  // namespace unsloth::config
