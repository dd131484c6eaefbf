#include "unsloth/config/file_owner.h"

#include <algorithm>

#include "unsloth/config/option_table.h"
#include "unsloth/core/error.h"

namespace unsloth::config {
namespace {

/// What else is written as JSON or YAML where models are trained.
struct OtherFile {
    const char* name;
    std::vector<const char*> marks;
    const char* advice;
};

constexpr const char* rewrite =
    "docs/concepts/configuration.md explains a configuration of this program, section by section.";

const std::vector<OtherFile>& other_files() {
    static const std::vector<OtherFile> all = {
        {"LLaMA-Factory's v1",
         {"model", "model_class", "peft_config", "kernel_config", "dist_config", "quant_config", "train_dataset",
          "sample_backend", "init_config"},
         "Its v1 files are not read; those of LLaMA-Factory 0.9 (stage, finetuning_type, dataset) are."},
        {"AutoTrain", {"task", "project_name", "backend", "params", "hub"}, rewrite},
        {"torchtune", {"checkpointer", "tokenizer", "loss", "metric_logger", "profiler"}, rewrite},
        {"DeepSpeed",
         {"zero_optimization", "train_micro_batch_size_per_gpu", "gradient_clipping", "wall_clock_breakdown",
          "zero_allow_untested_optimizer"},
         "Section distributed says what ranks share: docs/how-to/migrate/fsdp-and-deepspeed.md names each field's "
         "equivalent."},
        {"Accelerate",
         {"compute_environment", "distributed_type", "mixed_precision", "machine_rank", "num_processes",
          "main_training_function", "rdzv_backend", "downcast_bf16"},
         "unsloth-train launch starts the processes, and section distributed says what they share "
         "(docs/how-to/migrate/fsdp-and-deepspeed.md)."},
        {"a PEFT adapter",
         {"peft_type", "inference_mode", "auto_mapping", "fan_in_fan_out", "base_model_name_or_path"},
         "model.adapter_name_or_path takes the folder that it is in."},
        {"a model",
         {"architectures", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "rms_norm_eps"},
         "model.path takes the folder that it is in."}};
    return all;
}

/// Sections that hold options.
std::vector<std::string> sections_in(const Json& fields) {
    OptionSet options;
    Config config;
    declare_options(options, config);
    std::vector<std::string> found;
    for (const Section& section : options.sections())
        if (fields.contains(section.name) && fields[section.name].is_object()) found.push_back(section.name);
    return found;
}

/// Unsloth Studio's files have sections of our names, with these members of its own.
std::vector<std::string> studio_marks(const Json& fields) {
    static const std::vector<std::pair<const char*, const char*>> marks = {{"training", "batch_size"},
                                                                           {"training", "random_seed"},
                                                                           {"training", "train_on_completions"},
                                                                           {"lora", "lora_r"},
                                                                           {"lora", "use_loftq"},
                                                                           {"lora", "finetune_language_layers"},
                                                                           {"logging", "enable_wandb"},
                                                                           {"logging", "enable_tensorboard"}};
    std::vector<std::string> found;
    for (const auto& [section, member] : marks)
        if (fields.contains(section) && fields[section].is_object() && fields[section].contains(member))
            found.push_back(cat(section, ".", member));
    return found;
}

}  // namespace

std::string FileOwner::shown_marks() const {
    constexpr std::size_t most = 4;
    std::string text;
    for (std::size_t i = 0; i < std::min(most, marks.size()); ++i) text += cat(i == 0 ? "" : ", ", marks[i]);
    return marks.size() > most ? text + ", …" : text;
}

const std::vector<PeerMarks>& peer_marks() {
    static const std::vector<PeerMarks> all = {
        {"axolotl",
         {"base_model", "micro_batch_size", "sequence_len", "sample_packing", "adapter", "num_epochs", "val_set_size"}},
        {"LLaMA-Factory",
         {"stage", "cutoff_len", "template", "finetuning_type", "lora_rank", "lora_target", "dataset_dir"}},
        {"TRL or Unsloth",
         {"model_name_or_path", "model_name", "dataset_name", "use_peft", "per_device_train_batch_size",
          "max_seq_length"}},
        {"ms-swift",
         {"tuner_type", "train_type", "sft_type", "rlhf_type", "split_dataset_ratio", "freeze_vit", "external_plugins",
          "quant_method", "lora_rank"}}};
    return all;
}

std::vector<std::string> present_marks(const Json& fields, const std::vector<const char*>& marks) {
    std::vector<std::string> found;
    for (const char* mark : marks)
        if (fields.contains(mark)) found.emplace_back(mark);
    return found;
}

FileOwner owner_of(const Json& fields) {
    FileOwner owner;
    const std::vector<std::string> of_studio = studio_marks(fields);
    if (of_studio.size() >= 2) return {false, true, "Unsloth Studio", of_studio, ""};
    const auto consider = [&](FileOwner other) {
        if (other.marks.size() > owner.marks.size()) owner = std::move(other);
    };
    consider({true, false, "this program", sections_in(fields), ""});
    for (const OtherFile& one : other_files()) {
        const std::vector<std::string> marks = present_marks(fields, one.marks);
        if (marks != std::vector<std::string>{"model"}) consider({false, false, one.name, marks, one.advice});
    }
    for (const PeerMarks& one : peer_marks()) consider({false, true, one.name, present_marks(fields, one.marks), ""});
    return owner;
}

}  // namespace unsloth::config
