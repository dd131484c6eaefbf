// Of axolotl 0.19: the fields that depend on each other.
#include <algorithm>
#include <cmath>
#include <set>

#include "import/axolotl_fields.h"
#include "import/axolotl_source.h"
#include "import/model_names.h"
#include "import/policy_fields.h"
#include "unsloth/core/error.h"
#include "unsloth/spec/model_spec.h"

namespace unsloth::import {
namespace {

void set_defaults(Importer& importer) {
    importer.set_default("model.max_seq_length", 512);
    importer.set_default("model.load_in_4bit", false);
    importer.set_default("data.overflow_strategy", "drop");
    importer.set_default("training.output_dir", "./model-out");
    importer.set_default("training.per_device_train_batch_size", 1);
    importer.set_default("training.gradient_accumulation_steps", 1);
    importer.set_default("training.num_train_epochs", 1);
    importer.set_default("training.lr_scheduler_type", "cosine");
    importer.set_default("training.warmup_steps", 0);
    importer.set_default("training.weight_decay", 0);
    importer.set_default("training.optim", "adamw_torch");
    importer.set_default("training.seed", 42);
    importer.set_default("training.save_total_limit", 4);
}

/// lora_target_modules, and all projections with lora_target_linear.
std::optional<Json> targets_of(Importer& importer) {
    Json modules = importer.take("lora_target_modules").value_or(nullptr);
    const bool linear = importer.take_flag("lora_target_linear"), named = !modules.is_null() && !modules.empty();
    if (named && modules != "all-linear") {
        const auto projections = projections_of(importer, "lora_target_modules", modules);
        if (!projections) return linear ? std::optional<Json>("all-linear") : std::nullopt;
        modules = *projections;
    }
    if (!linear) return named ? std::optional<Json>(modules) : std::nullopt;
    Json all = Json::array();
    for (int i = 0; i < spec::separate_projections; ++i) all.push_back(name_of(static_cast<spec::Projection>(i)));
    if (modules.is_array())
        for (const Json& module : modules)
            if (std::find(all.begin(), all.end(), module) == all.end()) all.push_back(module);
    return all;
}

void import_adapter(Importer& importer) {
    const auto adapter = importer.take_text("adapter");
    bool in_4bit = importer.take_flag("load_in_4bit");
    const bool in_8bit = importer.take_flag("load_in_8bit");
    if (!adapter) {
        importer.set("adapter", "lora.finetuning_type", "full");
        for (const auto& [key, given] : {std::pair{"load_in_4bit", in_4bit}, std::pair{"load_in_8bit", in_8bit}})
            if (given) importer.lose(key, "without an adapter all weights are trained, in 16 bit");
        for (const char* key : {"lora_target_modules", "lora_target_linear", "lora_modules_to_save"})
            if (const auto given = importer.take(key); given && *given != false)
                importer.note(key, "has no effect: without an adapter all weights are trained");
        return;
    }
    if (*adapter != "lora" && *adapter != "qlora")
        importer.lose("adapter", cat(*adapter, ": LoRA and full fine-tuning are there; lora is written"));
    if (*adapter == "qlora" && !in_4bit) {
        importer.note("adapter", "qlora is of a base in 4 bit: model.load_in_4bit is true, as axolotl asks for");
        in_4bit = true;
    }
    importer.set("adapter", "lora.finetuning_type", "lora");
    importer.set("load_in_4bit", "model.load_in_4bit", in_4bit);
    if (in_8bit) importer.set("load_in_8bit", "model.load_in_8bit", true);
    const auto targets = targets_of(importer);
    if (!targets)
        importer.note("lora_target_modules",
                      "neither it nor lora_target_linear names any: all projections get adapters");
    import_modules(importer, "lora_target_modules", targets, "lora_modules_to_save");
}

/// Rows are never padded; other tokens than the folder's change the labels.
void import_special_tokens(Importer& importer) {
    const Json tokens = importer.take("special_tokens").value_or(nullptr), model = importer.look("base_model");
    if (tokens.is_null() || tokens.empty()) return;
    if (!tokens.is_object()) return importer.lose("special_tokens", cat(shown(tokens), ": an object is expected"));
    Json own = Json::object();
    for (const auto& [name, token] : tokens.items()) {
        const std::string key = cat("special_tokens.", name);
        const bool same = token.is_string() && model.is_string() && has_special_token(model, name, token);
        if (name == "pad_token")
            importer.note(key, "has no effect: rows are not padded");
        else if (same)
            importer.note(key, cat(shown(token), " is the tokenizer's own"));
        else if (token.is_string() && (name == "bos_token" || name == "eos_token" || name == "unk_token"))
            own[name] = token;
        else if (!token.is_null())
            importer.lose(key, cat(shown(token), ": the tokenizer's own is taken; set it in the model's folder"));
    }
    if (!own.empty()) importer.set("special_tokens", "model.special_tokens", own);
}

/// Templates name the tokens that end their turns.
void import_turn_ends(Importer& importer) {
    const std::vector<std::string> ends = importer.take_names("eot_tokens");
    for (const std::string& token : ends) {
        if (ends_turn(token))
            importer.note("eot_tokens",
                          cat(token, ": an answer is learned with the token that ends it in the template"));
        else
            importer.lose("eot_tokens", cat(token, ": the chat template says where a turn ends"));
    }
}

/// A base in MXFP4 keeps its values either way; experts are held as the other weights are.
void import_quantized_base(Importer& importer) {
    const auto kind = importer.take("model_quantization_config"),
               how = importer.take("model_quantization_config_kwargs");
    const bool dequantizes =
        how && how->is_object() && how->size() == 1 && how->value("dequantize", Json(false)) == true;
    if (kind && *kind == "Mxfp4Config" && (!how || how->empty() || dequantizes))
        importer.note("model_quantization_config",
                      "experts in MXFP4 stay so while they are frozen: the values are the same");
    else if (kind || (how && !how->empty()))
        importer.lose("model_quantization_config",
                      cat(shown(kind ? *kind : *how),
                          ": model.load_in_4bit, load_in_8bit and precision say what the base is held in"));
    const auto experts = importer.take("quantize_moe_experts");
    const auto& model = importer.config().model;
    if (experts && *experts == true && !model.load_in_4bit && !model.load_in_8bit)
        importer.lose("quantize_moe_experts", "true: neither load_in_4bit nor load_in_8bit is on");
    else if (experts && *experts == true)
        importer.note("quantize_moe_experts", "experts are quantised as the other projections are");
    const Json path = importer.look("base_model");
    const bool holds_experts = path.is_string() && has_experts(path);
    if (holds_experts && (!experts || *experts == false) && (model.load_in_4bit || model.load_in_8bit))
        importer.lose(model.load_in_4bit ? "load_in_4bit" : "load_in_8bit",
                      "experts stay in 16 bit there unless quantize_moe_experts is true, and are quantised here; "
                      "model.precision says otherwise");
}

void import_template(Importer& importer) {
    const auto name = importer.take("chat_template");
    const auto text = importer.take_text("chat_template_jinja");
    const bool named = name && *name != "jinja";
    if (text && named) importer.note("chat_template_jinja", cat("has no effect: chat_template is ", shown(*name)));
    if (name && !named && !text)
        importer.lose("chat_template", "jinja: chat_template_jinja, which has the text, is not given");
    if (text && !named) {
        importer.set("chat_template_jinja", "data.template", *text);
    } else if (named) {
        if (const auto ours = axolotl_template(importer, "chat_template", *name))
            importer.set("chat_template", "data.template", *ours);
    }
}

/// Section `trl`, which is TRL's GRPOConfig of release 1.9.
void import_axolotl_policy(Importer& importer, const std::string& rl) {
    importer.spread("trl");
    const auto beta = importer.take("rl_beta");
    const bool own_beta = !importer.look("trl.beta").is_null();
    import_policy(
        importer,
        {.prefix = "trl.", .rows = "micro_batch_size", .lengths = {"sequence_len"}, .bias_correction = false});
    if (beta && own_beta)
        importer.note("rl_beta", "has no effect: trl.beta is given too, and wins");
    else if (beta)
        importer.set("rl_beta", "grpo.beta", *beta);
    if (rl == "gdpo") importer.set("rl", "grpo.multi_objective_aggregation", "normalize_then_sum");
    if (importer.take("vllm")) importer.note("vllm", "has no effect: completions are sampled by the model in training");
    for (const char* key : {"orpo_alpha", "dpo_loss_type", "dpo_label_smoothing", "rpo_alpha", "cpo_alpha",
                            "simpo_gamma", "kto_desirable_weight", "kto_undesirable_weight"})
        if (importer.take(key)) importer.note(key, "has no effect: it applies to another rl");
}

/// The objective: `rl` of the file, or nothing where rows are trained on as they are.
std::string import_objective(Importer& importer) {
    std::string rl = importer.take_text("rl").value_or("");
    if (rl == "grpo" || rl == "gdpo") return import_axolotl_policy(importer, rl), "grpo";
    const bool dpo = rl == "dpo", ipo = rl == "ipo", simpo = rl == "simpo", orpo = rl == "orpo", kto = rl == "kto";
    if (dpo || ipo || simpo || orpo || kto) {
        importer.set("rl", "training.objective", orpo || kto ? rl : "dpo");
        if (ipo || simpo) importer.set("rl", "preference.loss_type", rl);
        if (simpo) importer.set_default("preference.rpo_alpha", 1);  // cpo_alpha of TRL's CPOConfig
    } else if (!rl.empty()) {
        importer.lose("rl",
                      cat(rl, ": dpo, ipo, simpo, orpo, kto, grpo and gdpo are there; training.objective stays sft"));
        rl.clear();
    }
    struct Mapped {
        const char *key, *option;
        bool applies;
    };
    for (const auto& [key, option, applies] :
         {Mapped{"rl_beta", "preference.beta", !rl.empty()}, Mapped{"orpo_alpha", "preference.beta", orpo},
          Mapped{"dpo_loss_type", "preference.loss_type", dpo},
          Mapped{"dpo_label_smoothing", "preference.label_smoothing", dpo},
          Mapped{"rpo_alpha", "preference.rpo_alpha", dpo || ipo}, Mapped{"cpo_alpha", "preference.rpo_alpha", simpo},
          Mapped{"simpo_gamma", "preference.simpo_gamma", simpo},
          Mapped{"kto_desirable_weight", "preference.desirable_weight", kto},
          Mapped{"kto_undesirable_weight", "preference.undesirable_weight", kto}}) {
        const auto value = importer.take(key);
        if (!value) continue;
        const bool alone = value->is_array() && value->size() == 1;
        if (applies)
            importer.set(key, option, alone ? value->front() : *value);
        else
            importer.note(key, "has no effect: it applies to another rl");
    }
    return rl;
}

/// axolotl by default cuts documents into pieces, and drops other rows that are too long.
void import_long_rows(Importer& importer, const std::string& key, const std::vector<ImportedSource>& sources) {
    const auto texts = static_cast<std::size_t>(std::count_if(
        sources.begin(), sources.end(), [](const auto& source) { return source.format == DataFormat::text; }));
    const Json strategy = importer.look("excess_length_strategy");
    if (texts > 0 && texts == sources.size()) {
        importer.take("excess_length_strategy");
        importer.set_default("data.overflow_strategy", "split");
        if (!strategy.is_null())
            importer.note("excess_length_strategy", "has no effect: documents are cut into pieces of sequence_len");
    } else if (texts > 0) {
        importer.lose(
            key,
            "documents are cut into pieces of sequence_len there, and other rows are not: data.overflow_strategy "
            "is of all rows");
    }
}

void import_sources(Importer& importer, const std::string& rl) {
    const bool pretraining = !importer.look("pretraining_dataset").is_null();
    const std::string key = pretraining ? "pretraining_dataset" : "datasets";
    Json list = importer.take(key).value_or(Json::array());
    if (!pretraining) importer.take("pretraining_dataset");
    if (list.is_string()) list = Json::array({Json{{"path", list}}});
    if (!list.is_array()) list = Json::array({list});
    std::vector<ImportedSource> sources;
    std::set<std::string> templates;
    for (std::size_t i = 0; i < list.size(); ++i) {
        if (pretraining && list[i].is_object() && !list[i].contains("type")) list[i]["type"] = "pretrain";
        ImportedSource source = read_axolotl_source(importer, cat(key, "[", i, "]"), list[i], rl);
        if (source.path.empty()) continue;
        templates.insert(source.template_name);
        sources.push_back(std::move(source));
    }
    import_long_rows(importer, key, sources);
    if (templates.size() == 1 && !templates.begin()->empty()) {
        importer.set(key, "data.template", *templates.begin());
        for (ImportedSource& source : sources) source.template_name.clear();
    }
    set_sources(importer, key, sources);
    if (pretraining && !importer.look("datasets").is_null()) {
        importer.take("datasets");
        importer.lose("datasets", "pretraining_dataset is given too, and alone is taken");
    }
}

/// Whether there are rows to evaluate on.
bool import_evaluation_rows(Importer& importer, const std::string& rl) {
    const auto tests = importer.take("test_datasets");
    if (!tests || tests->empty()) return importer.look("val_set_size").is_number() && importer.look("val_set_size") > 0;
    const Json list = tests->is_array() ? *tests : Json::array({*tests});
    std::vector<NamedSource> sources;
    for (std::size_t i = 0; i < list.size(); ++i) {
        ImportedSource source = read_axolotl_source(importer, cat("test_datasets[", i, "]"), list[i], rl);
        const std::string name = std::filesystem::path(source.path).stem().string();
        sources.emplace_back(name, std::move(source));
    }
    return set_evaluation_sources(importer, "test_datasets", sources);
}

/// Steps as axolotl has them, a share of the run where they are below 1. A share of all of it is none.
double axolotl_steps(double per_epoch, double epochs, double steps) {
    if (per_epoch <= 0) return steps;
    const double share = 1 / (per_epoch * epochs);
    return share < 1 ? share : 0;
}

double axolotl_epochs(const Importer& importer) {
    const Json epochs = importer.look("num_epochs");
    return epochs.is_number() ? epochs.get<double>() : 1;
}

/// What comes so often an epoch. axolotl makes a share of the run of it, which max_steps may end within an epoch.
void import_often(Importer& importer, const char* field, const char* option, const char* steps_option) {
    const Json most = importer.look("max_steps");
    const auto often = importer.take(field);
    if (!often || *often == 0) return;
    if (most.is_number() && most > 0 && often->is_number())
        return importer.set(field, steps_option, axolotl_steps(often->get<double>(), axolotl_epochs(importer), 0));
    importer.set(field, option, *often);
}

/// Early stopping makes axolotl load the best one, where every checkpoint has an evaluation.
void import_best_of_patience(Importer& importer) {
    const TrainingOptions& training = importer.config().training;
    if (importer.look("early_stopping_patience").is_null() || importer.look("load_best_model_at_end") == true) return;
    const double epochs = axolotl_epochs(importer),
                 saves = axolotl_steps(training.saves_per_epoch, epochs, training.save_steps),
                 evals = axolotl_steps(training.evals_per_epoch, epochs, training.eval_steps);
    if (saves > 0 && evals > 0 && std::fmod(saves, evals) == 0)
        importer.set_default("training.load_best_model_at_end", true);
}

void import_precision_of_adapters(Importer& importer) {
    const Json checkpointing = importer.take("gradient_checkpointing").value_or(nullptr);
    if (checkpointing == "offload") {
        importer.set("gradient_checkpointing", "training.gradient_checkpointing", "full+offload");
    } else if (checkpointing == "offload_disk") {
        importer.lose("gradient_checkpointing", "offload_disk: what layers keep goes to host memory (full+offload)");
    } else if (!checkpointing.is_null()) {
        importer.set("gradient_checkpointing", "training.gradient_checkpointing", checkpointing);
    }
    import_precision(importer, "bfloat16", importer.config().model.load_in_8bit ? "float16" : "float32");
}

void import_optimizer(Importer& importer) {
    const auto optimizer = importer.take("optimizer");
    if (optimizer && *optimizer == "adamw_torch_8bit") {
        importer.set("optimizer", "training.optim", "adamw_8bit");
        importer.note("optimizer",
                      "adamw_torch_8bit is taken as adamw_8bit: bitsandbytes' code of moments, not torchao's");
    } else if (optimizer) {
        importer.set("optimizer", "training.optim", *optimizer);
    }
    const auto schedule = importer.take("lr_scheduler");
    const auto least = importer.take("cosine_min_lr_ratio");
    if (least && *least != 0 && (!schedule || *schedule == "cosine")) {
        importer.set("lr_scheduler", "training.lr_scheduler_type", "cosine_with_min_lr");
        importer.set("cosine_min_lr_ratio", "training.lr_scheduler_kwargs", {{"min_lr_rate", *least}});
    } else if (schedule) {
        importer.set("lr_scheduler", "training.lr_scheduler_type", *schedule);
        if (least && *least != 0)
            importer.note("cosine_min_lr_ratio", cat("has no effect: lr_scheduler is ", shown(*schedule)));
    }
    const auto says = [&](const char* key) { return !importer.look(key).is_null() && importer.look(key) != 0; };
    if (says("warmup_steps") || says("warmup_ratio")) return import_warmup(importer);
    importer.set_default("training.warmup_ratio", 0.03);  // of axolotl, at most 100 steps
    for (const char* key : {"warmup_steps", "warmup_ratio"})
        if (importer.take(key)) importer.note(key, "0 is taken for absent by axolotl: training.warmup_ratio is 0.03");
}

}  // namespace

void import_axolotl(Importer& importer) {
    set_defaults(importer);
    const bool packed = importer.take_flag("sample_packing");
    const Json rl_said = importer.look("rl");
    if (packed && (rl_said == "grpo" || rl_said == "gdpo"))
        importer.note("sample_packing", "has no effect: each completion is a row of its own");
    else if (packed)
        importer.set("sample_packing", "data.packing", true);
    import_adapter(importer);
    import_axolotl_model(importer);  // looks at the template, which is taken next
    import_template(importer);
    import_special_tokens(importer);
    import_turn_ends(importer);
    import_quantized_base(importer);
    const std::string rl = import_objective(importer);
    if (rl == "grpo")
        import_dropout_of_policy(importer);
    else if (!rl.empty())
        import_dropout_of_preferences(importer, "lora_dropout");
    import_sources(importer, rl);
    import_precision_of_adapters(importer);
    import_sharding(importer);
    import_optimizer(importer);
    const bool evaluates = import_evaluation_rows(importer, rl);
    const bool says_often = !importer.look("saves_per_epoch").is_null() && importer.look("saves_per_epoch") != 0;
    import_often(importer, "saves_per_epoch", "training.saves_per_epoch", "training.save_steps");
    if (evaluates) import_often(importer, "evals_per_epoch", "training.evals_per_epoch", "training.eval_steps");
    const bool says_saving = !importer.look("save_steps").is_null() || !importer.look("save_strategy").is_null();
    if (says_saving) {
        import_saving(importer, "steps");
    } else if (!says_often) {
        importer.set_default("training.saves_per_epoch", 1);
    }
    if (evaluates) import_evaluation(importer, importer.look("eval_steps").is_null() ? "no" : "steps", evaluates);
    for (const char* key : {"save_steps", "save_strategy"}) importer.take(key);  // null
    for (const char* key : {"eval_steps", "evals_per_epoch", "eval_strategy", "evaluation_strategy"})
        if (const auto given = importer.take(key); given && *given != "no" && *given != false && *given != 0)
            importer.note(key, "has no effect: there are no rows to evaluate on");
    if (says_saving || says_often) import_best_of_patience(importer);
    import_best(importer, "early_stopping_patience");
    import_upload(importer, /*id_alone=*/true);
    for (const std::string& plugin : importer.take_names("plugins"))
        importer.note("plugins", cat(plugin, ": nothing is loaded; what its fields ask for is listed with them"));
    importer.take_rest(axolotl_fields(), false);
}

}  // namespace unsloth::import
