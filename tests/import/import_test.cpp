// import-config: what becomes of the fields of axolotl, LLaMA-Factory, TRL, Unsloth and ms-swift.
// tests/golden/options/imports.json lists all of pinned releases.
#include "common/files.h"

#include <algorithm>
#include <map>
#include <set>

#include "tests/import/import_support.h"

namespace unsloth::testing {
namespace {

const std::map<std::string, import::PeerProgram> programs = {{"axolotl", import::PeerProgram::axolotl},
                                                             {"llamafactory", import::PeerProgram::llama_factory},
                                                             {"trl", import::PeerProgram::trl},
                                                             {"swift", import::PeerProgram::swift}};

const Json& pinned() {
    static const Json parts = [] {
        std::ifstream file(test::golden("options/imports.json"));
        return Json::parse(file);
    }();
    return parts;
}

/// The file in which fields of this part hold these values.
Json file_of(const std::string& part, const Json& fields) {
    if (part == "orpo") {  // of which no field says that it is ORPO's
        Json said = fields;
        said["objective"] = "orpo";
        return said;
    }
    if (part == "grpo" || part == "rloo" || part == "grpo script") {
        Json said = fields;
        said["objective"] = part == "rloo" ? "rloo" : "grpo";
        said["use_peft"] = true;  // without an adapter there is no reference, which RLOO needs
        if (said.value("reward_funcs", Json()).is_null()) said["reward_funcs"] = {"think_format_reward"};
        return said;
    }
    if (part == "swift dpo" || part == "swift grpo") {
        Json said = fields;
        if (!said.contains("rlhf_type")) said["rlhf_type"] = part.substr(part.find(' ') + 1);
        if (part == "swift grpo" && said.value("reward_funcs", Json()).is_null()) said["reward_funcs"] = {"format"};
        return said;
    }
    if (part == "trl") {
        Json said = fields;
        if (said.value("reward_funcs", Json()).is_null()) said["reward_funcs"] = {"rewards.accuracy"};
        return {{"rl", "grpo"}, {"trl", said}};
    }
    Json source = {{"path", "rows.jsonl"}, {"type", "chat_template"}};
    if (part == "datasets.type") {
        source["type"] = fields;
    } else if (part == "datasets") {
        source.update(fields);
    } else {
        return fields;
    }
    return {{"datasets", Json::array({source})}};
}

/// Whether a field says anything by this value: what is written, told or lost differs from a file without it.
bool leaves_a_trace(import::PeerProgram program, const Json& with, const Json& without) {
    const import::ImportedConfig one = import_text(with.dump(), program), other = import_text(without.dump(), program);
    return one.json != other.json || one.notes != other.notes || one.losses != other.losses || one.aside != other.aside;
}

/// Fields that have no effect alone, because others switch on what they serve, or that a note would only be noise for.
const std::set<std::string> silent = {
    // asked for with the field that they serve, or the same as is done anyway
    "dataset_train_split", "dataset_test_split", "mix_strategy", "quantization_method",
    "preprocess_shards",   "trust_remote_code",  "ds_type",      "hub_private_repo"};

bool names(const import::ImportedConfig& imported, const std::string& key) {
    for (const auto* lines : {&imported.notes, &imported.losses, &imported.aside})
        for (const std::string& line : *lines)
            if (line.starts_with(key + ":") || line.starts_with(key + " ") || contains(line, "." + key + ":"))
                return true;
    return false;
}

TEST(Import, EveryFieldOfThePinnedReleasesIsKnownAndLeavesATrace) {
    const std::vector<Json> values = {"odd", 7, true, false, {"odd"}, {{"odd", "value"}}};
    std::size_t fields = 0;
    for (const Json& part : pinned()) {
        const std::string program = part.at("program"), name = part.at("part");
        std::vector<import::ImportedConfig> together;
        for (const Json& value : values) {
            Json members = Json::object();
            for (const Json& field : part.at("fields")) members[field.at("name").get<std::string>()] = value;
            const import::ImportedConfig imported = import_text(file_of(name, members).dump(), programs.at(program));
            EXPECT_FALSE(contains(all(imported.losses), "is not known")) << program << "\n" << all(imported.losses);
            for (const std::string& loss : imported.losses) EXPECT_FALSE(loss.ends_with(": ")) << loss;
            together.push_back(imported);
        }
        const Json bare = file_of(name, Json::object());
        for (const Json& field : part.at("fields")) {
            const std::string key = field.at("name");
            ++fields;
            if (silent.count(key) != 0 || (name == "datasets" && (key == "path" || key == "type"))) continue;
            bool traced =
                std::any_of(together.begin(), together.end(), [&](const auto& one) { return names(one, key); });
            for (const Json& value : values)
                traced = traced || leaves_a_trace(programs.at(program), file_of(name, {{key, value}}), bare);
            EXPECT_TRUE(traced) << program << ": " << key << " vanishes without a word";
        }
    }
    EXPECT_GT(fields, 1600u);
}

TEST(Import, TheDefaultsOfAllFieldsLoseNothing) {
    for (const Json& part : pinned()) {
        const std::string program = part.at("program"), name = part.at("part");
        if (name.starts_with("datasets")) continue;
        Json members = Json::object();
        for (const Json& field : part.at("fields"))
            if (field.contains("default")) members[field.at("name").get<std::string>()] = field.at("default");
        const import::ImportedConfig imported = import_text(file_of(name, members).dump(), programs.at(program));
        EXPECT_TRUE(imported.losses.empty()) << program << " " << name << "\n" << all(imported.losses);
        EXPECT_NO_THROW(loaded(imported)) << imported.json;
    }
}

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

TEST(Import, Trl) {
    const import::ImportedConfig imported = import_text(R"(
model_name_or_path: models/llama
dataset_name: rows.jsonl
use_peft: true
lora_r: 32
lora_alpha: 16
learning_rate: 2.0e-4
max_length: 2048
packing: true
gradient_checkpointing: true
warmup_steps: 0.03
eval_strategy: steps
save_strategy: epoch
report_to: none
neftune_noise_alpha: 5
)");
    EXPECT_EQ(imported.program, "TRL 1.16.0 and Unsloth 2026.10.9");
    const config::Config config = loaded(imported).config;
    EXPECT_EQ(config.lora.r, 32);
    EXPECT_EQ(config.lora.lora_dropout, 0.05);
    EXPECT_EQ(config.lora.target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
    EXPECT_EQ(config.model.dtype, spec::DType::bf16);
    EXPECT_EQ(config.training.warmup_ratio, 0.03);
    EXPECT_EQ(config.training.optim, config::Optimizer::adamw_torch);
    EXPECT_TRUE(config.data.packing);
    EXPECT_EQ(config.training.neftune_noise_alpha, 5);
    EXPECT_EQ(config.training.saves_per_epoch, 1);
    ASSERT_EQ(imported.aside.size(), 1u) << all(imported.losses);
    EXPECT_CONTAINS(all(imported.aside), "eval_strategy: steps: the rows to evaluate on have to be named");
    EXPECT_EQ(loaded(import_text("model_name_or_path: m")).config.lora.finetuning_type, config::FinetuningType::full);
}

TEST(Import, TrlPreferences) {
    const std::string common = "model_name_or_path: m\ndataset_name: rows.jsonl\nuse_peft: true\n";
    const auto of = [&](const std::string& fields) { return import_text(common + fields); };
    const auto preference = [&](const std::string& fields) {
        const import::ImportedConfig imported = of(fields);
        EXPECT_EQ(all(imported.losses), "") << fields;
        return loaded(imported).config.preference;
    };
    const import::ImportedConfig dpo =
        of("loss_type: [robust]\nbeta: 0.3\nlabel_smoothing: 0.1\nf_divergence_type: reverse_kl\n"
           "precompute_ref_log_probs: true\nlora_dropout: 0.05\n");
    EXPECT_EQ(all(dpo.losses), "");
    EXPECT_CONTAINS(all(dpo.notes), "precompute_ref_log_probs");
    EXPECT_CONTAINS(all(dpo.notes), "lora_dropout: has no effect: disable_dropout is on");
    const config::Config config = loaded(dpo).config;
    EXPECT_EQ(config.training.objective, config::Objective::dpo);
    EXPECT_EQ(config.training.learning_rate, 1e-6);  // DPOConfig's default
    EXPECT_EQ(config.lora.lora_dropout, 0);
    EXPECT_EQ(config.preference.loss_type, config::PreferenceLoss::robust);
    EXPECT_EQ(config.preference.beta, 0.3);
    EXPECT_EQ(config.preference.label_smoothing, 0.1);
    EXPECT_EQ(preference("loss_type: hinge").loss_type, config::PreferenceLoss::hinge);
    EXPECT_EQ(preference("loss_type: [sigmoid, sft]\nloss_weights: [1.0, 0.2]").rpo_alpha, 0.2);
    EXPECT_EQ(preference("loss_type: sigmoid\nrpo_alpha: 0.5").rpo_alpha, 0.5);  // of older releases
    EXPECT_TRUE(preference("loss_type: ipo\nreference_free: true").reference_free);
    // TRL 1.16's sigmoid does not read it.
    const import::ImportedConfig smoothed = of("loss_type: sigmoid\nlabel_smoothing: 0.1");
    EXPECT_EQ(loaded(smoothed).config.preference.label_smoothing, 0);
    EXPECT_CONTAINS(all(smoothed.notes), "label_smoothing: has no effect");

    const import::ImportedConfig kto = of("beta: 0.2\ndesirable_weight: 1.5\nundesirable_weight: 0.5\nloss_type: kto");
    EXPECT_EQ(all(kto.losses), "");
    EXPECT_EQ(loaded(kto).config.training.objective, config::Objective::kto);
    EXPECT_EQ(loaded(kto).config.preference.desirable_weight, 1.5);
    EXPECT_EQ(loaded(kto).config.preference.undesirable_weight, 0.5);

    const config::PreferenceOptions simpo = preference("loss_type: simpo\nsimpo_gamma: 1.2\nlabel_smoothing: 0.1");
    EXPECT_EQ(simpo.loss_type, config::PreferenceLoss::simpo);
    EXPECT_EQ(simpo.simpo_gamma, 1.2);
    EXPECT_EQ(simpo.label_smoothing, 0.1);
    EXPECT_EQ(simpo.rpo_alpha, 1);  // cpo_alpha's default
    const config::PreferenceOptions cpo = preference("cpo_alpha: 0.5");
    EXPECT_TRUE(cpo.reference_free);
    EXPECT_EQ(cpo.rpo_alpha, 0.5);

    const config::Config orpo = loaded(of("objective: orpo\nbeta: 0.25\ndisable_dropout: false")).config;
    EXPECT_EQ(orpo.training.objective, config::Objective::orpo);
    EXPECT_EQ(orpo.preference.beta, 0.25);
    EXPECT_EQ(orpo.lora.lora_dropout, 0.05);  // ModelConfig's default
}

TEST(Import, WhatOfTrlsPreferencesIsNotThereIsSaid) {
    const auto losses = [](const std::string& fields) {
        return all(import_text("model_name_or_path: m\ndataset_name: rows.jsonl\n" + fields).losses);
    };
    EXPECT_CONTAINS(losses("beta: 0.3"), "say \"objective\" in the file");
    EXPECT_CONTAINS(losses("loss_type: exo_pair"), "loss_type: exo_pair");
    EXPECT_CONTAINS(losses("loss_type: [sigmoid, bco_pair, sft]"), "of sigmoid, hinge, ipo and robust one");
    EXPECT_CONTAINS(losses("loss_type: [sigmoid, sft]\nloss_weights: [0.8, 1]"),
                    "the loss of the pairs has the weight 1");
    EXPECT_CONTAINS(losses("loss_type: [sigmoid]\nloss_weights: [1, 2]"), "a number for each loss_type");
    EXPECT_CONTAINS(losses("loss_type: apo_zero_unpaired"), "training.objective kto has one loss");
    EXPECT_CONTAINS(losses("loss_type: sigmoid\nsync_ref_model: true"), "the reference stays what it was");
    EXPECT_CONTAINS(losses("loss_type: sigmoid\nld_alpha: 0.5"), "count alike");
    EXPECT_CONTAINS(losses("loss_type: sigmoid\nf_divergence_type: js_divergence"), "reverse KL");
}

TEST(Import, UnslothAsJson) {
    const import::ImportedConfig imported = import_text(R"({"model_name": "models/llama", "max_seq_length": 4096,
        "load_in_4bit": true, "r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "o_proj"], "bias": "none",
        "use_gradient_checkpointing": "unsloth", "random_state": 7, "optim": "adamw_8bit", "warmup_steps": 5})");
    EXPECT_TRUE(imported.losses.empty()) << all(imported.losses);
    const config::Config config = loaded(imported).config;
    EXPECT_EQ(config.model.max_seq_length, 4096);
    EXPECT_EQ(config.lora.target_modules, (std::vector<std::string>{"q_proj", "o_proj"}));
    EXPECT_EQ(config.training.gradient_checkpointing, config::GradientCheckpointing::full_offload);
    EXPECT_EQ(config.training.seed, 7);
    EXPECT_EQ(config.lora.finetuning_type, config::FinetuningType::lora);
    // Under TRL's name for the model too: r is get_peft_model's.
    const config::Config other =
        loaded(import_text(R"({"model_name_or_path": "m", "load_in_4bit": true, "r": 8})")).config;
    EXPECT_EQ(other.lora.finetuning_type, config::FinetuningType::lora);
    EXPECT_TRUE(other.model.load_in_4bit);
}

// Configurations that these projects publish: what is not carried over is said, field by field, and nothing else is
// lost.
TEST(Import, PublishedConfigurations) {
    std::ifstream file(test::golden("options/published.json"));
    const Json published = Json::parse(file);
    EXPECT_GE(published.size(), 30u);
    for (const Json& one : published) {
        SCOPED_TRACE(one.at("from").get<std::string>() + ": " + one.at("file").get<std::string>());
        const Json fields = one.at("fields");
        const import::PeerProgram program = programs.at(one.at("program"));
        const import::ImportedConfig imported = import_text(fields.dump(), program);
        std::vector<std::string> lost;
        for (const std::string& loss : imported.losses) lost.push_back(loss.substr(0, loss.find(':')));
        EXPECT_EQ(Json(lost), one.at("not_carried_over")) << all(imported.losses);
        std::vector<std::string> aside;
        for (const std::string& loss : imported.aside) aside.push_back(loss.substr(0, loss.find(':')));
        EXPECT_EQ(Json(aside), one.value("aside", Json::array())) << all(imported.aside);
        std::string whole;
        for (const std::string& name : lost)
            if (name == "as a whole") whole = name;
        if (whole.empty()) {
            EXPECT_NO_THROW(loaded(imported)) << imported.json;
        }
        const auto differs = [&](const Json& changed) {
            const import::ImportedConfig other = import_text(changed.dump(), program);
            return other.json != imported.json || other.notes != imported.notes || other.losses != imported.losses ||
                   other.aside != imported.aside;
        };
        for (const auto& [key, value] : fields.items()) {
            const bool off = value.is_null() || value == false || value == "" || value == 0;
            if (off || silent.count(key) != 0 || names(imported, key)) continue;
            Json without = fields, odd = fields;
            without.erase(key);
            odd[key] = "odd";  // where the value is what is done anyway, another one leaves a trace
            EXPECT_TRUE(differs(without) || differs(odd)) << key << " vanishes without a word";
        }
    }
}

TEST(Import, AFileOfNobodysIsRefused) {
    EXPECT_CONTAINS(usage_message([] { import_text("seed: 1"); }, "import.wrong-program"),
                    "is no configuration of axolotl");
    EXPECT_CONTAINS(usage_message([] { import_text("training: {seed: 1}"); }), "of this program already");
    EXPECT_CONTAINS(usage_message([] { import_text("- a\n- b\n"); }), "expected an object of fields at the top");
}

}  // namespace
}  // namespace unsloth::testing
