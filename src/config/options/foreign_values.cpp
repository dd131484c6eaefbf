// Values that other programs know and that mean something else than any choice here: each has a word of its own.
#include "config/options/sections.h"

namespace unsloth::config {
namespace {

struct ForeignValues {
    const char* option;
    std::vector<std::string> values;
    const char* advice;
};

const std::vector<ForeignValues>& foreign_values() {
    static const std::vector<ForeignValues> all = {
        {"training.objective",
         {"gspo", "dapo", "gdpo", "dr_grpo", "rloo", "reinforce", "reinforce++"},
         "It is a form of training.objective grpo: see grpo.loss_type, importance_sampling_level, advantage and "
         "multi_objective_aggregation."},
        {"training.objective",
         {"ppo", "online_dpo", "xpo", "nash_md"},
         "There is neither a critic nor a judge: training.objective grpo learns from groups of scored completions."},
        {"training.objective", {"rm", "reward", "reward_model", "prm"}, "Models that judge answers are not trained."},
        {"training.objective",
         {"ipo", "simpo", "robust", "hinge", "rpo", "cpo"},
         "It is one of dpo's losses: training.objective dpo, and preference.loss_type or rpo_alpha."},
        {"training.objective", {"gkd", "kd", "minillm", "distillation"}, "distill learns from distill.teacher."},
        {"training.objective",
         {"pt", "cpt", "pretrain", "pretraining", "clm", "completion"},
         "sft learns all of rows {\"text\"}."},
        {"training.optim",
         {"adafactor", "adagrad", "ademamix", "adopt_adamw", "apollo_adamw", "came_pytorch", "galore_adamw",
          "grokadamw", "lion", "lion_32bit", "lion_8bit", "lomo", "muon", "paged_lion_32bit", "paged_lion_8bit",
          "rmsprop", "schedule_free_adamw", "sgd", "stable_adamw"},
         "AdamW alone is there: adamw_8bit has the smallest states."},
        {"preference.loss_type", {"orpo"}, "training.objective orpo is a method of its own."},
        {"preference.loss_type",
         {"kto", "kto_pair", "apo_zero_unpaired"},
         "training.objective kto learns from verdicts."},
        {"preference.loss_type", {"sft"}, "preference.rpo_alpha weighs the chosen answers' own loss."},
        {"preference.loss_type",
         {"aot", "aot_pair", "aot_unpaired", "apo_down", "apo_zero", "bco_pair", "discopop", "exo_pair", "nca_pair",
          "sigmoid_norm", "sppo_hard"},
         "This loss is not there; sigmoid is DPO's own."},
        {"lora.finetuning_type", {"qlora"}, "lora is QLoRA where model.load_in_4bit is true."},
        {"lora.finetuning_type", {"dora"}, "lora is DoRA where lora.use_dora is true."},
        {"lora.finetuning_type", {"freeze", "oft", "ia3", "adalora", "galore", "prefix"}, "This way is not there."},
        {"lora.target_modules",
         {"embed_tokens", "lm_head"},
         "It gets no adapter: lora.modules_to_save trains it as a whole."},
        {"lora.target_modules",
         {"qkv_proj", "query_key_value", "c_attn", "W_pack", "gate_up_proj"},
         "The models that are trained here have q_proj, k_proj, v_proj, gate_proj and up_proj."},
        {"lora.modules_to_save",
         {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
         "lora.target_modules gives it an adapter; lora.finetuning_type full trains all weights."},
        {"lora.modules_to_save",
         {"norm", "norms", "input_layernorm", "post_attention_layernorm", "q_norm", "k_norm"},
         "lora.finetuning_type full trains norms, with all other weights."},
        {"model.dtype", {"float64", "double"}, "float32 is the widest type."},
        {"model.dtype",
         {"fp8", "float8", "int8", "int4", "nf4", "4bit", "8bit"},
         "model.load_in_4bit, load_in_8bit and precision say what the base is held in, compute_dtype what is "
         "multiplied "
         "in 8 bit."},
        {"training.report_to",
         {"all", "azure_ml", "clearml", "codecarbon", "comet_ml", "dagshub", "dvclive", "flyte", "mlflow", "neptune",
          "swanlab", "trackio"},
         "Nothing is sent there; logging.metrics_file has every figure, as a JSON object a line."},
        {"data.format",
         {"openai", "chatml", "chat", "conversational"},
         "Rows {messages: [{role, content}]} are messages."},
        {"data.format", {"chat_template"}, "messages; data.template names the template."},
        {"data.format", {"dpo", "orpo", "pairs", "ranking"}, "Rows {prompt, chosen, rejected} are preference."},
        {"data.format",
         {"kto"},
         "Rows {prompt, completion, label} are prompt_completion, with training.objective kto."},
        {"data.format", {"completion", "pretrain", "raw"}, "Rows {text} are text."},
        {"data.format",
         {"json", "jsonl", "csv", "tsv", "parquet", "arrow", "txt"},
         "A file's kind is seen by its content; data.format says what a row holds."}};
    return all;
}

}  // namespace

void declare_foreign_values(OptionSet& options) {
    for (const ForeignValues& one : foreign_values()) options.at(one.option).known_elsewhere(one.values, one.advice);
}

}  // namespace unsloth::config
