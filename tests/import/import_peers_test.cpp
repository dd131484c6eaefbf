// Constructs of the peers' own examples: what is sharded, expressions over modules, tokens and templates that a model
// has anyway, what is left aside, and Unsloth Studio's files.
#include "tests/import/import_support.h"

namespace unsloth::testing {
namespace {

const std::string axolotl =
    "base_model: org/Llama-2-7b-hf\nmicro_batch_size: 1\ndatasets: [{path: a.jsonl, type: alpaca}]\n";

import::ImportedConfig of_axolotl(const std::string& more) {
    return import_text(axolotl + more, import::PeerProgram::axolotl);
}

TEST(ImportPeers, ShardingIsCarriedOverAndNeverALoss) {
    const auto fsdp = of_axolotl(
        "fsdp_version: 2\nfsdp_config: {offload_params: true, cpu_ram_efficient_loading: false, "
        "auto_wrap_policy: TRANSFORMER_BASED_WRAP, transformer_layer_cls_to_wrap: LlamaDecoderLayer, "
        "state_dict_type: FULL_STATE_DICT, reshard_after_forward: true}\n");
    EXPECT_EQ(all(fsdp.losses), "");
    EXPECT_EQ(loaded(fsdp).config.distributed.zero_stage, 3);
    EXPECT_EQ(loaded(fsdp).config.distributed.offload_optimizer, config::OptimizerPlace::cpu);
    for (const char* words : {"true", "[auto_wrap]", "[offload]", "full_shard auto_wrap"})
        EXPECT_EQ(loaded(of_axolotl(cat("fsdp: ", words, "\n"))).config.distributed.zero_stage, 3) << words;
    EXPECT_CONTAINS(all(of_axolotl("fsdp: [no_shard, offload]\n").aside), "offload without shards");
    EXPECT_CONTAINS(all(of_axolotl("fsdp: full_shard\nfsdp_config: nowhere.json\n").aside), "nowhere.json");
    const auto grads = of_axolotl("fsdp: [shard_grad_op, auto_wrap]\nfsdp_config: {fsdp_offload_params: false}\n");
    EXPECT_EQ(loaded(grads).config.distributed.zero_stage, 2);
    const auto odd = of_axolotl("fsdp: [full_shard]\nfsdp_config: {some_new_member: 3}\n");
    EXPECT_EQ(all(odd.losses), "");
    EXPECT_CONTAINS(all(odd.aside), "fsdp_config.some_new_member: 3");
}

TEST(ImportPeers, ADeepSpeedFileIsReadFromAboveTheConfiguration) {
    const ScratchFolder folder;
    std::filesystem::create_directories(folder.path() / "examples/deep");
    std::filesystem::create_directories(folder.path() / "ds");
    folder.write("ds/mine.json",
                 "{\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\"}}, "
                 "\"gradient_clipping\": 0.5}");
    const auto imported = import::import_config(
        folder.write("examples/deep/a.yml", axolotl + "deepspeed: ds/mine.json\n"), import::PeerProgram::axolotl);
    EXPECT_EQ(all(imported.losses), "");
    const config::Config config = loaded(imported).config;
    EXPECT_EQ(config.distributed.zero_stage, 2);
    EXPECT_EQ(config.distributed.offload_optimizer, config::OptimizerPlace::cpu);
    EXPECT_EQ(config.training.max_grad_norm, 0.5);
    const auto by_name = of_axolotl("deepspeed: deepspeed_configs/zero3_bf16.json\n");
    EXPECT_EQ(loaded(by_name).config.distributed.zero_stage, 3);
    EXPECT_CONTAINS(all(by_name.notes), "its name says the stage");
    const auto unknown = of_axolotl("deepspeed: my/own.json\n");
    EXPECT_CONTAINS(all(unknown.aside), "deepspeed: my/own.json");
    EXPECT_EQ(loaded(unknown).config.distributed.zero_stage, 0);
}

TEST(ImportPeers, AnExpressionOverModulesNamesProjections) {
    const std::string lora = "adapter: lora\nlora_target_modules: ";
    const auto both =
        of_axolotl(lora + "'model.language_model.layers.[\\d]+.(mlp|self_attn).(up|down|gate|q|k|v|o)_proj'\n");
    EXPECT_EQ(all(both.losses), "");
    EXPECT_EQ(loaded(both).config.lora.target_modules.size(), 7U);
    const auto attention = of_axolotl(lora + "'.*self_attn\\.(q|v)_proj'\n");
    EXPECT_EQ(loaded(attention).config.lora.target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
    const auto some = of_axolotl(lora + "'.*\\.layers\\.(3|7)\\.self_attn\\.q_proj'\n");
    EXPECT_CONTAINS(all(some.losses), "lora_target_modules");
    const auto none = of_axolotl(lora + "'vision_tower.*'\n");
    EXPECT_CONTAINS(all(none.losses), "lora_target_modules");
    const auto ends = of_axolotl(lora + "[self_attn.q_proj, mlp.up_proj]\n");
    EXPECT_EQ(loaded(ends).config.lora.target_modules, (std::vector<std::string>{"q_proj", "up_proj"}));
}

TEST(ImportPeers, OtherSpecialTokensAreCarriedOver) {
    const auto same =
        of_axolotl("special_tokens: {bos_token: <s>, eos_token: </s>, unk_token: <unk>, pad_token: </s>}\n");
    EXPECT_EQ(all(same.losses), "");
    const auto other = of_axolotl("special_tokens: {eos_token: <|im_end|>}\n");
    using Tokens = std::vector<std::pair<std::string, std::string>>;
    EXPECT_EQ(loaded(other).config.model.special_tokens, (Tokens{{"eos_token", "<|im_end|>"}}));
    EXPECT_CONTAINS(all(of_axolotl("special_tokens: {mask_token: <m>}\n").losses), "special_tokens.mask_token: <m>");
    const auto trl = import_text("model_name_or_path: m\nlearning_rate: 1e-4\neos_token: <end>\n");
    EXPECT_EQ(loaded(trl).config.model.special_tokens, (Tokens{{"eos_token", "<end>"}}));
    const auto ends = of_axolotl("eot_tokens: [<|im_end|>, <mine>]\n");
    EXPECT_CONTAINS(all(ends.losses), "eot_tokens: <mine>");
    EXPECT_CONTAINS(all(ends.notes), "eot_tokens: <|im_end|>");
    const ScratchFolder folder;
    folder.write("tokenizer_config.json", "{\"eos_token\": {\"content\": \"<end>\"}}");
    const auto local = import_text("base_model: " + folder.path().string() +
                                       "\nmicro_batch_size: 1\nspecial_tokens: {eos_token: <end>, bos_token: <s>}\n",
                                   import::PeerProgram::axolotl);
    EXPECT_EQ(loaded(local).config.model.special_tokens, (Tokens{{"bos_token", "<s>"}}));
    EXPECT_CONTAINS(all(local.notes), "special_tokens.eos_token: <end> is the tokenizer's own");
}

TEST(ImportPeers, LongPromptsOfPreferencesAreCutAsInTrl) {
    const auto of = [](const std::string& more) {
        return import_text("model_name_or_path: m\nlearning_rate: 1e-4\nmax_length: 1024\n" + more);
    };
    const auto cut = of("objective: dpo\nmax_prompt_length: 512\ntruncation_mode: keep_start\n");
    EXPECT_EQ(all(cut.losses), "");
    const config::PreferenceOptions options = loaded(cut).config.preference;
    EXPECT_EQ(options.max_prompt_length, 512);
    EXPECT_EQ(options.truncation_mode, config::TruncationMode::keep_start);
    EXPECT_CONTAINS(all(of("objective: dpo\nmax_prompt_length: 1024\n").losses), "it leaves no room for an answer");
    const auto texts = of("max_prompt_length: 512\ntruncation_mode: keep_start\n");
    EXPECT_EQ(all(texts.losses), "");
    EXPECT_EQ(loaded(texts).config.preference.max_prompt_length, 0);
    EXPECT_CONTAINS(all(of("truncation_mode: keep_end\n").losses), "truncation_mode: keep_end");
}

TEST(ImportPeers, ATemplateIsTheModelsOwnOnlyForItsModels) {
    const auto of = [](const std::string& model) {
        return import_text("base_model: " + model +
                               "\nmicro_batch_size: 1\nchat_template: gemma3\n"
                               "datasets: [{path: a.jsonl, type: chat_template}]\n",
                           import::PeerProgram::axolotl);
    };
    EXPECT_EQ(all(of("google/gemma-3-12b-it").losses), "");
    EXPECT_CONTAINS(all(of("google/gemma-3-12b-pt").losses), "chat_template: gemma3");
    const auto llama_factory = [](const std::string& model) {
        return import_text("model_name_or_path: " + model +
                           "\nstage: sft\ntemplate: qwen3_nothink\ndataset_dir: ONLINE\n"
                           "dataset: org/rows\n");
    };
    EXPECT_EQ(loaded(llama_factory("Qwen/Qwen3-4B-Instruct-2507")).config.data.template_name, "default");
    EXPECT_EQ(loaded(llama_factory("Qwen/Qwen3-8B")).config.data.template_name, "chatml");
}

TEST(ImportPeers, WhatChangesNothingForThisModelIsANote) {
    const auto of = [](const std::string& model, const std::string& fields) {
        return import_text("base_model: " + model + "\ndatasets: [{path: a.jsonl, type: alpaca}]\n" + fields,
                           import::PeerProgram::axolotl);
    };
    const std::string resized = "resize_token_embeddings_to_32x: true\n";
    EXPECT_EQ(all(of("microsoft/Phi-3-mini-4k-instruct", resized).losses), "");
    EXPECT_CONTAINS(all(of("google/gemma-3-1b-it", resized).losses), "resize_token_embeddings_to_32x");
    EXPECT_CONTAINS(all(of("Qwen/Qwen3-8B", resized + "tokens: [<new>]\n").losses), "resize_token_embeddings_to_32x");
    const std::string text_alone = "unfrozen_parameters: [^model.language_model.*, ^lm_head.*]\n";
    EXPECT_EQ(all(of("google/gemma-3-4b-it", "adapter: lora\n" + text_alone).losses), "");
    EXPECT_CONTAINS(all(of("google/gemma-3-4b-it", text_alone).losses), "unfrozen_parameters");
    EXPECT_CONTAINS(all(of("a/b", "adapter: lora\nunfrozen_parameters: [layers.2.*]\n").losses), "layers.2");
    EXPECT_EQ(all(of("Qwen/Qwen2.5-VL-7B-Instruct", "processor_type: AutoProcessor\n").losses), "");
    EXPECT_CONTAINS(all(of("google/gemma-3-4b-it", "processor_type: AutoProcessor\n").losses), "text alone");
    const auto in_order = of("a/b", "curriculum_sampling: true\n");
    EXPECT_EQ(all(in_order.losses), "");
    EXPECT_FALSE(loaded(in_order).config.data.shuffle);
    const std::string two =
        "base_model: a/b\ncurriculum_sampling: true\ndatasets: [{path: a.jsonl, type: alpaca}, "
        "{path: b.jsonl, type: alpaca}]\n";
    EXPECT_CONTAINS(all(import_text(two, import::PeerProgram::axolotl).losses), "curriculum_sampling");
    EXPECT_EQ(all(import_text(two + "shuffle_merged_datasets: false\n", import::PeerProgram::axolotl).losses), "");
    const auto phi = import_text(
        "base_model: a/b\nchat_template: phi_3\ndatasets: [{path: a.jsonl, "
        "type: chat_template}]\n",
        import::PeerProgram::axolotl);
    EXPECT_EQ(all(phi.losses), "");
    EXPECT_CONTAINS(loaded(phi).config.data.template_name, "'<|end|>\\n<|assistant|>\\n'");
    const auto thinks = [](const std::string& rest) {
        return import_text("base_model: Qwen/Qwen3-8B\ndatasets: [{path: a.jsonl, type: chat_template}]\n" + rest,
                           import::PeerProgram::axolotl);
    };
    EXPECT_EQ(all(thinks("chat_template: qwen3\n").losses), "");
    EXPECT_CONTAINS(loaded(thinks("chat_template: qwen3\n")).config.data.template_name,
                    "{{- '<think>\\n\\n</think>\\n\\n' -}}\n      {%- generation -%}");
    EXPECT_CONTAINS(all(thinks("").losses), "empty thought");
    const auto long_ones = of("a/b", "min_sample_len: 200_000\n");
    EXPECT_EQ(all(long_ones.losses), "");
    EXPECT_EQ(loaded(long_ones).config.data.min_length, 200000);
}

TEST(ImportPeers, ImagesOfLlamaFactoryAreReadWhereTheModelSeesThem) {
    const ScratchFolder folder;
    std::filesystem::create_directories(folder.path() / "data");
    folder.write("data/dataset_info.json",
                 R"({"seen": {"file_name": "seen.json", "formatting": "sharegpt", "columns": {"messages": "messages",
                 "images": "pictures"}, "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user",
                 "assistant_tag": "assistant"}}, "one": {"file_name": "one.json"}})");
    const auto of = [&](const std::string& model, const std::string& fields) {
        return import::import_config(folder.write("theirs.yaml", "model_name_or_path: " + model + "\n" + fields),
                                     import::PeerProgram::llama_factory);
    };
    const auto sees = of("Qwen/Qwen3-VL-4B-Instruct", "dataset: seen\ntemplate: qwen3_vl_nothink\nmedia_dir: pics\n");
    EXPECT_EQ(loaded(sees).config.data.image_root, "pics");
    EXPECT_CONTAINS(sees.json, "\"images\": \"pictures\"");
    // Its own limit of pixels is not the model's, and is written even where it is their default.
    EXPECT_EQ(all(sees.losses), "");
    EXPECT_EQ(loaded(sees).config.data.image_max_pixels, 589824);
    const auto small = of("Qwen/Qwen3-VL-4B-Instruct",
                          "dataset: seen\ntemplate: qwen3_vl_nothink\nimage_max_pixels: 262144\nimage_min_pixels: 9\n");
    EXPECT_EQ(loaded(small).config.data.image_max_pixels, 262144);
    EXPECT_EQ(small.losses.size(), 1U) << all(small.losses);
    EXPECT_CONTAINS(all(small.losses), "image_min_pixels: 9");
    EXPECT_CONTAINS(all(of("meta-llama/Llama-3.1-8B", "dataset: seen\n").losses), "images: rows are read without it");
    const auto texts = of("Qwen/Qwen3-8B", "dataset: one\ntemplate: qwen3\nmedia_dir: pics\nimage_max_pixels: 9\n");
    EXPECT_EQ(all(texts.losses), "");
    EXPECT_CONTAINS(all(texts.notes), "media_dir: has no effect");
    // Several turns of qwen3 each have a thought there.
    EXPECT_CONTAINS(all(of("Qwen/Qwen3-8B", "dataset: seen\ntemplate: qwen3\n").losses), "template: qwen3");
    const auto megatron = of("meta-llama/Llama-3.1-8B",
                             "dataset: one\ntensor_model_parallel_size: 2\nuse_packed_sequences: true\n"
                             "overlap_grad_reduce: true\n");
    EXPECT_EQ(all(megatron.losses), "");
    EXPECT_EQ(loaded(megatron).config.distributed.tp_size, 2);
    EXPECT_TRUE(loaded(megatron).config.data.packing);
    EXPECT_CONTAINS(all(of("a/b", "dataset: one\ncalculate_per_token_loss: false\n").losses), "mean over a step");
}

TEST(ImportPeers, ExpertsThatStayIn16BitAreALoss) {
    const auto of = [](const std::string& more) {
        return import_text(
            "base_model: Qwen/Qwen3-30B-A3B-Instruct-2507\nmicro_batch_size: 1\nadapter: qlora\n"
            "load_in_4bit: true\nlora_target_modules: [q_proj]\n" +
                more,
            import::PeerProgram::axolotl);
    };
    EXPECT_CONTAINS(all(of("").losses), "load_in_4bit: experts stay in 16 bit there");
    EXPECT_EQ(all(of("quantize_moe_experts: true\n").losses), "");
    EXPECT_CONTAINS(all(of("model_quantization_config: OtherConfig\n").losses), "model_quantization_config");
}

TEST(ImportPeers, UploadsAndAlarmsAreAside) {
    const auto imported = of_axolotl("hub_model_id: me/it\nloss_watchdog_threshold: 5.0\nqat: {weight_dtype: int4}\n");
    const config::TrainingOptions uploads = loaded(imported).config.training;
    EXPECT_TRUE(uploads.push_to_hub && uploads.hub_private_repo);
    EXPECT_EQ(uploads.hub_model_id, "me/it");
    EXPECT_CONTAINS(all(imported.aside), "loss_watchdog_threshold: 5.0");
    EXPECT_EQ(imported.losses.size(), 1U);
    EXPECT_CONTAINS(all(imported.losses), "qat");
    const auto trl =
        import_text("model_name_or_path: org/m\nmodel_revision: v2\ndataset_name: org/rows\npush_to_hub: true\n");
    EXPECT_TRUE(loaded(trl).config.training.push_to_hub);
    EXPECT_CONTAINS(all(trl.notes), "push_to_hub: a repository that the upload creates is private");
    EXPECT_EQ(loaded(trl).config.model.path, "org/m@v2");
    const auto not_yet = import_text("model_name_or_path: org/m\nlearning_rate: 1e-4\nhub_model_id: me/it\n");
    EXPECT_FALSE(loaded(not_yet).config.training.push_to_hub);
    EXPECT_CONTAINS(all(not_yet.notes), "hub_model_id: has no effect");
}

TEST(ImportPeers, AFolderSaysTheObjectiveOfBeta) {
    const ScratchFolder folder;
    std::filesystem::create_directories(folder.path() / "dpo");
    const std::string text = "model_name_or_path: org/m\ndataset_name: org/rows\nbeta: 0.05\n";
    const auto said = import::import_config(folder.write("dpo/config.yaml", text), import::PeerProgram::trl);
    EXPECT_EQ(loaded(said).config.training.objective, config::Objective::dpo);
    EXPECT_CONTAINS(all(said.notes), "as the file's folder is called");
    const auto not_said = import::import_config(folder.write("config.yaml", text), import::PeerProgram::trl);
    EXPECT_CONTAINS(all(not_said.losses), "beta");
}

TEST(ImportPeers, StudiosFilesAreRead) {
    const auto imported = import_text(R"(
model: org/base
data: {dataset: org/rows, format_type: alpaca}
training: {training_type: lora, max_seq_length: 512, num_epochs: 0, max_steps: 30, batch_size: 4, random_seed: 7,
           train_on_completions: true, gradient_checkpointing: unsloth, warmup_steps: 5, save_steps: 30, eval_steps: 10}
lora: {lora_r: 8, lora_alpha: 8, target_modules: "q_proj,v_proj", use_loftq: false, finetune_language_layers: true}
logging: {enable_wandb: true, log_frequency: 10}
inference: {temperature: 0.7}
)");
    EXPECT_EQ(imported.program, "Unsloth Studio 2026.8");
    EXPECT_EQ(all(imported.losses), "");
    EXPECT_CONTAINS(all(imported.aside), "training.eval_steps: 10");
    EXPECT_CONTAINS(all(imported.aside), "logging.enable_wandb");
    const config::Config config = loaded(imported).config;
    EXPECT_EQ(config.model.path, "org/base");
    EXPECT_EQ(config.data.train_file, "org/rows");
    EXPECT_FALSE(config.data.train_on_prompt);
    EXPECT_EQ(config.training.max_steps, 30);
    EXPECT_EQ(config.training.seed, 7);
    EXPECT_EQ(config.lora.r, 8);
    EXPECT_EQ(config.lora.target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
    const auto lost =
        import_text("training: {batch_size: 2, random_seed: 1, fancy: 3}\nlora: {lora_r: 8, use_loftq: true}\n");
    EXPECT_CONTAINS(all(lost.losses), "lora.use_loftq");
    EXPECT_CONTAINS(all(lost.losses), "training.fancy: is not known");
}

}  // namespace
}  // namespace unsloth::testing
