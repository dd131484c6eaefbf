// import-config: files of ms-swift.
#include "common/files.h"
#include "tests/import/import_support.h"

namespace unsloth::testing {
namespace {

using spec::PolicyLossType, spec::RatioLevel, spec::SamplerCorrection;

import::ImportedConfig swift_of(const std::string& rest) {
    return import_text("model: models/llama\ntuner_type: lora\ndataset: [rows.jsonl]\n" + rest,
                       import::PeerProgram::swift);
}
import::ImportedConfig swift_grpo(const std::string& rest) {
    return swift_of("rlhf_type: grpo\nreward_funcs: [score]\nexternal_plugins: plugin.py\n" + rest);
}

void expect_options_of_grpo(const config::GrpoOptions& grpo) {
    EXPECT_EQ(grpo.num_generations, 16);
    EXPECT_EQ(grpo.num_iterations, 2);
    EXPECT_EQ(grpo.steps_per_generation, 8);
    EXPECT_EQ(grpo.max_completion_length, 1024);
    EXPECT_EQ(grpo.beta, 0.01);
    EXPECT_EQ(grpo.temperature, 0.7);
    EXPECT_EQ(grpo.top_p, 0.9);
    EXPECT_EQ(grpo.top_k, 50);
    EXPECT_EQ(grpo.min_p, 0.05);
    EXPECT_EQ(grpo.repetition_penalty, 1.1);
    EXPECT_EQ(grpo.loss_type, PolicyLossType::dapo);
    EXPECT_EQ(grpo.epsilon, 0.1);
    EXPECT_EQ(grpo.epsilon_high, 0.28);
    EXPECT_EQ(grpo.delta, 1.5);
    EXPECT_EQ(grpo.scale_rewards, config::RewardScale::batch);
    EXPECT_EQ(grpo.importance_sampling_level, RatioLevel::sequence);
    EXPECT_TRUE(grpo.mask_truncated_completions);
    EXPECT_EQ(grpo.top_entropy_quantile, 0.5);
    EXPECT_EQ(grpo.sampler_correction, SamplerCorrection::token_mask);
    EXPECT_EQ(grpo.sampler_clip_max, 3.0);
    EXPECT_EQ(grpo.off_policy_mask_threshold, 0.5);
    EXPECT_FALSE(grpo.use_bias_correction_kl);
    EXPECT_TRUE(grpo.log_completions);
    EXPECT_EQ(Json::parse(grpo.rewards), Json::parse(R"([{"py": "plugin.py:gsm8k_accuracy", "style": "swift"},
        {"py": "swift.rewards.orm:format", "style": "swift"},
        {"overlong": {"cache": 128, "max_length": 1024}, "name": "soft_overlong"}])"));
    EXPECT_EQ(Json::parse(grpo.reward_weights), Json({1, 0.5, 0.1}));
}

TEST(ImportSwift, Grpo) {
    const import::ImportedConfig imported = import_text(R"(
rlhf_type: grpo
model: models/llama
tuner_type: lora
lora_rank: 16
quant_method: bnb
quant_bits: 4
torch_dtype: bfloat16
dataset: [rows.jsonl]
columns: '{"answer": "solution"}'
external_plugins: [plugin.py]
reward_funcs: [gsm8k_accuracy, format, soft_overlong]
reward_weights: [1, 0.5, 0.1]
soft_cache_length: 128
soft_max_length: 1024
enable_thinking: false
max_length: 2048
max_completion_length: 1024
num_generations: 16
num_iterations: 2
generation_batch_size: 64
per_device_train_batch_size: 8
learning_rate: 1e-5
beta: 0.01
temperature: 0.7
top_p: 0.9
top_k: 50
min_p: 0.05
repetition_penalty: 1.1
loss_type: [dapo]
epsilon: 0.1
epsilon_high: 0.28
delta: 1.5
scale_rewards: batch
importance_sampling_level: sequence
overlong_filter: true
top_entropy_quantile: 0.5
use_vllm: true
vllm_mode: colocate
rollout_importance_sampling_mode: token_mask
rollout_importance_sampling_threshold: 3
off_policy_sequence_mask_delta: 0.5
log_completions: true
dataset_shuffle: false
deepspeed: zero2_offload
)");
    EXPECT_EQ(imported.program, "ms-swift 4.6.0");
    EXPECT_EQ(imported.losses, std::vector<std::string>{}) << all(imported.losses);
    const config::Config config = loaded(imported).config;
    EXPECT_EQ(config.training.objective, config::Objective::grpo);
    EXPECT_EQ(config.model.path, "models/llama");
    EXPECT_TRUE(config.model.load_in_4bit);
    EXPECT_EQ(config.model.max_seq_length, 2048 + 1024);
    EXPECT_EQ(config.lora.r, 16);
    EXPECT_EQ(config.lora.lora_alpha, 32);
    EXPECT_EQ(config.lora.lora_dropout, 0);
    EXPECT_EQ(config.training.gradient_accumulation_steps, 1);
    EXPECT_EQ(config.training.learning_rate, 1e-5);
    EXPECT_EQ(config.distributed.zero_stage, 2);
    EXPECT_EQ(config.distributed.offload_optimizer, config::OptimizerPlace::cpu);
    EXPECT_FALSE(config.data.shuffle);
    EXPECT_TRUE(config.data.skip_bad_rows);
    EXPECT_EQ(config.data.columns, (Columns{{"solution", "answer"}}));
    EXPECT_CONTAINS(imported.json, "\"enable_thinking\": false");
    expect_options_of_grpo(config.grpo);
    EXPECT_CONTAINS(all(imported.notes), "format is imported from ms-swift: grpo.reward_python names an interpreter");
    EXPECT_CONTAINS(all(imported.notes), "weighs the divergence of beta too there");
}

TEST(ImportSwift, DefaultsOfTheReleaseAreWritten) {
    const Json written = Json::parse(swift_grpo("").json);
    const Json expected = Json::parse(R"({
        "grpo": {"num_generations": 8, "max_completion_length": 512, "loss_type": "grpo", "beta": 0.04,
                 "temperature": 0.9, "use_bias_correction_kl": false},
        "lora": {"r": 8, "lora_alpha": 32.0, "lora_dropout": 0.0},
        "model": {"load_in_4bit": false, "max_seq_length": 1024},
        "training": {"learning_rate": 1e-4, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1,
                     "num_train_epochs": 3.0, "weight_decay": 0.1, "adam_beta2": 0.95, "seed": 42,
                     "lr_scheduler_type": "cosine", "optim": "adamw_torch", "warmup_steps": 0}})");
    for (const auto& [section, options] : expected.items())
        for (const auto& [key, value] : options.items()) EXPECT_EQ(written[section][key], value) << key;
    const config::Config sft = loaded(swift_of("per_device_train_batch_size: 3")).config;
    EXPECT_EQ(sft.training.gradient_accumulation_steps, 6);
    EXPECT_EQ(sft.data.long_rows, config::LongRows::drop);
    EXPECT_EQ(sft.data.template_name, "default");
    EXPECT_EQ(sft.lora.lora_dropout, 0.05);
    const config::Config full =
        loaded(import_text("model: m\ntuner_type: full\ndataset: r.jsonl", import::PeerProgram::swift)).config;
    EXPECT_EQ(full.training.learning_rate, 1e-5);
    EXPECT_EQ(full.lora.finetuning_type, config::FinetuningType::full);
}

TEST(ImportSwift, RatiosOfCompletionsAreNotEquated) {
    for (const char* mode : {"sequence_truncate", "sequence_mask"}) {
        const import::ImportedConfig imported =
            swift_grpo(cat("use_vllm: true\nrollout_importance_sampling_mode: ", mode));
        EXPECT_CONTAINS(all(imported.losses),
                        cat("rollout_importance_sampling_mode: ", mode, ": a completion's ratio"));
        EXPECT_EQ(loaded(imported).config.grpo.sampler_correction, SamplerCorrection::none);
    }
    const config::GrpoOptions given =
        loaded(swift_grpo("use_vllm: true\nrollout_importance_sampling_mode: token_truncate")).config.grpo;
    EXPECT_EQ(given.sampler_correction, SamplerCorrection::token_truncate);
    EXPECT_EQ(given.sampler_clip_max, 2.0);
    EXPECT_EQ(loaded(swift_grpo("use_vllm: true")).config.grpo.sampler_correction, SamplerCorrection::none);
    EXPECT_CONTAINS(all(swift_grpo("rollout_importance_sampling_mode: token_mask").notes), "use_vllm is not on");
}

TEST(ImportSwift, Advantages) {
    const config::GrpoOptions one_out = loaded(swift_grpo("advantage_estimator: rloo")).config.grpo;
    EXPECT_EQ(one_out.advantage, config::AdvantageBaseline::leave_one_out);
    EXPECT_TRUE(one_out.kl_in_reward);
    EXPECT_EQ(one_out.importance_sampling_level, RatioLevel::token);
    EXPECT_FALSE(loaded(swift_grpo("advantage_estimator: rloo\nkl_in_reward: false")).config.grpo.kl_in_reward);
    EXPECT_CONTAINS(all(swift_grpo("advantage_estimator: rloo\nscale_rewards: group").losses), "scale_rewards: group");
    const import::ImportedConfig gdpo = swift_grpo("scale_rewards: gdpo\nkl_in_reward: true");
    EXPECT_TRUE(gdpo.losses.empty()) << all(gdpo.losses);
    EXPECT_EQ(loaded(gdpo).config.grpo.multi_objective_aggregation, config::RewardAggregation::normalize_then_sum);
    EXPECT_FALSE(loaded(gdpo).config.grpo.kl_in_reward);
    EXPECT_CONTAINS(all(swift_grpo("kl_in_reward: true").losses), "kl_in_reward: true");
    EXPECT_CONTAINS(all(swift_grpo("advantage_estimator: reinforce_plus_plus").losses), "it stays group_mean");
    EXPECT_CONTAINS(all(swift_grpo("loss_type: fipo").losses), "loss_type: fipo");
    EXPECT_CONTAINS(all(swift_grpo("importance_sampling_level: sequence_token").losses), "sequence_token");
}

TEST(ImportSwift, RewardsAndTheirPlugins) {
    const ScratchFolder folder;
    folder.write("a.py", "orms['one'] = One");
    folder.write("b.py", "orms[\"two\"] = Two");
    const std::string file =
        "model: m\nrlhf_type: grpo\ndataset: r.jsonl\nexternal_plugins: [a.py, b.py]\nreward_funcs: [one, two, three, "
        "cosine]\nreward_model: [org/rm]\nreward_weights: [1, 2, 3, 4, 5]\n";
    const import::ImportedConfig imported =
        import::import_config(folder.write("theirs.yaml", file), import::PeerProgram::swift);
    const config::GrpoOptions grpo = loaded(imported).config.grpo;
    EXPECT_EQ(Json::parse(grpo.rewards),
              Json::parse(R"([{"py": "a.py:one", "style": "swift"}, {"py": "b.py:two", "style": "swift"}])"));
    EXPECT_EQ(Json::parse(grpo.reward_weights), Json({1, 2}));
    for (const char* lost : {"reward_funcs: three: which of external_plugins", "reward_funcs: cosine: a reward",
                             "reward_model: [\"org/rm\"]: no reward model is loaded"})
        EXPECT_CONTAINS(all(imported.losses), lost);
    const std::string bare = "model: m\nrlhf_type: grpo\nreward_funcs: [mine, soft_overlong]";
    EXPECT_CONTAINS(all(import_text(bare).losses), "mine: no external_plugins define it");
    EXPECT_CONTAINS(all(import_text(bare).losses), "soft_overlong: soft_cache_length is not given");
}

TEST(ImportSwift, Rows) {
    const import::ImportedConfig two = import_text(
        "model: models/llama\ntuner_type: lora\ndataset: ['hf::org/chats:en#200', rows.jsonl]\n"
        "interleave_prob: [0.75, 0.25]\nval_dataset: [held_out.jsonl]\nsplit_dataset_ratio: 0.1\n");
    const config::Config config = loaded(two).config;
    ASSERT_EQ(config.data.datasets.size(), 2u);
    EXPECT_EQ(config.data.datasets[0].path, "org/chats");
    EXPECT_EQ(config.data.datasets[0].max_samples, 200);
    EXPECT_EQ(config.data.datasets[0].weight, 0.75);
    EXPECT_EQ(config.data.eval_file, "held_out.jsonl");
    EXPECT_EQ(config.data.val_size, 0);
    EXPECT_EQ(config.training.eval_steps, 500);
    EXPECT_CONTAINS(all(two.losses), "of subsets nothing is known");
    EXPECT_CONTAINS(all(two.notes), "split_dataset_ratio: has no effect");
    EXPECT_CONTAINS(all(import_text("model: org/m\ntuner_type: lora\ndataset: org/rows").notes),
                    "is of ModelScope there");
    EXPECT_FALSE(contains(all(import_text("model: org/m\ntuner_type: lora\ndataset: org/rows\nuse_hf: true").notes),
                          "is of ModelScope there"));
    const config::Config held =
        loaded(swift_of("split_dataset_ratio: 0.1\nsave_steps: 50\nstrict: true\nmax_length: 64\n"
                        "truncation_strategy: right\npacking: true\nloss_scale: all\ndataset_shuffle: false\n"
                        "train_dataloader_shuffle: false\ncolumns: {question: query, answer: response}"))
            .config;
    EXPECT_EQ(held.data.val_size, 0.1);
    EXPECT_EQ(held.training.eval_steps, 50);
    EXPECT_FALSE(held.data.skip_bad_rows);
    EXPECT_EQ(held.data.long_rows, config::LongRows::truncate);
    EXPECT_TRUE(held.data.packing);
    EXPECT_TRUE(held.data.train_on_prompt);
    EXPECT_FALSE(held.data.shuffle);
    EXPECT_EQ(held.data.columns, (Columns{{"instruction", "question"}, {"output", "answer"}}));
    EXPECT_TRUE(loaded(swift_of("loss_scale: last_round")).config.data.train_on_last_turn_only);
}

TEST(ImportSwift, Types) {
    const auto type = [](const std::string& rest) { return loaded(swift_of(rest)).config.model.dtype; };
    EXPECT_EQ(type("torch_dtype: bfloat16"), spec::DType::bf16);
    EXPECT_EQ(type("torch_dtype: float32"), spec::DType::f16) << "mixed precision";
    EXPECT_EQ(type("torch_dtype: float32\nbf16: false\nfp16: false"), spec::DType::f32);
    EXPECT_EQ(type("torch_dtype: float16\nbf16: true"), spec::DType::bf16);
    EXPECT_TRUE(loaded(swift_of("quant_method: bnb\nquant_bits: 8")).config.model.load_in_8bit);
    EXPECT_CONTAINS(all(swift_of("quant_method: hqq\nquant_bits: 4").losses), "quant_method: hqq");
}

TEST(ImportSwift, Preferences) {
    const config::Config dpo = loaded(swift_of("rlhf_type: dpo\nbeta: 0.2\nloss_type: [sigmoid, sft]\n"
                                               "loss_weights: [1, 0.5]\nadapters: [a]\nref_adapters: [a]"))
                                   .config;
    EXPECT_EQ(dpo.training.objective, config::Objective::dpo);
    EXPECT_EQ(dpo.preference.beta, 0.2);
    EXPECT_EQ(dpo.preference.rpo_alpha, 0.5);
    EXPECT_EQ(dpo.preference.reference, config::Reference::initial);
    EXPECT_EQ(dpo.model.adapter_name_or_path, "a");
    EXPECT_EQ(dpo.lora.lora_dropout, 0);
    EXPECT_EQ(dpo.training.learning_rate, 1e-4);
    const config::PreferenceOptions simpo = loaded(swift_of("rlhf_type: simpo")).config.preference;
    EXPECT_EQ(simpo.loss_type, config::PreferenceLoss::simpo);
    EXPECT_EQ(simpo.beta, 2);
    EXPECT_EQ(simpo.simpo_gamma, 1);
    EXPECT_EQ(simpo.rpo_alpha, 1);
    const config::Config kto = loaded(swift_of("rlhf_type: kto\ndesirable_weight: 2")).config;
    EXPECT_EQ(kto.training.objective, config::Objective::kto);
    EXPECT_EQ(kto.preference.desirable_weight, 2);
    EXPECT_TRUE(kto.data.shuffle);
    EXPECT_EQ(loaded(swift_of("rlhf_type: orpo\nloss_type: orpo")).config.training.objective, config::Objective::orpo);
    EXPECT_CONTAINS(all(swift_of("rlhf_type: ppo").losses), "rlhf_type: ppo");
    EXPECT_CONTAINS(all(swift_of("beta: 0.2").losses), "say \"rlhf_type\" in the file");
}

}  // namespace
}  // namespace unsloth::testing
