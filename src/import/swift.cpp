// Of ms-swift 4.6 (the arguments of `swift sft` and `swift rlhf`, as --config FILE takes them and args.json has them).
// The fields of TrainingArguments are known by the option table and by peer_fields, single ones of ms-swift by
// swift_fields.
#include <algorithm>

#include "import/swift_fields.h"
#include "import/swift_parts.h"
#include "unsloth/core/error.h"

namespace unsloth::import {
namespace {

void set_swift_defaults(Importer& importer) {
    importer.set_default("model.load_in_4bit", false);
    importer.set_default("lora.r", 8);
    importer.set_default("lora.lora_alpha", 32);
    importer.set_default("lora.lora_dropout", 0.05);
    importer.set_default("training.per_device_train_batch_size", 1);
    importer.set_default("training.num_train_epochs", 3);
    importer.set_default("training.warmup_steps", 0);
    importer.set_default("training.weight_decay", 0.1);
    importer.set_default("training.adam_beta2", 0.95);
    importer.set_default("training.lr_scheduler_type", "cosine");
    importer.set_default("training.optim", "adamw_torch");
    importer.set_default("training.seed", 42);
    importer.set_default("training.logging_steps", 5);
}

/// The last of several names of one field: what later releases call it wins.
std::pair<std::string, std::string> take_renamed(Importer& importer, const std::vector<const char*>& names) {
    std::pair<std::string, std::string> found;
    for (const char* name : names) {
        const auto value = importer.take_text(name);
        if (!value) continue;
        if (!found.first.empty()) importer.note(found.first, cat("has no effect: ", name, " is given too, and wins"));
        found = {name, *value};
    }
    return found;
}

/// One folder, or the only one of a list; the rest is lost with `why`.
std::optional<std::string> take_only_name(Importer& importer, const char* key, const char* why) {
    const std::vector<std::string> names = importer.take_names(key);
    for (std::size_t i = 1; i < names.size(); ++i) importer.lose(key, cat(names[i], ": ", why));
    if (names.empty()) return std::nullopt;
    return names[0];
}

void import_swift_modules(Importer& importer) {
    if (const auto expression = importer.take_text("target_regex")) {
        importer.take("target_modules");
        importer.lose("target_regex", cat(*expression,
                                          ": lora.target_modules is a list of names; it stays that of all "
                                          "projections"));
    }
    std::vector<std::string> names = importer.take_names("target_modules");
    const auto all = std::find(names.begin(), names.end(), "all-linear");
    if (names.empty() || all != names.end()) {
        for (const std::string& name : names)
            if (name != "all-linear")
                importer.lose("target_modules",
                              cat(name, ": all-linear names all projections already; lora.modules_to_save trains ",
                                  "embed_tokens and lm_head"));
        return import_modules(importer, "target_modules", Json("all-linear"), "modules_to_save");
    }
    import_modules(importer, "target_modules", Json(names), "modules_to_save");
}

/// Whether all weights are trained.
bool import_swift_adapter(Importer& importer) {
    const auto [key, type] = take_renamed(importer, {"sft_type", "train_type", "tuner_type"});
    const bool full = type == "full";
    if (key.empty() || type == "lora" || full)
        importer.set(key.empty() ? "tuner_type" : key, "lora.finetuning_type", full ? "full" : "lora");
    else
        importer.lose(key, cat(type, ": of tuners lora and full are there; lora.finetuning_type stays lora"));
    const auto adapter = take_only_name(importer, "adapters", "a run continues from one adapter");
    if (!full) {
        import_swift_modules(importer);
        if (adapter) importer.set("adapters", "model.adapter_name_or_path", *adapter);
        return false;
    }
    if (adapter)
        importer.lose("adapters", cat(*adapter, ": all weights are trained; unsloth-train merge puts an adapter in"));
    for (const char* name : {"target_modules", "target_regex", "modules_to_save"})
        if (const auto value = importer.take(name); value && !value->empty())
            importer.note(name, "has no effect: all weights are trained");
    return true;
}

/// The reference of preferences and policies: without ref_adapters the base, without its adapter.
void import_swift_reference(Importer& importer, bool full, const std::string& section) {
    const Json model = importer.look("model");
    const std::string start = importer.config().model.adapter_name_or_path.value_or("");
    if (const auto reference = importer.take_text("ref_model"); reference && (!full || *reference != model))
        importer.lose("ref_model", cat(*reference, ": the reference is the model as it was at the start, or its base"));
    const auto adapter = take_only_name(importer, "ref_adapters", "a reference has one adapter");
    if (adapter && *adapter == start) return importer.set("ref_adapters", section + ".reference", "initial");
    if (adapter)
        importer.lose("ref_adapters", cat(*adapter, ": the reference has the adapter that adapters names, or none"));
    if (!start.empty()) importer.set_default(section + ".reference", "base");
}

/// Rows of a step, where gradient_accumulation_steps is not said: 16 of all processes, or a micro-batch of GRPO.
void import_swift_accumulation(Importer& importer, bool policy) {
    if (!importer.look("gradient_accumulation_steps").is_null()) return;
    importer.take("gradient_accumulation_steps");
    if (policy) return importer.set_default("training.gradient_accumulation_steps", 1);
    const Json said = importer.look("per_device_train_batch_size");
    const int64_t rows = said.is_number_integer() && said > 0 ? said.get<int64_t>() : 1,
                  steps = std::max<int64_t>(1, (16 + rows - 1) / rows);
    importer.set_default("training.gradient_accumulation_steps", steps);
    importer.note("gradient_accumulation_steps",
                  cat("is not given: ", steps, " makes 16 rows a step in one process; N processes share them"));
}

std::string swift_name(spec::DType type) {
    return type == spec::DType::bf16 ? "bfloat16" : type == spec::DType::f16 ? "float16" : "float32";
}

/// bf16 and fp16 follow from torch_dtype, and float32 weights are computed with in float16.
void import_swift_types(Importer& importer, bool full) {
    const std::string type = importer.take_text("torch_dtype").value_or("");
    const bool known = type == "bfloat16" || type == "float16" || type == "float32";
    if (!type.empty() && !known) importer.lose("torch_dtype", cat(type, ": bfloat16, float16 or float32 is expected"));
    const bool off = importer.look("bf16") == false && importer.look("fp16") == false;
    const bool on = importer.look("bf16") == true || importer.look("fp16") == true;
    const std::string computed = !known ? "" : type == "float32" && !off ? "float16" : type;
    import_precision(importer, computed.c_str(), computed.c_str());
    if (known && on && swift_name(importer.config().model.dtype) != type)
        importer.note("torch_dtype", cat(type, ": has no effect: bf16 and fp16 say what is computed in"));
    else if (computed != type && known)
        importer.note("torch_dtype", "float32: they compute in float16 then, and model.dtype does too");

    const auto method = importer.take_text("quant_method");
    const Json bits = importer.take("quant_bits").value_or(nullptr);
    const auto matmuls = importer.take_text("bnb_4bit_compute_dtype");
    const bool fits = method == "bnb" && (bits == 4 || bits == 8);
    if (!method && !bits.is_null()) importer.note("quant_bits", "has no effect: quant_method is not given");
    if (fits && full)
        importer.lose("quant_method", "bnb: all weights are trained, in 16 bit");
    else if (fits)
        importer.set("quant_method", bits == 4 ? "model.load_in_4bit" : "model.load_in_8bit", true);
    else if (method)
        importer.lose("quant_method", cat(*method, " with quant_bits ", shown(bits),
                                          ": bnb with 4 or 8 is there; a checkpoint that is quantised stays as it is"));
    if (matmuls && *matmuls != swift_name(importer.config().model.dtype))
        importer.note("bnb_4bit_compute_dtype", cat(*matmuls, ": has no effect: model.dtype says what is computed in"));
    else if (matmuls)
        importer.note("bnb_4bit_compute_dtype", "is model.dtype");
}

/// zero0 to zero3, with _offload, are files of ms-swift.
void import_swift_ranks(Importer& importer, const std::string& method) {
    const Json given = importer.take("deepspeed").value_or(nullptr);
    const std::string name = given.is_string() ? given.get<std::string>() : "";
    const bool offload = name.ends_with("_offload");
    const std::string stage = name.substr(0, name.size() - (offload ? 8 : 0));
    if (stage.size() == 5 && stage.starts_with("zero") && stage[4] >= '0' && stage[4] <= '3') {
        const int number = stage[4] - '0';
        if (method == "grpo" && number == 3)
            importer.lose("deepspeed", cat(name,
                                           ": sampling needs whole weights on each rank; distributed.zero_stage 2 "
                                           "shares optimizer states and gradients"));
        else
            importer.set("deepspeed", "distributed.zero_stage", number);
        if (offload) importer.set("deepspeed", "distributed.offload_optimizer", "cpu");
    } else if (!given.empty()) {
        importer.lose("deepspeed", cat(shown(given),
                                       ": distributed.zero_stage and offload_optimizer say what ranks "
                                       "share; docs/how-to/migrate/fsdp-and-deepspeed.md has the equivalents"));
    }
    for (const auto& [key, option] : {std::pair{"sequence_parallel_size", "distributed.cp_size"},
                                      std::pair{"deepspeed_autotp_size", "distributed.tp_size"}}) {
        const auto ranks = importer.take(key);
        if (!ranks || *ranks == 1) continue;
        if (method.empty())
            importer.set(key, option, *ranks);
        else
            importer.lose(key, cat(shown(*ranks), ": ", option, " is for supervised fine-tuning"));
    }
}

/// rlhf_type, and the objective's own fields. `swift rlhf` takes dpo where the file says none, which sft has no use
/// for.
void import_swift_method(Importer& importer, const std::string& method, bool full) {
    if (method.empty()) return;
    if (method == "grpo") {
        import_swift_policy(importer);
        return import_swift_reference(importer, full, "grpo");
    }
    const bool cpo = method == "cpo" || method == "simpo";
    if (!cpo && method != "dpo" && method != "orpo" && method != "kto")
        return importer.lose("rlhf_type", cat(method, ": training.objective is sft, dpo, orpo, kto, distill or grpo"));
    if (method == "simpo") {
        importer.set_default("preference.beta", 2);
        importer.set_default("preference.loss_type", "simpo");
        importer.set_default("preference.simpo_gamma", 1);
    }
    import_preference_fields(importer, "rlhf_type", cpo ? "dpo" : method,
                             cpo ? (method == "cpo" ? "sigmoid" : method) : "");
    if (method == "dpo" || method == "kto") import_swift_reference(importer, full, "preference");
}

void import_swift_seed(Importer& importer) {
    if (const auto seed = importer.take("data_seed"))
        importer.note("data_seed", cat(shown(*seed), ": training.seed draws the order of rows too"));
}

}  // namespace

void import_swift(Importer& importer) {
    set_swift_defaults(importer);
    const std::string method = importer.take_text("rlhf_type").value_or("");
    const bool full = import_swift_adapter(importer);
    importer.set_default("training.learning_rate", full ? 1e-5 : 1e-4);
    import_swift_types(importer, full);
    import_swift_accumulation(importer, method == "grpo");
    import_swift_seed(importer);
    const bool has_rows = import_swift_data(importer, method);
    import_swift_method(importer, method, full);
    import_swift_ranks(importer, method);
    import_warmup(importer);
    const Json strategy = importer.look("save_strategy"), steps = importer.look("save_steps");
    import_saving(importer, "steps");
    if (has_rows) {
        import_evaluation(importer, strategy.is_string() ? strategy.get<std::string>() : "steps", true,
                          steps.is_null() ? Json(500) : steps);
    } else {
        for (const char* key : {"eval_strategy", "evaluation_strategy", "eval_steps"})
            if (const auto value = importer.take(key); value && *value != "no" && *value != false)
                importer.note(key, "has no effect: there are no rows to evaluate on");
    }
    import_best(importer, "early_stop_interval");
    import_upload(importer);
    if (const auto model = importer.take_text("model")) importer.set("model", "model.path", *model);
    if (const auto folder = importer.take_text("resume_from_checkpoint"))
        importer.lose("resume_from_checkpoint",
                      cat(*folder,
                          ": a checkpoint of ms-swift has another form; model.adapter_name_or_path takes its "
                          "adapter"));
    importer.take_rest(swift_fields(), true);
}

}  // namespace unsloth::import
