#include "common/files.h"

#include "tests/import/import_support.h"

namespace unsloth::testing {
namespace {

TEST(Import, Axolotl) {
    const import::ImportedConfig imported = import_text(R"(
base_model: models/llama
model_type: LlamaForCausalLM
load_in_4bit: true
adapter: qlora
lora_r: 32
lora_alpha: 64
lora_dropout: 0.1
lora_target_linear: true
datasets:
  - path: rows.jsonl
    type: chat_template
    field_messages: conversations
    message_property_mappings: {role: from, content: value}
chat_template: llama3
sequence_len: 4096
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 1
saves_per_epoch: 1
optimizer: paged_adamw_8bit
lr_scheduler: cosine
learning_rate: 0.0002
warmup_ratio: 0.1
bf16: auto
tf32: false
gradient_checkpointing: true
flash_attention: true
val_set_size: 0.05
evals_per_epoch: 4
weight_decay: 0.0
wandb_project: mine
context_parallel_size: 2
special_tokens:
  pad_token: "<|end_of_text|>"
)");
    const config::Config config = loaded(imported).config;
    EXPECT_EQ(imported.program, "axolotl 0.19.0");
    EXPECT_EQ(config.distributed.cp_size, 2);
    EXPECT_EQ(config.model.path, "models/llama");
    EXPECT_TRUE(config.model.load_in_4bit);
    EXPECT_EQ(config.model.max_seq_length, 4096);
    EXPECT_EQ(config.lora.r, 32);
    EXPECT_EQ(config.lora.lora_alpha, 64);
    EXPECT_EQ(config.lora.lora_dropout, 0.1);
    EXPECT_EQ(config.lora.target_modules.size(), 7u);
    EXPECT_EQ(config.data.train_file, "rows.jsonl");
    EXPECT_EQ(config.data.format, config::DataFormat::sharegpt);
    EXPECT_TRUE(config.data.columns.empty());
    EXPECT_EQ(config.data.template_name, "llama-3");
    EXPECT_EQ(config.data.val_size, 0.05);
    EXPECT_TRUE(config.data.packing);
    EXPECT_EQ(config.data.long_rows, config::LongRows::drop);
    EXPECT_EQ(config.training.optim, config::Optimizer::adamw_8bit);
    EXPECT_EQ(config.training.lr_scheduler_type, config::Schedule::cosine);
    EXPECT_EQ(config.training.warmup_ratio, 0.1);
    EXPECT_EQ(config.training.save_steps, 0);
    EXPECT_EQ(config.training.gradient_checkpointing, config::GradientCheckpointing::full);
    EXPECT_EQ(config.training.seed, 42);
    EXPECT_EQ(config.training.saves_per_epoch, 1);
    EXPECT_EQ(config.training.evals_per_epoch, 4);
    EXPECT_TRUE(imported.losses.empty()) << all(imported.losses);
    EXPECT_CONTAINS(all(imported.notes), "special_tokens.pad_token: has no effect");
    EXPECT_CONTAINS(all(imported.notes), "wandb_project has no effect");
    EXPECT_CONTAINS(all(imported.notes), "flash_attention has no effect: kernels are compiled into the program");
}

TEST(Import, EarlyStoppingAndTheBestModel) {
    const std::string rows = "base_model: m\nadapter: lora\ndatasets: [{path: a, type: alpaca}]\n";
    const std::string evaluated = rows + "val_set_size: 0.1\neval_steps: 10\nsave_steps: 20\n";
    const auto of = [](const std::string& text) { return loaded(import_text(text)).config.training; };
    EXPECT_EQ(of(evaluated + "early_stopping_patience: 3").early_stopping_patience, 3);
    EXPECT_FALSE(of(evaluated).load_best_model_at_end);
    EXPECT_TRUE(of(evaluated + "load_best_model_at_end: true").load_best_model_at_end);
    EXPECT_TRUE(of(evaluated + "early_stopping_patience: 3").load_best_model_at_end);  // as axolotl does
    const std::string between = rows + "val_set_size: 0.1\neval_steps: 30\nsave_steps: 20\n";
    EXPECT_FALSE(of(between + "early_stopping_patience: 3").load_best_model_at_end);
    EXPECT_CONTAINS(all(import_text(rows + "early_stopping_patience: 3").losses),
                    "early_stopping_patience: 3: it follows evaluations during the run");
    const std::string factory =
        "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\ntemplate: llama3\nval_size: 0.1\n"
        "eval_strategy: steps\neval_steps: 10\nearly_stopping_steps: 4\nload_best_model_at_end: true\n"
        "metric_for_best_model: eval_loss\ngreater_is_better: false\n";
    EXPECT_EQ(of(factory).early_stopping_patience, 4);
    EXPECT_TRUE(of(factory).load_best_model_at_end);
    EXPECT_EQ(of(factory).greater_is_better, false);
}

TEST(Import, AxolotlsDataSets) {
    const auto of = [](const std::string& rest) { return import_text("base_model: m\nadapter: lora\n" + rest); };
    const config::Config alpaca = loaded(of("datasets: [{path: a.jsonl, type: alpaca}]")).config;
    EXPECT_EQ(alpaca.data.format, config::DataFormat::alpaca);
    EXPECT_EQ(alpaca.data.template_name, "alpaca");
    EXPECT_EQ(alpaca.data.columns, (Columns{{"system", ""}, {"history", ""}})) << "axolotl does not read them";
    const config::Config two =
        loaded(of("datasets:\n- {path: a, type: completion, field: body}\n- {path: b, split: extra}")).config;
    ASSERT_EQ(two.data.datasets.size(), 2u);
    EXPECT_EQ(two.data.datasets[0].format, config::DataFormat::text);
    EXPECT_EQ(two.data.datasets[0].columns.front(), (std::pair<std::string, std::string>("text", "body")));
    EXPECT_EQ(two.data.datasets[1].format, config::DataFormat::tokenized);
    EXPECT_EQ(two.data.datasets[1].split, "extra");
    EXPECT_EQ(loaded(of("datasets: [{path: json, data_files: x.jsonl, type: alpaca}]")).config.data.train_file,
              "x.jsonl");
    const config::Config columns =
        loaded(of("datasets: [{path: a, type: {field_instruction: q, field_output: a, field_input: input}}]")).config;
    EXPECT_EQ(columns.data.columns, (Columns{{"instruction", "q"}, {"output", "a"}, {"system", ""}, {"history", ""}}));
    EXPECT_CONTAINS(all(of("datasets: [{path: a, type: jeopardy}]").losses), "datasets[0].type: jeopardy: known are");
    EXPECT_CONTAINS(all(of("datasets: [{path: a, type: alpaca, shards: 4}]").losses), "datasets[0].shards: 4");
    EXPECT_EQ(loaded(of("datasets: [{path: org/rows, type: alpaca}]")).config.data.train_file, "org/rows");
}

TEST(Import, AxolotlWithoutAnAdapterTrainsAllWeights) {
    const import::ImportedConfig imported = import_text("base_model: m\nlora_r: 8\nlearning_rate: 1e-5");
    EXPECT_EQ(loaded(imported).config.lora.finetuning_type, config::FinetuningType::full);
    EXPECT_CONTAINS(
        all(import_text("base_model: m\nadapter: lora\noptimizer: muon").losses),
        "optimizer: muon: expected one of adamw_torch, adamw_8bit, found 'muon'; training.optim stays adamw_torch");
    EXPECT_CONTAINS(all(import_text("base_model: m\nrl: ppo").losses), "rl: ppo: dpo, ipo, simpo, orpo, kto, grpo");
    EXPECT_CONTAINS(all(import_text("base_model: m\nno_such_field: 1").losses), "no_such_field: is not known");
}

TEST(Import, AxolotlsPreferences) {
    const auto of = [](const std::string& rest) { return import_text("base_model: m\nadapter: lora\n" + rest); };
    const std::string rows =
        "datasets: [{path: p, type: chat_template.default, field_messages: talk, field_chosen: good, "
        "message_property_mappings: {role: from, content: value}}]\n";
    const import::ImportedConfig dpo = of(rows + "rl: dpo\nrl_beta: 0.3\ndpo_label_smoothing: 0.1\nrpo_alpha: 0.5\n");
    EXPECT_EQ(all(dpo.losses), "");
    const config::Config config = loaded(dpo).config;
    EXPECT_EQ(config.training.objective, config::Objective::dpo);
    EXPECT_EQ(config.preference.beta, 0.3);
    EXPECT_EQ(config.preference.label_smoothing, 0.1);
    EXPECT_EQ(config.preference.rpo_alpha, 0.5);
    EXPECT_EQ(config.data.format, config::DataFormat::preference);
    EXPECT_EQ(config.data.columns,
              (std::vector<std::pair<std::string, std::string>>{{"messages", "talk"}, {"chosen", "good"}}));
    EXPECT_EQ(loaded(of(rows + "rl: ipo")).config.preference.loss_type, config::PreferenceLoss::ipo);
    EXPECT_EQ(loaded(of(rows + "rl: dpo\ndpo_loss_type: [hinge]")).config.preference.loss_type,
              config::PreferenceLoss::hinge);
    EXPECT_EQ(loaded(of(rows + "rl: orpo\norpo_alpha: 0.2\nsimpo_gamma: 1")).config.preference.beta, 0.2);
    EXPECT_CONTAINS(all(of(rows + "rl: orpo\nsimpo_gamma: 1").notes), "simpo_gamma: has no effect");
    EXPECT_EQ(loaded(of(rows + "rl: simpo")).config.preference.rpo_alpha, 1);  // TRL's default
    EXPECT_EQ(loaded(of(rows + "rl: simpo\ncpo_alpha: 0.0")).config.preference.rpo_alpha, 0);

    const config::Config kto =
        loaded(of("datasets: [{path: p, type: llama3.ultra}]\nrl: kto\nkto_desirable_weight: 0.2")).config;
    EXPECT_EQ(kto.training.objective, config::Objective::kto);
    EXPECT_EQ(kto.preference.desirable_weight, 0.2);
    EXPECT_EQ(kto.data.template_name, "llama-3");
    EXPECT_EQ(kto.data.columns,
              (std::vector<std::pair<std::string, std::string>>{{"instruction", "prompt"}, {"output", "completion"}}));
    EXPECT_EQ(loaded(of("datasets: [{path: p, type: chatml.argilla}]\nrl: dpo")).config.data.columns.front(),
              (std::pair<std::string, std::string>("chosen", "chosen_response")));
    EXPECT_CONTAINS(all(of("datasets: [{path: p, type: user_defined.default}]\nrl: dpo").losses),
                    "datasets[0].type: user_defined.default: bring the rows");
}

}  // namespace
}  // namespace unsloth::testing
