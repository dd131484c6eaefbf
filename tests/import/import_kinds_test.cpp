// import-config: what a peer does where its file says nothing, and what it makes of part of what the file says.
#include "tests/import/import_support.h"

namespace unsloth::testing {
namespace {

// The kinds that axolotl's, LLaMA-Factory's and TRL's files showed: what the peer does when nothing is said, and what
// it does with part of what is said.
TEST(ImportKinds, DocumentsAreCutAsAxolotlDoes) {
    const auto of = [](const std::string& rest) { return import_text("base_model: m\nadapter: lora\n" + rest); };
    const auto long_rows = [&](const std::string& rest) { return loaded(of(rest)).config.data.long_rows; };
    const std::string docs = "{path: a, type: completion}", chats = "{path: b, type: chat_template}";
    EXPECT_EQ(long_rows("datasets: [" + docs + "]"), config::LongRows::split);
    EXPECT_EQ(long_rows("pretraining_dataset: a"), config::LongRows::split);
    EXPECT_EQ(long_rows("datasets: [" + chats + "]"), config::LongRows::drop);
    EXPECT_EQ(long_rows("datasets: [" + chats + "]\nexcess_length_strategy: truncate"), config::LongRows::truncate);
    EXPECT_EQ(long_rows("datasets: [" + docs + "]\nexcess_length_strategy: truncate"), config::LongRows::split);
    EXPECT_CONTAINS(all(of("datasets: [" + docs + ", " + chats + "]").losses), "data.overflow_strategy is of all rows");
    // As versions before the option was renamed read it, too.
    EXPECT_CONTAINS(of("datasets: [" + docs + "]").json, "\"long_rows\": \"split\"");
}

TEST(ImportKinds, TypesWhereBothAreOff) {
    const auto type = [](const std::string& text) { return loaded(import_text(text)).config.model.dtype; };
    EXPECT_EQ(type("base_model: m"), spec::DType::bf16);
    EXPECT_EQ(type("base_model: m\nbf16: false"), spec::DType::f32);
    EXPECT_EQ(type("base_model: m\nbf16: false\nfp16: false"), spec::DType::f32);
    EXPECT_EQ(type("base_model: m\nbf16: false\nfp16: true"), spec::DType::f16);
    EXPECT_EQ(type("base_model: m\nadapter: lora\nload_in_8bit: true\nbf16: false"), spec::DType::f16);
    EXPECT_EQ(type("model_name_or_path: m\nuse_peft: true\nbf16: false"), spec::DType::f32);
    EXPECT_EQ(type("model_name_or_path: m\nuse_peft: true\nbf16: false\ndtype: float16"), spec::DType::f16);
    EXPECT_EQ(type("model_name_or_path: m\nuse_peft: true\ndtype: float16"), spec::DType::bf16)
        << "of the weights alone";
    EXPECT_EQ(type("model_name: m\nr: 8\ndtype: float16"), spec::DType::f16);
}

TEST(ImportKinds, PreferencesAreLearntWithoutDropout) {
    const auto of = [](const std::string& text) { return import_text(text + "\nlora_dropout: 0.05\n"); };
    for (const char* method : {"dpo", "ipo", "simpo", "orpo", "kto"}) {
        const import::ImportedConfig axolotl = of(cat("base_model: m\nadapter: lora\nrl: ", method));
        EXPECT_EQ(loaded(axolotl).config.lora.lora_dropout, 0) << method;
        EXPECT_CONTAINS(all(axolotl.notes), "lora_dropout: has no effect");
    }
    for (const char* stage : {"dpo", "kto"})
        EXPECT_EQ(loaded(of(cat("model_name_or_path: m\nstage: ", stage))).config.lora.lora_dropout, 0) << stage;
    for (const char* text : {"base_model: m\nadapter: lora", "model_name_or_path: m\nstage: sft",
                             "model_name_or_path: m\nuse_peft: true", "model_name: m\nr: 8"})
        EXPECT_EQ(loaded(of(text)).config.lora.lora_dropout, 0.05) << text;
}

TEST(ImportKinds, OfAListOneNameIsLostAlone) {
    const std::string targets = "[q_proj, v_proj, embed_tokens, lm_head, query_key_value]";
    for (const std::string& text : {"base_model: m\nadapter: lora\nlora_target_modules: " + targets,
                                    "model_name_or_path: m\nstage: sft\nlora_target: " + targets,
                                    "model_name_or_path: m\nuse_peft: true\nlora_target_modules: " + targets,
                                    "model_name: m\nr: 8\ntarget_modules: " + targets}) {
        const import::ImportedConfig imported = import_text(text);
        const config::LoraOptions lora = loaded(imported).config.lora;
        EXPECT_EQ(lora.target_modules, (std::vector<std::string>{"q_proj", "v_proj"})) << text;
        EXPECT_EQ(lora.modules_to_save, (std::vector<std::string>{"embed_tokens", "lm_head"})) << text;
        ASSERT_EQ(imported.losses.size(), 1u) << all(imported.losses);
        EXPECT_CONTAINS(imported.losses[0], "query_key_value: lora.target_modules is a list of strings out of");
        EXPECT_CONTAINS(all(imported.notes), "lora.modules_to_save trains these as a whole");
    }
    const import::ImportedConfig saved = import_text(
        "base_model: m\nadapter: lora\nlora_target_linear: true\nlora_target_modules: [lm_head]\n"
        "lora_modules_to_save: [model.embed_tokens, norm]");
    EXPECT_EQ(loaded(saved).config.lora.target_modules.size(), 7u);
    EXPECT_EQ(loaded(saved).config.lora.modules_to_save, (std::vector<std::string>{"embed_tokens", "lm_head"}));
    EXPECT_CONTAINS(all(saved.losses), "lora_modules_to_save: norm");
    const import::ImportedConfig reports = import_text("model_name_or_path: m\nstage: sft\nreport_to: [wandb, mlflow]");
    EXPECT_CONTAINS(all(reports.losses), "report_to: mlflow");
    EXPECT_EQ(loaded(reports).config.training.report_to, (std::vector<std::string>{"tensorboard"}));
}

TEST(ImportKinds, WhatLlamaFactoryReadsOfRows) {
    const ScratchFolder folder;
    folder.write("dataset_info.json", R"({
        "plain": {"file_name": "a.json"},
        "named": {"file_name": "a.json", "columns": {"prompt": "question", "query": "", "response": "answer"}},
        "talk": {"file_name": "b.json", "formatting": "sharegpt"},
        "openai": {"file_name": "c.json", "formatting": "openai", "columns": {"messages": "messages", "tools": "functions"},
                   "tags": {"role_tag": "role", "content_tag": "content"}},
        "texts": {"file_name": "d.json", "columns": {"prompt": "body"}}})");
    const auto of = [&](const std::string& rest) {
        const auto file = folder.write("run.yaml", "model_name_or_path: m\ndataset_dir: .\ntemplate: qwen3\n" + rest);
        return import::import_config(file, import::PeerProgram::llama_factory);
    };
    const auto data = [&](const std::string& rest) { return loaded(of(rest)).config.data; };
    EXPECT_EQ(data("dataset: plain").columns, (Columns{{"history", ""}, {"system", ""}}));
    EXPECT_EQ(data("dataset: plain").template_name, "default");
    EXPECT_EQ(
        data("dataset: named").columns,
        (Columns{{"instruction", "question"}, {"input", ""}, {"history", ""}, {"system", ""}, {"output", "answer"}}));
    EXPECT_EQ(data("dataset: talk").columns, (Columns{{"system", ""}, {"tools", ""}}));
    EXPECT_EQ(data("dataset: talk").template_name, "auto");
    EXPECT_EQ(data("dataset: openai").format, config::DataFormat::messages);
    EXPECT_EQ(data("dataset: openai").columns, (Columns{{"system", ""}, {"tools", "functions"}}));
    EXPECT_EQ(data("dataset: plain,talk").template_name, "default");
    const config::DataOptions texts = data("stage: pt\ndataset: texts");
    EXPECT_EQ(texts.format, config::DataFormat::text);
    EXPECT_EQ(texts.columns, (Columns{{"text", "body"}}));
    EXPECT_EQ(texts.long_rows, config::LongRows::split);
    EXPECT_TRUE(texts.packing);
    EXPECT_EQ(data("stage: pt\ndataset: texts\npacking: false").long_rows, config::LongRows::truncate);
    EXPECT_EQ(all(of("stage: pt\ndataset: texts").losses), "") << "texts have no template";
    // What all sources have in common holds for evaluation rows too.
    const import::ImportedConfig evaluated = of("dataset: plain\neval_dataset: plain\nmax_samples: 5");
    EXPECT_CONTAINS(evaluated.losses.at(0), "template: qwen3");
    EXPECT_EQ(evaluated.losses.size(), 1u) << all(evaluated.losses);
    const auto online = import::import_config(
        folder.write("online.yaml", "model_name_or_path: m\nstage: sft\ndataset_dir: ONLINE\ndataset: org/rows\n"),
        import::PeerProgram::automatic);
    EXPECT_EQ(loaded(online).config.data.train_file, "org/rows");
}

TEST(ImportKinds, TrlsDefaultsOfRows) {
    const auto of = [](const std::string& rest) {
        return import_text("model_name_or_path: m\nuse_peft: true\n" + rest);
    };
    EXPECT_EQ(loaded(of("dataset_name: a\nmax_length: null")).config.model.max_seq_length, 0);
    EXPECT_CONTAINS(all(of("dataset_name: a").notes), "assistant_only_loss: is off");
    EXPECT_FALSE(contains(all(of("dataset_name: a\nassistant_only_loss: true").notes), "is off"));
    EXPECT_FALSE(loaded(of("dataset_name: a\nloss_type: kto")).config.data.shuffle) << "KTOTrainer takes rows in order";
    EXPECT_TRUE(loaded(of("dataset_name: a\nloss_type: sigmoid")).config.data.shuffle);
    EXPECT_EQ(loaded(of("dataset_name: a\ndatasets: [{path: b}]")).config.data.train_file, "b");
}

TEST(ImportKinds, AxolotlTakesNoWarmupForTheUsualOne) {
    const auto ratio = [](const std::string& rest) {
        return loaded(import_text("base_model: m\n" + rest)).config.training.warmup_ratio;
    };
    for (const char* text : {"", "warmup_steps: 0", "warmup_ratio: 0.0", "warmup_steps: null"})
        EXPECT_EQ(ratio(text), 0.03) << text;
    EXPECT_EQ(ratio("warmup_ratio: 0.1"), 0.1);
    EXPECT_EQ(ratio("warmup_steps: 10"), 0);
}

TEST(ImportKinds, ManyMarksDecideWhoseFileItIs) {
    const auto refused = [](const std::string& text) { return usage_message([&] { import_text(text); }); };
    EXPECT_CONTAINS(refused("model: Qwen/Qwen3-4B\nmodel_class: llm\npeft_config: {name: lora, r: 16}\n"
                            "dist_config: {name: fsdp2}\ntrain_dataset: data/x.yaml\noutput_dir: o\n"
                            "micro_batch_size: 1\ncutoff_len: 2048\nlearning_rate: 1.0e-4\n"),
                    "is of LLaMA-Factory's v1 (model, model_class, peft_config, dist_config, …)");
    EXPECT_CONTAINS(refused("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config: {}\n"
                            "num_processes: 2\n"),
                    "Accelerate");
    EXPECT_CONTAINS(refused("task: llm-sft\nbase_model: m\nproject_name: p\nbackend: local\ndata: {path: a}\n"),
                    "AutoTrain");
    EXPECT_CONTAINS(refused(R"({"peft_type": "LORA", "r": 8, "inference_mode": true, "lora_alpha": 16})"),
                    "model.adapter_name_or_path");
    EXPECT_CONTAINS(refused(R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "vocab_size": 96})"),
                    "model.path");
    EXPECT_CONTAINS(refused("base_model: m\na: 1\nb: 2\nc: 3\n"), "does not have 3 of its 4 fields");
    // Fields of several programs: the one that knows most of them.
    EXPECT_EQ(import_text("model_name_or_path: m\nstage: sft\nmax_seq_length: 8\ncutoff_len: 9").program,
              "LLaMA-Factory 0.9.5");
    EXPECT_EQ(import_text("model_name_or_path: m\nuse_peft: true\nlora_r: 4\ntemplate: x").program,
              "TRL 1.16.0 and Unsloth 2026.10.9");
    EXPECT_EQ(import_text("model: m\ntrain_type: lora\ndataset: a\nlora_rank: 8\nmax_length: 2048\n").program,
              "ms-swift 4.6.0");
    EXPECT_EQ(import_text("base_model: m\nsequence_len: 8\nlora_r: 4\nlora_alpha: 8\ntemplate: x").program,
              "axolotl 0.19.0");
}

}  // namespace
}  // namespace unsloth::testing
