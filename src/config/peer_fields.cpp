#include "unsloth/config/peer_fields.h"

#include <algorithm>

#include "unsloth/core/error.h"

namespace unsloth::config {
namespace {

using Values = std::vector<Json>;
using Meanings = std::vector<std::pair<Json, Json>>;

const Values& off = PeerRows::off;

void add_model_fields(PeerRows& rows) {
    rows.section("model")
        .any({"attn_implementation", "use_cache"}, "attention has kernels of its own, and training keeps no KV cache")
        .any({"trust_remote_code", "use_safetensors", "low_cpu_mem_usage", "use_fast", "token"},
             "weights are mapped from safetensors files, and no code of a repository is run")
        .only({"quantization_config"}, off, "model.load_in_4bit quantises while loading")
        .only({"bnb_4bit_quant_type"}, {nullptr, "nf4"},
              "model.load_in_4bit makes NF4; model.precision {\"default\": \"fp4\"} makes FP4")
        .only({"bnb_4bit_use_double_quant"}, {nullptr, true}, "model.load_in_4bit quantises the scales too")
        .only({"bnb_4bit_quant_storage"}, {nullptr, "uint8"}, "4-bit weights are stored in bytes")
        .means("full_finetuning", "lora.finetuning_type", {{true, "full"}}, off, "true or false is expected");
}

void add_lora_fields(PeerRows& rows) {
    rows.section("lora")
        .only({"bias"}, {"none", nullptr},
              "biases are not trained with adapters; lora.finetuning_type full trains them")
        .only({"task_type"}, {"CAUSAL_LM", nullptr}, "causal language models alone are trained")
        .only({"peft_type"}, {"LORA", nullptr}, "of PEFT's methods LoRA alone is known")
        .only({"fan_in_fan_out", "lora_bias", "ensure_weight_tying"}, off, "adapters are plain linear layers, untied")
        .only({"init_lora_weights"}, {true, nullptr}, "A is drawn uniformly and B is 0, as PEFT does for true")
        .only({"exclude_modules", "layers_pattern", "trainable_token_indices"}, off,
              "lora.target_modules and lora.layers_to_transform select the trained modules")
        .only({"use_qalora", "use_bdlora", "velora_config", "monteclora_config", "kasa_config", "arrow_config",
               "alora_invocation_tokens", "layer_replication", "lora_ga_config", "eva_config", "corda_config"},
              off, "this variant of LoRA is not there")
        .only({"loftq_config"}, off, "adapters begin at zero, not at the quantisation error")
        .only({"megatron_config"}, off, "there is no Megatron here")
        .any({"megatron_core", "qalora_group_size", "runtime_config", "auto_mapping", "peft_version", "inference_mode"},
             "it is for features that are not used")
        .any({"revision"}, "the base is the folder that model.path names")
        .means("base_model_name_or_path", "model.path", {}, {nullptr});
}

void add_saving_fields(PeerRows& rows) {
    rows.means("save_strategy", "training.save_steps", {{"no", 0}, {false, 0}}, {nullptr, "steps"},
               "checkpoints come by training.save_steps or training.save_minutes", "training.save_steps says how often")
        .or_means("epoch", "training.saves_per_epoch", 1)
        .any({"save_only_model", "save_on_each_node", "save_safetensors", "enable_jit_checkpoint"},
             "a checkpoint is safetensors files with the optimizer's state, written once, and on SIGTERM too")
        .any({"restore_callback_states_from_checkpoint"}, "there are no callbacks")
        .only({"ignore_data_skip"}, off, "a resumed run continues at the row")
        .any({"hub_token", "push_to_hub_token"}, "HF_TOKEN, or `hf auth login`, gives the token")
        .any({"hub_strategy", "hub_always_push"}, "training.push_to_hub uploads once, after the run")
        .any({"hub_revision"}, "training.push_to_hub uploads to main; `unsloth-train push --branch` to another branch")
        .any({"push_to_hub_model_id", "push_to_hub_organization"}, "training.hub_model_id is ORG/NAME");
}

void add_reporting_fields(PeerRows& rows) {
    rows.any({"run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"},
             "a run is named by training.output_dir; training.report_to says where its metrics go")
        .means("logging_strategy", "logging.metrics_file", {{"no", ""}, {false, ""}}, {nullptr, "steps"},
               "rows of metrics come by training.logging_steps", "training.logging_steps says how often")
        .means("log_level", "logging.level",
               {{"debug", "debug"}, {"info", "info"}, {"warning", "warning"}, {"error", "error"}, {"critical", "off"}},
               {nullptr, "passive"}, "logging.level is debug, info, warning, error or off")
        .any({"log_level_replica", "log_on_each_node", "logging_first_step", "logging_nan_inf_filter", "disable_tqdm",
              "skip_memory_metrics", "include_num_input_tokens_seen", "include_tokens_per_second", "debug"},
             "rank 0 logs tokens, memory and losses; a loss that is not finite stops the run");
}

void add_evaluation_fields(PeerRows& rows) {
    const Meanings none = {{"no", 0}, {false, 0}};  // YAML takes no for false
    const char* const refusal = "evaluations come by training.eval_steps, and at the end";
    const char* const note = "training.eval_steps says how often; with evaluation rows there is one at the end";
    rows.means("eval_strategy", "training.eval_steps", none, {nullptr, "steps"}, refusal, note)
        .or_means("epoch", "training.evals_per_epoch", 1)
        .means("evaluation_strategy", "training.eval_steps", none, {nullptr, "steps"}, refusal, note)
        .or_means("epoch", "training.evals_per_epoch", 1)
        .any({"per_device_eval_batch_size", "per_gpu_eval_batch_size", "eval_accumulation_steps", "eval_packing",
              "eval_do_concat_batches", "eval_use_gather_object", "bf16_full_eval", "fp16_full_eval"},
             "evaluation batches hold as many tokens as training's, in the same type")
        .any({"prediction_loss_only", "include_for_metrics", "include_inputs_for_metrics", "batch_eval_metrics",
              "label_names", "do_train", "do_eval", "do_predict", "past_index"},
             "the loss over the labels is what is evaluated")
        .only({"eval_delay"}, {nullptr, 0}, "evaluations begin at the first multiple of training.eval_steps");
}

void add_data_fields(PeerRows& rows) {
    rows.any({"remove_unused_columns", "length_column_name", "dataset_num_proc", "dataset_batch_size",
              "num_of_sequences", "chars_per_token"},
             "columns that are not known are not read, and all cores encode rows")
        .any(
            {"dataloader_drop_last", "dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers",
             "dataloader_prefetch_factor", "dataloader_multiprocessing_context", "dataloader_in_order"},
            "a thread prepares batches in order, down to an epoch's last, smaller one")
        .any({"padding_free", "pad_token", "pad_to_multiple_of", "group_by_length"}, "rows are not padded")
        .any({"shuffle_dataset"}, "data.shuffle draws another order of rows every epoch")
        .means("train_sampling_strategy", "data.shuffle", {{"sequential", false}},
               {nullptr, "random", "group_by_length"}, "data.shuffle is true or false")
        .means("chat_template_path", "data.template", {}, {nullptr})
        .means("completion_only_loss", "data.train_on_prompt", {{true, false}, {false, true}}, {nullptr},
               "true or false is expected")
        .means("assistant_only_loss", "data.train_on_prompt", {{true, false}}, off, "true or false is expected",
               "answers alone are targets; data.train_on_prompt true is for all tokens")
        .only({"dataset_text_field"}, {nullptr, "", "text"}, "data.columns names columns: {\"text\": \"content\"}")
        .only({"dataset_kwargs"}, off, "section data has the options of reading rows")
        .only({"eos_token"}, off, "model.special_tokens names another: {\"eos_token\": …}")
        .only({"truncation_mode"}, {nullptr, "keep_start"},
              "of rows longer than model.max_seq_length the start is kept; preference.truncation_mode is for prompts")
        .only({"packing_strategy"}, {nullptr, "bfd", "ffd"}, "packing puts whole rows together and cuts none apart")
        .only({"data_seed"}, off, "training.seed draws the order of rows too")
        .only({"model_init_kwargs"}, off, "section model has the options of loading");
}

void add_device_fields(PeerRows& rows) {
    rows.means("use_cpu", "hardware.device", {{true, "cpu"}}, off, "true or false is expected")
        .means("no_cuda", "hardware.device", {{true, "cpu"}}, off, "true or false is expected")
        .means("full_determinism", "training.deterministic", {{true, true}}, off, "true or false is expected")
        .only({"use_mps_device", "use_ipex", "tpu_num_cores", "tpu_metrics_debug"}, off,
              "runs take place on NVIDIA GPUs or the CPU")
        .any({"tf32"}, "float32 products are never made in TF32")
        .any({"fp16_opt_level", "half_precision_backend", "fp16_backend"},
             "model.dtype says the type of the computation")
        .any({"torch_compile", "torch_compile_backend", "torch_compile_mode", "torchdynamo", "jit_mode_eval",
              "use_liger_kernel", "use_liger", "liger_kernel_config", "torch_empty_cache_steps"},
             "kernels are compiled into the program, and a step allocates nothing")
        .any({"gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"},
             "training.gradient_checkpointing says what is computed again")
        .means("activation_offloading", "training.gradient_checkpointing", {{true, "full+offload"}}, off,
               "true or false is expected")
        .only({"fsdp", "deepspeed", "parallelism_config", "mp_parameters"}, off, PeerRows::ranks_share)
        .only({"accelerator_config", "dispatch_batches", "split_batches"}, off,
              "each process takes training.per_device_train_batch_size rows of its own")
        .any({"fsdp_config", "fsdp_min_num_params", "fsdp_transformer_layer_cls_to_wrap", "ddp_find_unused_parameters",
              "ddp_broadcast_buffers", "ddp_static_graph", "ddp_backend", "local_rank", "_n_gpu", "ray_scope"},
             "ranks are the launcher's, and sum one buffer of gradients");
}

void add_optimizer_fields(PeerRows& rows) {
    rows.only({"optim_args", "optim_target_modules"}, off,
              "training.optim is AdamW, with adam_beta1, adam_beta2, adam_epsilon")
        .only({"adafactor"}, off, "training.optim is AdamW")
        .only({"label_smoothing_factor"}, {nullptr, 0}, "the loss is the plain cross-entropy")
        .only({"loss_type"}, {nullptr, "nll", "chunked_nll"},
              "the loss is the plain cross-entropy, a chunk of rows at a time")
        .any({"average_tokens_across_devices"}, "a step's loss is the mean over the targets of all devices")
        .only({"auto_find_batch_size"}, off,
              "the memory plan says before the first step whether a batch fits, and what would")
        .any({"use_legacy_prediction_loop"}, "there is one loop");
}

std::vector<PeerField> make_table() {
    PeerRows rows;
    add_model_fields(rows);
    add_lora_fields(rows);
    rows.section("training");
    add_optimizer_fields(rows);
    add_evaluation_fields(rows);
    add_saving_fields(rows);
    add_reporting_fields(rows);
    add_data_fields(rows);
    add_device_fields(rows);
    return rows.take();
}

bool contains(const Values& values, const Json& value) {
    return std::find(values.begin(), values.end(), value) != values.end();
}

bool passes_on(const PeerField& field) {
    return !field.option.empty() && field.meanings.empty();
}

}  // namespace

const Values PeerRows::off = {nullptr, false, "", Json::array(), Json::object()};

PeerRows& PeerRows::any(const std::vector<const char*>& keys, const char* note) {
    for (const char* key : keys) fields_.push_back({section_, key, note, true, {}, {}, {}, {}, {}});
    return *this;
}

PeerRows& PeerRows::only(const std::vector<const char*>& keys, const Values& values, const char* refusal,
                         const char* note) {
    for (const char* key : keys) fields_.push_back({section_, key, note, false, values, {}, {}, refusal, {}});
    return *this;
}

PeerRows& PeerRows::means(const char* key, const char* option, const Meanings& meanings, const Values& taken,
                          const char* refusal, const char* note) {
    fields_.push_back({section_, key, note, false, taken, option, meanings, refusal, {}});
    return *this;
}

PeerRows& PeerRows::aside(const std::vector<const char*>& keys, const char* refusal, const Values& values) {
    only(keys, values, refusal);
    for (std::size_t i = fields_.size() - keys.size(); i < fields_.size(); ++i) fields_[i].aside = true;
    return *this;
}

PeerRows& PeerRows::or_means(const char* value, const char* option, Json meant) {
    fields_.back().elsewhere.push_back({value, option, std::move(meant)});
    return *this;
}

std::string shown(const Json& value) {
    return value.is_string() && value != "" ? value.get<std::string>()
                                            : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const std::vector<PeerField>& peer_fields() {
    static const std::vector<PeerField> table = make_table();
    return table;
}

const PeerField* find_peer_field(const std::string& name) {
    const std::string key = name.substr(name.rfind('.') + 1);
    for (const PeerField& field : peer_fields())
        if (field.key == key) return &field;
    return nullptr;
}

Taken take(const PeerField& field, const Json& value) {
    if (field.takes_any || contains(field.taken, value)) {
        // What is off asks for nothing that a user would miss.
        const bool tell = !field.note.empty() && !value.is_null() && value != false;
        return {std::nullopt, tell ? cat("has no effect: ", field.note) : "", ""};
    }
    for (const auto& [written, meant] : field.meanings)
        if (written == value)
            return {std::pair(field.option, meant), cat(shown(value), " is taken as ", field.option, " ", shown(meant)),
                    ""};
    for (const auto& [written, option, meant] : field.elsewhere)
        if (written == value)
            return {std::pair(option, meant), cat(shown(value), " is taken as ", option, " ", shown(meant)), ""};
    if (passes_on(field)) return {std::pair(field.option, value), cat("is taken as ", field.option), ""};
    return {std::nullopt, "", field.refusal};
}

std::optional<std::pair<std::string, Json>> meaning_of(const PeerField& field, const Json& value,
                                                       const std::string& origin, std::vector<std::string>& notes) {
    const Taken taken = take(field, value);
    if (!taken.refusal.empty())
        throw Error("option.unsupported", cat(origin, ": ", shown(value), " is refused: ", taken.refusal));
    if (!taken.note.empty()) notes.push_back(cat(origin, " ", taken.note));
    return taken.meaning;
}

std::string describe(const PeerField& field) {
    if (field.takes_any) return cat("no effect: ", field.note);
    if (passes_on(field)) return field.option;
    std::string text;
    for (const auto& [written, meant] : field.meanings)
        text += cat(text.empty() ? "" : "; ", shown(written), " means ", field.option, " ", shown(meant));
    for (const auto& [written, option, meant] : field.elsewhere)
        text += cat(text.empty() ? "" : "; ", shown(written), " means ", option, " ", shown(meant));
    std::string taken;
    for (const Json& value : field.taken)
        if (value.is_string() && value != "") taken += cat(taken.empty() ? "" : ", ", shown(value));
    if (taken.empty())
        taken = contains(field.taken, true)    ? "true"
                : contains(field.taken, 0)     ? "0"
                : contains(field.taken, false) ? "absent or false"
                                               : "null";
    text += cat(text.empty() ? "" : "; ", taken, ": no effect");
    return cat(text, "; else refused: ", field.refusal);
}

}  // namespace unsloth::config
