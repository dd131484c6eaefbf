// Of TRL 1.16 (its scripts' arguments, and those of its trainers of preferences) and of Unsloth (those of
// from_pretrained, get_peft_model and SFTConfig). The fields of SFTConfig, TrainingArguments and LoraConfig are known
// by the option table and by peer_fields, those of GRPOConfig and RLOOConfig by policy_fields.
#include <algorithm>

#include "import/policy_fields.h"
#include "import/trl_data.h"
#include "unsloth/core/error.h"

namespace unsloth::import {
namespace {

void set_trl_defaults(Importer& importer, bool unsloth) {
    importer.set_default("model.load_in_4bit", unsloth);
    importer.set_default("model.max_seq_length", unsloth ? 2048 : 1024);
    importer.set_default("lora.lora_alpha", unsloth ? 16 : 32);
    importer.set_default("lora.lora_dropout", unsloth ? 0 : 0.05);
    importer.set_default("training.per_device_train_batch_size", 8);
    importer.set_default("training.gradient_accumulation_steps", 1);
    importer.set_default("training.num_train_epochs", 3);
    importer.set_default("training.learning_rate", 2e-5);
    importer.set_default("training.warmup_steps", 0);
    importer.set_default("training.weight_decay", 0);
    importer.set_default("training.optim", "adamw_torch");
    importer.set_default("training.seed", 42);
    importer.set_default("training.logging_steps", 10);
}

const std::vector<PeerField>& trl_fields() {
    static const std::vector<PeerField> table = [] {
        const auto& off = PeerRows::off;
        PeerRows rows;
        rows.means("model_name_or_path", "model.path", {}, {nullptr})
            .means("model_name", "model.path", {}, {nullptr})
            .means("chat_template", "data.template", {}, {nullptr})
            .means("lora_r", "lora.r", {}, {nullptr})
            .only({"lora_task_type"}, {"CAUSAL_LM", nullptr}, "causal language models alone are trained")
            .means("lora_target_parameters", "lora.target_parameters", {}, {nullptr})
            .only({"tokenizer_revision"}, {nullptr, "main"}, "model.path ORG/NAME@REVISION names one of the hub")
            .aside({"hub_model_revision"},
                   "training.push_to_hub uploads to main; `unsloth-train push --branch` to another branch")
            .any({"use_bnb_nested_quant"}, "model.load_in_4bit quantises the scales too")
            .any({"preprocessing_num_workers"}, "all cores encode rows")
            .any({"dataset_streaming", "streaming", "ignore_bias_buffers"}, "rows are read as they come, into a cache")
            .only({"tokenizer_name"}, {nullptr}, "the tokenizer is in the model's folder")
            .any({"fix_tokenizer", "model_patcher", "device_map_planner_kwargs", "temporary_location", "max_lora_rank",
                  "disable_log_stats", "gpu_memory_utilization", "fast_inference", "float8_kv_cache",
                  "unsloth_vllm_standby"},
                 "it applies to Unsloth's patches of transformers, or vLLM")
            .only(
                {"beta", "label_smoothing", "rpo_alpha", "reference_free"}, off,
                "say \"objective\" in the file, \"dpo\", \"orpo\" or \"kto\": the other fields do not tell which it is")
            .any({"cpo_alpha", "loss_weights"}, "it applies to another trainer")
            .any({"disable_dropout"}, "lora.lora_dropout is the one dropout")
            .any({"precompute_ref_log_probs", "precompute_ref_batch_size"},
                 "the reference's log-probabilities are made once, before the first step")
            .only({"ld_alpha"}, {nullptr, 1}, "the tokens of an answer count alike, however long it is")
            .only({"f_divergence_type"}, {nullptr, "reverse_kl"}, "the reference is compared with by the reverse KL")
            .any({"f_alpha_divergence_coef", "discopop_tau"}, "it applies to another divergence or loss_type")
            .only({"use_weighting"}, off, "pairs count alike")
            .only({"sync_ref_model"}, off, "the reference stays what it was at the start")
            .any({"ref_model_mixup_alpha", "ref_model_sync_steps"}, "it applies to sync_ref_model")
            .only({"alpha"}, {nullptr, 0}, "AlphaPO is not there")
            .only({"generate_during_eval"}, off, "training.sample_prompts names prompts that each evaluation answers")
            .only({"is_encoder_decoder"}, off, "causal language models alone are trained")
            .any({"padding_value", "label_pad_token_id"}, "rows are not padded")
            .only({"model_adapter_name", "ref_adapter_name", "force_use_ref_model", "ref_model_init_kwargs"}, off,
                  "preferences are measured against the base, or the adapter as it was at the start "
                  "(preference.reference)")
            .only({"max_completion_length"}, {nullptr}, "model.max_seq_length is of the prompt and an answer together")
            .only({"num_labels"}, off, "causal language models alone are trained")
            .only({"qat_scheme", "load_in_fp8"}, off,
                  "model.load_in_4bit, load_in_8bit and precision say what the base is held in")
            .only({"finetune_last_n_layers"}, off, "lora.layers_to_transform names the layers that get adapters")
            .only({"offload_layers", "checkpoint_skip_layers"}, {nullptr, false, 0},
                  "training.gradient_checkpointing is for all layers alike");
        return rows.take();
    }();
    return table;
}

/// Releases of TRL that had max_prompt_length cut the prompt alone by truncation_mode, the others whole rows.
void import_prompt_length(Importer& importer) {
    const auto prompt = importer.take("max_prompt_length"), mode = importer.take("truncation_mode");
    const config::Objective objective = importer.config().training.objective;
    const bool preferences = objective == config::Objective::dpo || objective == config::Objective::orpo ||
                             objective == config::Objective::kto;
    if (prompt && preferences) {
        const int64_t whole = importer.config().model.max_seq_length;
        if (prompt->is_number() && whole > 0 && prompt->get<double>() >= static_cast<double>(whole))
            return importer.lose("max_prompt_length", cat(shown(*prompt), ": it leaves no room for an answer"));
        importer.set("max_prompt_length", "preference.max_prompt_length", *prompt);
        if (mode) importer.set("truncation_mode", "preference.truncation_mode", *mode);
        return;
    }
    if (prompt) importer.note("max_prompt_length", "has no effect: it applies to preferences");
    if (mode && *mode != "keep_start")
        importer.lose("truncation_mode",
                      cat(shown(*mode), ": of rows longer than model.max_seq_length the start is kept"));
}

/// Written of what Unsloth and PEFT call random_state, and the trainer seed.
void import_seed(Importer& importer) {
    const auto state = importer.take("random_state"), seed = importer.take("seed");
    if (seed) importer.set("seed", "training.seed", *seed);
    if (!state) return;
    if (!seed) return importer.set("random_state", "training.seed", *state);
    if (*state != *seed)
        importer.note("random_state", cat(shown(*state), ": training.seed draws adapters and rows alike"));
}

void import_adapter(Importer& importer, bool unsloth) {
    const auto use_peft = importer.take("use_peft");
    const bool in_4bit = importer.look("load_in_4bit") == true, in_8bit = importer.look("load_in_8bit") == true;
    const bool full = importer.take_flag("full_finetuning") || (!unsloth && (!use_peft || *use_peft == false));
    importer.set("use_peft", "lora.finetuning_type", full ? "full" : "lora");
    for (const auto& [key, given] : {std::pair{"load_in_4bit", in_4bit}, std::pair{"load_in_8bit", in_8bit}}) {
        if (!full || !given) continue;
        importer.take(key);
        importer.lose(key, "without use_peft all weights are trained, in 16 bit");
    }
    if (in_8bit && !in_4bit) importer.set("load_in_8bit", "model.load_in_4bit", false);  // Unsloth's default is true
    if (full) importer.set("use_peft", "model.load_in_4bit", false);
    const auto theirs = importer.take("lora_target_modules"), own = importer.take("target_modules");
    Json modules = theirs ? *theirs : own.value_or(nullptr);
    const char* const saved = importer.look("modules_to_save").is_null() ? "lora_modules_to_save" : "modules_to_save";
    if (full) {
        if (!modules.is_null())
            importer.note("target_modules", "has no effect: without use_peft all weights are trained");
        if (const auto names = importer.take(saved); names && !names->empty())
            importer.note(saved, "has no effect: without use_peft all weights are trained");
        return;
    }
    // PEFT's default for the models that are trained here.
    if ((modules.is_null() || modules.empty()) && !unsloth) modules = {"q_proj", "v_proj"};
    if (modules == Json::array({"all-linear"})) modules = "all-linear";
    if (modules.is_string() && modules != "all-linear") modules = Json::array({modules});
    const bool says = !modules.is_null() && !modules.empty();
    import_modules(importer, "lora_target_modules", says ? std::optional(modules) : std::nullopt, saved);
}

/// bf16 is on unless fp16 is, and then from_pretrained's dtype is that of the copy that is trained, not of the
/// computation: of TRL where both are off, of Unsloth where neither is on.
void import_types(Importer& importer, bool unsloth) {
    const auto dtype = importer.take("dtype"), former = importer.take("torch_dtype");
    const Json bf16 = importer.look("bf16"), fp16 = importer.look("fp16");
    const Json type = dtype ? *dtype : former.value_or(nullptr);
    const bool given = !type.is_null() && type != "auto", on = bf16 == true || fp16 == true;
    if (given && !on && (unsloth || bf16 == false)) {
        importer.take("bf16"), importer.take("fp16");
        return importer.set("dtype", "model.dtype", type);
    }
    import_precision(importer, "bfloat16", unsloth ? "" : "float32");
    if (given)
        importer.note(dtype ? "dtype" : "torch_dtype",
                      "has no effect: bf16, on unless it is off, and fp16 say "
                      "what is computed in");
}

void import_length(Importer& importer, bool unsloth) {
    if (importer.is_null("max_length") && !unsloth) {
        importer.take("max_length");
        importer.set("max_length", "model.max_seq_length", nullptr);
    }
    const bool says = !importer.look("max_seq_length").is_null() || !importer.look("max_length").is_null();
    if (!unsloth || says) return;
    importer.take("max_seq_length"), importer.take("max_length");
    importer.note("max_seq_length", "is not given: rows may be as long as the model allows");
    importer.set("max_seq_length", "model.max_seq_length", nullptr);
}

/// By default SFTTrainer trains on all tokens of a conversation.
void import_targets_of_conversations(Importer& importer) {
    if (importer.config().training.objective != Objective::sft) return;
    if (importer.look("assistant_only_loss") == true || !importer.look("completion_only_loss").is_null()) return;
    importer.take("assistant_only_loss");
    importer.note("assistant_only_loss",
                  "is off: of rows {messages} all is learned there, and here the answers alone; "
                  "data.train_on_prompt true is for all tokens");
}

bool any_of(const std::vector<std::string>& names, const std::vector<const char*>& wanted) {
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
        return std::find(wanted.begin(), wanted.end(), name) != wanted.end();
    });
}

std::vector<std::string> names_in(const Json& value) {
    std::vector<std::string> names;
    for (const Json& one : value.is_array() ? value : Json::array({value}))
        if (one.is_string()) names.push_back(one);
    return names;
}

/// DPOConfig's formulas and their weights. We support one formula alone, or one plus the chosen answers' own loss.
void import_dpo_loss(Importer& importer) {
    const Json said = importer.look("loss_type"), weights = importer.take("loss_weights").value_or(nullptr);
    std::vector<std::string> types = importer.take_names("loss_type");
    if (types.empty()) types = {"sigmoid"};
    std::vector<double> factors(types.size(), 1);
    if (weights.is_array() && weights.size() == types.size() &&
        std::all_of(weights.begin(), weights.end(), [](const Json& one) { return one.is_number(); })) {
        factors = weights.get<std::vector<double>>();
    } else if (!weights.is_null()) {
        importer.lose("loss_weights", cat(shown(weights), ": a number for each loss_type is expected"));
    }
    const auto own = std::find(types.begin(), types.end(), "sft");
    if (own != types.end() && types.size() == 2) {
        const auto at = own - types.begin();
        importer.set("loss_type", "preference.rpo_alpha", factors[static_cast<std::size_t>(at)]);
        factors.erase(factors.begin() + at);
        types.erase(own);
    }
    if (types.size() != 1 || types[0] == "simpo")  // CPOConfig's
        return importer.lose("loss_type", cat(shown(said), ": of sigmoid, hinge, ipo and robust one, or one and sft"));
    importer.set("loss_type", "preference.loss_type", types[0]);
    if (factors[0] != 1)
        importer.lose("loss_weights", cat(shown(weights), ": the loss of the pairs has the weight 1, and that of sft ",
                                          "preference.rpo_alpha next to it"));
}

/// CPOConfig's: DPO's losses without a reference, plus the chosen answers' own loss.
void import_cpo_loss(Importer& importer, const std::string& by_default) {
    const Json said = importer.look("loss_type");
    const std::vector<std::string> types = importer.take_names("loss_type");
    if (types.size() > 1) return importer.lose("loss_type", cat(shown(said), ": one alone is expected"));
    const std::string type = types.empty() ? by_default : types[0];
    importer.set("loss_type", "preference.loss_type", type);
    if (type != "simpo") importer.set("loss_type", "preference.reference_free", true);
    importer.set("cpo_alpha", "preference.rpo_alpha", importer.take("cpo_alpha").value_or(1));
}

/// GRPOTrainer's file, or RLOOTrainer's: by fields that are theirs alone, or by `objective`.
enum class PolicyTrainer { none, grpo, rloo };
PolicyTrainer policy_trainer(const Importer& importer) {
    const Json said = importer.look("objective");
    if (said.is_string())
        return said == "grpo" ? PolicyTrainer::grpo : said == "rloo" ? PolicyTrainer::rloo : PolicyTrainer::none;
    const auto has = [&](const std::vector<const char*>& keys) {
        return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return !importer.look(key).is_null(); });
    };
    if (has({"normalize_advantages", "reward_clip_range"})) return PolicyTrainer::rloo;
    const bool grpo = has({"num_generations", "reward_funcs", "reward_weights", "num_iterations", "scale_rewards",
                           "steps_per_generation", "generation_batch_size", "epsilon", "epsilon_high",
                           "importance_sampling_level", "mask_truncated_completions"}) ||
                      any_of(names_in(importer.look("loss_type")),
                             {"grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"});
    return grpo ? PolicyTrainer::grpo : PolicyTrainer::none;
}

void import_trl_policy(Importer& importer, bool rloo) {
    importer.take("objective");
    importer.set_default("training.learning_rate", 1e-6);
    import_dropout_of_policy(importer);
    import_policy(importer, {.rows = "per_device_train_batch_size",
                             .lengths = {"max_seq_length", "max_length"},
                             .rloo = rloo,
                             .short_names = true});
}

/// The handbook's recipes say it by their folder alone: recipes/NAME/dpo/config.yaml.
std::string objective_of_folder(Importer& importer) {
    const std::string folder = importer.folder().filename().string();
    if (folder != "dpo" && folder != "orpo" && folder != "kto") return "";
    importer.note("beta", cat("training.objective is ", folder, ", as the file's folder is called"));
    return folder;
}

/// No field says which trainer a file is for, but some are one trainer's alone; `objective` may say it in our words.
void import_preferences(Importer& importer) {
    const auto has = [&](const std::vector<const char*>& keys) {
        return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return !importer.look(key).is_null(); });
    };
    const Json said = importer.look("objective");
    const std::vector<std::string> types = names_in(importer.look("loss_type"));
    const bool cpo = has({"cpo_alpha", "simpo_gamma"}) || any_of(types, {"simpo"});
    std::string objective;
    if (said.is_string())
        objective = said;
    else if (has({"desirable_weight", "undesirable_weight"}) || any_of(types, {"kto", "apo_zero_unpaired"}))
        objective = "kto";
    else if (cpo || has({"f_divergence_type", "loss_weights", "ld_alpha", "discopop_tau", "use_weighting"}) ||
             any_of(types, {"sigmoid", "hinge", "ipo", "robust", "exo_pair", "nca_pair", "bco_pair", "sppo_hard", "aot",
                            "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"}))
        objective = "dpo";
    else if (!importer.look("beta").is_null())
        objective = objective_of_folder(importer);
    if (objective != "dpo" && objective != "kto" && objective != "orpo") return;
    importer.set_default("training.learning_rate", 1e-6);
    if (objective == "kto" && importer.look("train_sampling_strategy").is_null()) {
        importer.set_default("data.shuffle", false);
        importer.note("train_sampling_strategy", "is sequential unless it is said: data.shuffle is false");
    }
    import_preference_fields(importer, "objective", objective, cpo ? "sigmoid" : "");
}

}  // namespace

void import_preference_fields(Importer& importer, const std::string& key, const std::string& objective,
                              const std::string& cpo_loss) {
    const bool dpo = objective == "dpo", kto = objective == "kto", cpo = !cpo_loss.empty();
    importer.set(key, "training.objective", objective);
    import_dropout_of_preferences(importer, "lora_dropout");
    if (dpo && cpo)
        import_cpo_loss(importer, cpo_loss);
    else if (dpo)
        import_dpo_loss(importer);
    else if (const auto type = importer.take("loss_type");
             type && *type != objective && *type != Json::array({objective}))
        importer.lose("loss_type", cat(shown(*type), ": training.objective ", objective, " has one loss"));
    const PreferenceLoss loss = importer.config().preference.loss_type;
    // Of DPOConfig's losses here robust alone reads it; those of older releases did as CPOConfig's do.
    const bool smooths =
        loss == PreferenceLoss::robust || (cpo && (loss == PreferenceLoss::sigmoid || loss == PreferenceLoss::simpo));
    struct Mapped {
        const char* key;
        bool applies;
        Json off;
    };
    for (const auto& [key, applies, off] :
         {Mapped{"beta", true, {}}, Mapped{"label_smoothing", dpo && smooths, 0},
          Mapped{"simpo_gamma", dpo && loss == PreferenceLoss::simpo, 0.5}, Mapped{"rpo_alpha", dpo && !cpo, 0},
          Mapped{"reference_free", dpo && !cpo, false}, Mapped{"desirable_weight", kto, 1},
          Mapped{"undesirable_weight", kto, 1}}) {
        const auto value = importer.take(key);
        if (value && applies)
            importer.set(key, cat("preference.", key), *value);
        else if (value && *value != off)
            importer.note(key, "has no effect: it applies to another trainer or loss_type");
    }
}

/// ORG/NAME@REVISION.
void import_revision(Importer& importer) {
    const char* const key = importer.look("model_name_or_path").is_null() ? "model_name" : "model_name_or_path";
    const auto revision = importer.take_text("model_revision"), other = importer.take_text("revision");
    const std::string name = revision.value_or(other.value_or("main"));
    const Json model = importer.look(key);
    if (name == "main" || !model.is_string()) return;
    importer.take(key);
    importer.set(key, "model.path", cat(model.get<std::string>(), "@", name));
}

/// It ends a text; a template ends each turn of a conversation itself, with this token where it reads it.
void import_end_of_rows(Importer& importer) {
    const Json token = importer.look("eos_token");
    const DataFormat format = importer.config().data.format;
    const bool chat = format == DataFormat::messages || !importer.look("chat_template").is_null();
    if (!token.is_string() || token == "<EOS_TOKEN>") return;  // Unsloth's word for the tokenizer's own
    importer.take("eos_token");
    importer.set("eos_token", "model.special_tokens", {{"eos_token", token}});
    if (!chat) return;
    importer.note("eos_token", "of conversations the template says what ends a turn");
}

/// Conversations bring their own special tokens, and rows are not put together with tokens between.
void import_row_arguments(Importer& importer) {
    const Json arguments = importer.look("dataset_kwargs");
    if (!arguments.is_object() || arguments.empty()) return;
    for (const auto& [key, value] : arguments.items())
        if ((key != "add_special_tokens" && key != "append_concat_token") || value != false) return;
    importer.take("dataset_kwargs");
    importer.note("dataset_kwargs", "says what is done anyway: templates write all special tokens");
}

void import_trl(Importer& importer) {
    const auto has = [&](const std::vector<const char*>& keys) {
        return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return !importer.look(key).is_null(); });
    };
    // TRL had max_seq_length once, but never what get_peft_model takes.
    const bool unsloth = has({"r", "use_gradient_checkpointing", "random_state"}) ||
                         (has({"model_name", "max_seq_length"}) && !has({"model_name_or_path"}));
    set_trl_defaults(importer, unsloth);
    import_adapter(importer, unsloth);
    import_types(importer, unsloth);
    const PolicyTrainer policy = policy_trainer(importer);
    if (policy == PolicyTrainer::none) import_length(importer, unsloth);
    import_seed(importer);
    if (policy == PolicyTrainer::none)
        import_preferences(importer);
    else
        import_trl_policy(importer, policy == PolicyTrainer::rloo);
    import_targets_of_conversations(importer);
    import_sharding(importer);
    import_trl_data(importer);
    import_revision(importer);
    import_end_of_rows(importer);
    import_row_arguments(importer);
    import_warmup(importer);
    import_saving(importer, "steps");
    import_best(importer, "early_stopping_patience");
    import_upload(importer);
    if (policy == PolicyTrainer::none) import_prompt_length(importer);
    importer.take_rest(trl_fields(), true);
}

}  // namespace unsloth::import
