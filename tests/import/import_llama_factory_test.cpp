#include "common/files.h"

#include "tests/import/import_support.h"

namespace unsloth::testing {
namespace {

TEST(Import, LlamaFactory) {
    const ScratchFolder folder;
    std::filesystem::create_directory(folder.path() / "sets");
    folder.write("sets/dataset_info.json", R"({
        "one": {"file_name": "one.json"},
        "two": {"file_name": "two.json", "formatting": "sharegpt", "columns": {"messages": "talk", "images": "pictures"},
                "tags": {"role_tag": "role", "content_tag": "content"}}})");
    const auto file = folder.write("run.yaml", R"(
model_name_or_path: models/llama
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 16
lora_target: q_proj, v_proj
quantization_bit: 4
dataset: one,two,three
dataset_dir: sets
template: llama3
cutoff_len: 1024
output_dir: saves/x
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
save_steps: 200
report_to: none
plot_loss: true
overwrite_output_dir: true
)");
    const import::ImportedConfig imported = import::import_config(file, import::PeerProgram::automatic);
    EXPECT_EQ(imported.program, "LLaMA-Factory 0.9.5");
    const config::Config config = loaded(imported).config;
    EXPECT_EQ(config.lora.r, 16);
    EXPECT_EQ(config.lora.lora_alpha, 32);  // twice the rank
    EXPECT_EQ(config.lora.target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
    EXPECT_TRUE(config.model.load_in_4bit);
    EXPECT_EQ(config.model.max_seq_length, 1024);
    EXPECT_EQ(config.data.template_name, "llama-3");
    ASSERT_EQ(config.data.datasets.size(), 2u);
    EXPECT_EQ(config.data.datasets[0].path, "sets/one.json");
    EXPECT_EQ(config.data.datasets[0].format, config::DataFormat::alpaca);
    EXPECT_EQ(config.data.datasets[1].format, config::DataFormat::sharegpt);
    EXPECT_EQ(config.data.datasets[1].columns.front(), (std::pair<std::string, std::string>("conversations", "talk")));
    EXPECT_EQ(config.training.warmup_ratio, 0.1);
    EXPECT_EQ(config.training.save_steps, 200);
    EXPECT_TRUE(config.training.overwrite_output_dir);
    ASSERT_EQ(imported.losses.size(), 2u) << all(imported.losses);
    EXPECT_CONTAINS(all(imported.losses), "dataset: three is a name in sets/dataset_info.json, which does not have it");
    EXPECT_CONTAINS(all(imported.losses), "dataset two.columns: images");
}

TEST(Import, LlamaFactorysDefaults) {
    const config::Config config = loaded(import_text("model_name_or_path: m\nstage: sft\nlora_rank: 4")).config;
    EXPECT_EQ(config.lora.lora_alpha, 8);
    EXPECT_EQ(config.training.per_device_train_batch_size, 8);
    EXPECT_EQ(config.training.num_train_epochs, 3);
    EXPECT_EQ(config.training.learning_rate, 5e-5);
    EXPECT_FALSE(config.model.load_in_4bit);
    EXPECT_CONTAINS(all(import_text("stage: ppo").losses), "stage: ppo: sft, pt, dpo and kto are there");
    EXPECT_CONTAINS(all(import_text("template: gemma").losses), "template: gemma: data.template default");
    EXPECT_CONTAINS(all(import_text("stage: sft\nquantization_bit: 3").losses), "quantization_bit: 3 by bnb");
    EXPECT_TRUE(
        loaded(import_text("model_name_or_path: m\nstage: sft\nquantization_bit: 8")).config.model.load_in_8bit);
}

TEST(Import, LlamaFactorysPreferences) {
    const ScratchFolder folder;
    folder.write("dataset_info.json", R"({
        "pairs": {"file_name": "pairs.json", "ranking": true, "columns": {"prompt": "ask", "chosen": "good", "rejected": "bad"}},
        "talk": {"file_name": "talk.json", "ranking": true, "formatting": "sharegpt"},
        "judged": {"file_name": "judged.json", "columns": {"kto_tag": "verdict"}}})");
    const auto of = [&](const std::string& rest) {
        const auto file =
            folder.write("run.yaml", "model_name_or_path: m\nfinetuning_type: lora\ndataset_dir: .\n" + rest);
        return import::import_config(file, import::PeerProgram::llama_factory);
    };
    const import::ImportedConfig dpo =
        of("stage: dpo\ndataset: pairs,talk\nmax_samples: 1000\npref_beta: 0.2\npref_ftx: 0.1\npref_loss: hinge\n");
    EXPECT_EQ(all(dpo.losses), "");
    const config::Config config = loaded(dpo).config;
    EXPECT_EQ(config.training.objective, config::Objective::dpo);
    EXPECT_EQ(config.preference.loss_type, config::PreferenceLoss::hinge);
    EXPECT_EQ(config.preference.beta, 0.2);
    EXPECT_EQ(config.preference.rpo_alpha, 0.1);
    ASSERT_EQ(config.data.datasets.size(), 2u);
    EXPECT_EQ(config.data.format, config::DataFormat::preference);
    for (const config::DataSource& source : config.data.datasets) EXPECT_EQ(source.max_samples, 1000);
    EXPECT_EQ(config.data.datasets[0].columns, (Columns{{"instruction", "ask"},
                                                        {"input", ""},
                                                        {"history", ""},
                                                        {"system", ""},
                                                        {"chosen", "good"},
                                                        {"rejected", "bad"}}));
    EXPECT_EQ(loaded(of("stage: dpo\npref_loss: orpo\npref_beta: 0.3")).config.training.objective,
              config::Objective::orpo);
    const config::Config kto = loaded(of("stage: kto\ndataset: judged\nkto_rejected_weight: 2.0")).config;
    EXPECT_EQ(kto.training.objective, config::Objective::kto);
    EXPECT_EQ(kto.preference.undesirable_weight, 2);
    EXPECT_EQ(kto.data.columns.back(), (std::pair<std::string, std::string>("kto_tag", "verdict")));
    EXPECT_CONTAINS(all(of("stage: dpo\npref_loss: kto_pair").losses), "pref_loss: kto_pair: expected one of");
    EXPECT_CONTAINS(all(of("stage: sft\ndataset: pairs").losses), "its rows are pairs");
}

// A split that is left out would be the training rows.
TEST(Import, RowsToEvaluateOn) {
    const auto of = [](const std::string& tests) {
        return import_text("base_model: m\nadapter: lora\ndatasets: [{path: org/rows, type: alpaca}]\ntest_datasets: " +
                           tests);
    };
    const import::ImportedConfig split = of("[{path: org/rows, type: alpaca, split: test}]");
    EXPECT_EQ(loaded(split).config.data.eval_file, "org/rows");
    EXPECT_EQ(loaded(split).config.data.eval_split, "test");
    const import::ImportedConfig splits = of("[{path: org/a, type: alpaca, split: test}, {path: b, type: alpaca}]");
    EXPECT_CONTAINS(all(splits.losses), "test_datasets a.split: test: name that split's files");
    const import::ImportedConfig several = of("[{path: a/law.jsonl, type: alpaca}, {path: b/law.jsonl, type: alpaca}]");
    EXPECT_EQ(all(several.losses), "");
    EXPECT_EQ(loaded(several).config.data.eval_files,
              (std::vector<std::pair<std::string, std::string>>{{"law", "a/law.jsonl"}, {"law_", "b/law.jsonl"}}));
    EXPECT_CONTAINS(all(of("[{path: c.jsonl, type: completion, field: body}]").losses),
                    "test_datasets c: its rows have");
}

}  // namespace
}  // namespace unsloth::testing
