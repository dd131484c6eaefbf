// Of TRL 1.16 (its scripts' arguments) and of Unsloth (those of from_pretrained, get_peft_model and SFTConfig). The
// fields of SFTConfig, TrainingArguments and LoraConfig are known by the option table and by peer_fields.
#include "config/import/importer.h"
#include "unsloth/core/error.h"

namespace unsloth::config {
namespace {

void set_defaults(Importer& importer, bool unsloth) {
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

const std::vector<PeerField>& fields() {
    static const std::vector<PeerField> table = [] {
        const auto& off = PeerRows::off;
        PeerRows rows;
        rows.means("model_name_or_path", "model.path", {}, {nullptr})
            .means("model_name", "model.path", {}, {nullptr})
            .means("lora_r", "lora.r", {}, {nullptr})
            .means("lora_modules_to_save", "lora.modules_to_save", {}, {nullptr})
            .only({"lora_task_type"}, {"CAUSAL_LM", nullptr}, "causal language models alone are trained")
            .only({"lora_target_parameters"}, off, "lora.target_modules says what is trained")
            .only({"model_revision", "revision", "tokenizer_revision"}, {nullptr, "main"},
                  "model.path ORG/NAME@REVISION names one of the hub")
            .any({"use_bnb_nested_quant"}, "model.load_in_4bit quantises the scales too")
            .only({"dataset_config"}, {nullptr, "default"},
                  "a configuration of a hub's data set; ORG/NAME/FOLDER names its files")
            .any({"dataset_streaming", "streaming", "ignore_bias_buffers"}, "rows are read as they come, into a cache")
            .only({"tokenizer_name"}, {nullptr}, "the tokenizer lies in the model's folder")
            .any({"fix_tokenizer", "model_patcher", "device_map_planner_kwargs", "temporary_location", "max_lora_rank",
                  "disable_log_stats", "gpu_memory_utilization", "fast_inference", "float8_kv_cache",
                  "unsloth_vllm_standby"},
                 "it serves Unsloth's patches of transformers, or vLLM")
            .only({"beta", "label_smoothing", "simpo_gamma", "cpo_alpha", "rpo_alpha", "desirable_weight",
                   "undesirable_weight"},
                  {nullptr},
                  "say training.objective dpo, orpo or kto, which the file does not, and this in section preference")
            .only({"max_prompt_length", "max_completion_length"}, {nullptr},
                  "model.max_seq_length is of the prompt and an answer together")
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

/// Written of what Unsloth and PEFT call random_state, and the trainer seed.
void import_seed(Importer& importer) {
    const auto state = importer.take("random_state"), seed = importer.take("seed");
    if (seed) importer.set("seed", "training.seed", *seed);
    if (!state) return;
    if (!seed) return importer.set("random_state", "training.seed", *state);
    if (*state != *seed)
        importer.note("random_state", cat(shown(*state), ": training.seed draws adapters and rows alike"));
}

/// Whether a test split of the same data set is evaluated on.
void import_data(Importer& importer) {
    const auto name = importer.take_text("dataset_name");
    const std::string train = importer.take_text("dataset_train_split").value_or("train");
    const Json test = importer.take("dataset_test_split").value_or(nullptr);
    const Json list = importer.take("datasets").value_or(Json::array());
    const auto held_out = importer.take("test_split_size");
    std::vector<ImportedSource> sources;
    if (name) sources.push_back({*name, DataFormat::automatic, train == "train" ? "" : train, {}, Json::object()});
    for (const Json& one : list) {
        if (!one.is_object() || !one.contains("path") || !one["path"].is_string()) {
            importer.lose("datasets", cat(shown(one), ": a data set is an object with a path"));
            continue;
        }
        const std::string split = one.value("split", "train");
        sources.push_back({one["path"], DataFormat::automatic, split == "train" ? "" : split, {}, Json::object()});
        for (const auto& [field, value] : one.items())
            if (field != "path" && field != "split" && !value.is_null())
                importer.lose("datasets." + field, cat(shown(value), ": the data set is read without it"));
    }
    if (held_out) importer.set("test_split_size", "data.val_size", *held_out);
    const bool named_test = test.is_string();
    const Json strategy = importer.look("eval_strategy");
    const bool evaluates = held_out.has_value();
    if (!evaluates && strategy.is_string() && strategy != "no") {
        importer.lose("eval_strategy",
                      cat(shown(strategy), ": the split ", named_test ? shown(test) : "test",
                          " has to be named: --data.eval_file FILE, or --data.val_size N of the training rows"));
        for (const char* key : {"eval_strategy", "eval_steps"}) importer.take(key);
    }
    import_evaluation(importer, "no", evaluates);
    set_sources(importer, "dataset_name", sources);
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
    const Json modules = theirs ? *theirs : own.value_or(nullptr);
    if (full) {
        if (!modules.is_null())
            importer.note("target_modules", "has no effect: without use_peft all weights are trained");
        return;
    }
    if (modules.is_null() || modules.empty()) {
        // PEFT's default for the models that are trained here.
        if (!unsloth) importer.set("lora_target_modules", "lora.target_modules", {"q_proj", "v_proj"});
    } else if (modules.is_string()) {
        importer.set("lora_target_modules", "lora.target_modules",
                     modules == "all-linear" ? modules : Json::array({modules}));
    } else {
        const bool all = modules == Json::array({"all-linear"});
        importer.set("lora_target_modules", "lora.target_modules", all ? Json("all-linear") : modules);
    }
}

/// With bf16 (which is on unless fp16 is), from_pretrained's dtype is that of the copy that is trained, not of the
/// computation.
void import_types(Importer& importer) {
    const auto dtype = importer.take("dtype"), former = importer.take("torch_dtype");
    const Json bf16 = importer.look("bf16"), fp16 = importer.look("fp16");
    const Json type = dtype ? *dtype : former.value_or(nullptr);
    const bool says = !bf16.is_null() || fp16 == true;
    import_precision(importer, bf16 == false ? "" : "bfloat16");
    if (type.is_null() || type == "auto") return;
    if (says) return importer.note("torch_dtype, dtype", "has no effect: bf16 and fp16 say what is computed in");
    importer.set("dtype", "model.dtype", type);
}

}  // namespace

void import_trl(Importer& importer) {
    bool unsloth = false;
    for (const char* key : {"model_name", "use_gradient_checkpointing", "max_seq_length", "random_state"})
        unsloth = unsloth || !importer.look(key).is_null();
    unsloth = unsloth && importer.look("model_name_or_path").is_null();  // TRL had max_seq_length once
    set_defaults(importer, unsloth);
    import_adapter(importer, unsloth);
    import_types(importer);
    import_seed(importer);
    import_data(importer);
    import_warmup(importer);
    import_saving(importer, "steps");
    import_best(importer, "early_stopping_patience");
    importer.take_rest(fields(), true);
}

}  // namespace unsloth::config
