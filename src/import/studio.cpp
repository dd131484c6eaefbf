// Unsloth Studio's files, which `unsloth train --config` takes: sections data, training, lora and logging. Those that
// describe one model's defaults name neither it nor rows.
#include <algorithm>
#include <sstream>

#include "import/importer.h"
#include "unsloth/core/error.h"

namespace unsloth::import {
namespace {

/// What Studio does where a file says nothing.
void set_studio_defaults(Importer& importer) {
    importer.set_default("model.max_seq_length", 2048);
    importer.set_default("model.load_in_4bit", true);
    importer.set_default("lora.r", 64);
    importer.set_default("lora.lora_alpha", 16);
    importer.set_default("lora.lora_dropout", 0);
    importer.set_default("training.output_dir", "./outputs");
    importer.set_default("training.num_train_epochs", 3);
    importer.set_default("training.learning_rate", 2e-4);
    importer.set_default("training.per_device_train_batch_size", 2);
    importer.set_default("training.gradient_accumulation_steps", 4);
    importer.set_default("training.weight_decay", 0.01);
    importer.set_default("training.seed", 3407);
    importer.set_default("training.optim", "adamw_8bit");
    importer.set_default("training.lr_scheduler_type", "linear");
    importer.set_default("training.gradient_checkpointing", "full+offload");
}

const std::vector<PeerField>& studio_fields() {
    static const std::vector<PeerField> table = [] {
        const auto& off = PeerRows::off;
        PeerRows rows;
        rows.means("model", "model.path", {}, {nullptr})
            .means("training.max_seq_length", "model.max_seq_length", {}, {nullptr})
            .means("training.output_dir", "training.output_dir", {}, {nullptr})
            .means("training.learning_rate", "training.learning_rate", {}, {nullptr})
            .means("training.batch_size", "training.per_device_train_batch_size", {}, {nullptr})
            .means("training.gradient_accumulation_steps", "training.gradient_accumulation_steps", {}, {nullptr})
            .means("training.weight_decay", "training.weight_decay", {}, {nullptr})
            .means("training.random_seed", "training.seed", {}, {nullptr})
            .means("training.packing", "data.packing", {}, {nullptr})
            .means("training.optim", "training.optim", {}, {nullptr})
            .means("training.lr_scheduler_type", "training.lr_scheduler_type", {}, {nullptr})
            .means("training.gradient_checkpointing", "training.gradient_checkpointing", {{"true", "full"}}, {nullptr})
            .means("lora.lora_r", "lora.r", {}, {nullptr})
            .means("lora.lora_alpha", "lora.lora_alpha", {}, {nullptr})
            .means("lora.lora_dropout", "lora.lora_dropout", {}, {nullptr})
            .means("lora.use_rslora", "lora.use_rslora", {}, {nullptr})
            .means("lora.use_dora", "lora.use_dora", {}, {nullptr})
            .only({"lora.use_loftq"}, off, "adapters begin at zero, not at the quantisation error")
            .any({"lora.vision_all_linear", "lora.finetune_vision_layers"}, "text alone is trained on")
            .only({"lora.finetune_language_layers"}, {nullptr, true}, "a model's layers for text are always trained")
            .means("logging.log_frequency", "training.logging_steps", {}, {nullptr})
            .means("logging.enable_tensorboard", "training.report_to", {{true, {"tensorboard"}}}, off,
                   "true or false is expected")
            .aside({"logging.enable_wandb"}, "training.report_to wandb sends metrics there")
            .any({"logging.wandb_project", "logging.wandb_token", "logging.tensorboard_dir", "logging.hf_token"},
                 "training.report_to says where metrics go; tokens are read from the environment")
            .any({"inference.temperature", "inference.top_p", "inference.top_k", "inference.min_p",
                  "inference.trust_remote_code", "inference.repetition_penalty", "inference.presence_penalty"},
                 "answers are generated after the run (unsloth-train generate)")
            .any({"training.trust_remote_code"}, "no code of a repository is run");
        return rows.take();
    }();
    return table;
}

void import_length_of_run(Importer& importer) {
    const auto epochs = importer.take("training.num_epochs"), steps = importer.take("training.max_steps");
    if (epochs && *epochs != 0) importer.set("training.num_epochs", "training.num_train_epochs", *epochs);
    if (steps && *steps != 0) importer.set("training.max_steps", "training.max_steps", *steps);
    const auto saves = importer.take("training.save_steps");
    if (saves) importer.set("training.save_steps", "training.save_steps", *saves);
    const auto evals = importer.take("training.eval_steps");
    if (evals && *evals != 0)
        importer.leave(
            "training.eval_steps",
            cat(shown(*evals), ": no rows to evaluate on are named: data.eval_file or ", "data.val_size does"));
    const auto warmup = importer.take("training.warmup_steps"), ratio = importer.take("training.warmup_ratio");
    if (warmup)
        importer.set("training.warmup_steps", "training.warmup_steps", *warmup);
    else if (ratio)
        importer.set("training.warmup_ratio", "training.warmup_ratio", *ratio);
    else
        importer.set_default("training.warmup_steps", 5);
}

/// The projections of one kind, unless they are named.
Json projections_of_kinds(Importer& importer) {
    const bool attention = importer.take("lora.finetune_attention_modules").value_or(true) == true;
    const bool mlp = importer.take("lora.finetune_mlp_modules").value_or(true) == true;
    Json names = Json::array();
    if (attention) names = {"q_proj", "k_proj", "v_proj", "o_proj"};
    if (mlp)
        for (const char* name : {"gate_proj", "up_proj", "down_proj"}) names.push_back(name);
    return names;
}

void import_studio_adapter(Importer& importer) {
    const std::string kind = importer.take_text("training.training_type").value_or("lora");
    const bool full = kind == "full";
    if (!full && kind != "lora")
        importer.lose("training.training_type", cat(kind, ": lora and full are there; lora is written"));
    importer.set("training.training_type", "lora.finetuning_type", full ? "full" : "lora");
    const auto in_4bit = importer.take("training.load_in_4bit");
    if (full)
        importer.set_default("model.load_in_4bit", false);
    else if (in_4bit)
        importer.set("training.load_in_4bit", "model.load_in_4bit", *in_4bit);
    const Json kinds = projections_of_kinds(importer);
    std::vector<std::string> names = importer.take_names("lora.target_modules");
    std::erase(names, "");
    if (full) return;
    const bool all = names.empty() || names == std::vector<std::string>{"all-linear"};
    if (!all && kinds.size() != 7)
        importer.note("lora.finetune_mlp_modules", "has no effect: target_modules names projections");
    import_modules(importer, "lora.target_modules", all ? kinds : Json(names), "lora.modules_to_save");
}

void import_studio_rows(Importer& importer) {
    const auto hub = importer.take_text("data.dataset");
    const std::vector<std::string> files = importer.take_names("data.local_dataset");
    std::vector<ImportedSource> sources;
    const std::string format = importer.take_text("data.format_type").value_or("auto");
    const auto add = [&](const std::string& path) {
        ImportedSource& source = sources.emplace_back();
        source.path = path;
        source.format = format == "alpaca"     ? DataFormat::alpaca
                        : format == "sharegpt" ? DataFormat::sharegpt
                        : format == "chatml"   ? DataFormat::messages
                                               : DataFormat::automatic;
    };
    if (hub) add(*hub);
    for (const std::string& file : files) add(file);
    set_sources(importer, "data.dataset", sources);
    const auto answers = importer.take("training.train_on_completions");
    importer.set("training.train_on_completions", "data.train_on_prompt", !answers || *answers == false);
}

}  // namespace

void import_studio(Importer& importer) {
    for (const char* section : {"data", "training", "lora", "logging", "inference"}) importer.spread(section);
    set_studio_defaults(importer);
    import_studio_adapter(importer);
    import_studio_rows(importer);
    import_length_of_run(importer);
    importer.take_rest(studio_fields(), false);
}

}  // namespace unsloth::import
