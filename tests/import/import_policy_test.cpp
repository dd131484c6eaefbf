// import-config of reinforcement learning: TRL's GRPOConfig and RLOOConfig, Unsloth's scripts, axolotl's section trl.
#include "tests/import/import_support.h"

namespace unsloth::testing {
namespace {

using spec::PolicyLossType, spec::RatioLevel, spec::SamplerCorrection;

const char* const trl_file = R"(
model_name_or_path: models/llama
use_peft: true
dataset_name: rows.jsonl
per_device_train_batch_size: 4
reward_funcs: [rewards.accuracy, think_format_reward]
)";

import::ImportedConfig trl(const std::string& more) {
    return import_text(trl_file + more, import::PeerProgram::trl);
}
config::GrpoOptions grpo_of(const import::ImportedConfig& imported) {
    return loaded(imported).config.grpo;
}

TEST(ImportPolicy, OptionsOfTrlAreCarried) {
    const import::ImportedConfig imported = trl(R"(
num_generations: 16
max_completion_length: 1024
steps_per_generation: 8
num_iterations: 2
temperature: 0.8
top_p: 0.95
top_k: 20
min_p: 0.1
repetition_penalty: 1.1
beta: 0.04
epsilon: 0.1
epsilon_high: 0.28
delta: 1.5
loss_type: grpo
importance_sampling_level: sequence
scale_rewards: batch
reward_weights: [1.0, 0.2]
mask_truncated_completions: true
use_bias_correction_kl: false
top_entropy_quantile: 0.2
entropy_coef: 0.01
off_policy_mask_threshold: 0.5
log_completions: true
shuffle_dataset: false
chat_template_kwargs: '{"enable_thinking": false}'
disable_dropout: true
)");
    EXPECT_TRUE(imported.losses.empty()) << all(imported.losses);
    const config::Config config = loaded(imported).config;
    const config::GrpoOptions& grpo = config.grpo;
    EXPECT_EQ(config.training.objective, config::Objective::grpo);
    EXPECT_EQ(config.training.learning_rate, 1e-6);
    EXPECT_EQ(config.lora.lora_dropout, 0);
    EXPECT_FALSE(config.data.shuffle);
    EXPECT_EQ(grpo.num_generations, 16);
    EXPECT_EQ(grpo.max_completion_length, 1024);
    EXPECT_EQ(grpo.steps_per_generation, 8);
    EXPECT_EQ(grpo.num_iterations, 2);
    EXPECT_EQ(grpo.temperature, 0.8);
    EXPECT_EQ(grpo.top_p, 0.95);
    EXPECT_EQ(grpo.top_k, 20);
    EXPECT_EQ(grpo.min_p, 0.1);
    EXPECT_EQ(grpo.repetition_penalty, 1.1);
    EXPECT_EQ(grpo.beta, 0.04);
    EXPECT_EQ(grpo.epsilon, 0.1);
    EXPECT_EQ(grpo.epsilon_high, 0.28);
    EXPECT_EQ(grpo.delta, 1.5);
    EXPECT_EQ(grpo.loss_type, PolicyLossType::grpo);
    EXPECT_EQ(grpo.importance_sampling_level, RatioLevel::sequence);
    EXPECT_EQ(grpo.scale_rewards, config::RewardScale::batch);
    EXPECT_EQ(Json::parse(grpo.reward_weights), Json({1.0, 0.2}));
    EXPECT_TRUE(grpo.mask_truncated_completions);
    EXPECT_FALSE(grpo.use_bias_correction_kl);
    EXPECT_EQ(grpo.top_entropy_quantile, 0.2);
    EXPECT_EQ(grpo.entropy_coef, 0.01);
    EXPECT_EQ(grpo.off_policy_mask_threshold, 0.5);
    EXPECT_TRUE(grpo.log_completions);
    EXPECT_EQ(Json::parse(grpo.rewards),
              Json::parse(R"(["rewards:accuracy", {"think_format": {}, "name": "think_format_reward"}])"));
    EXPECT_CONTAINS(imported.json, "\"enable_thinking\": false");
    EXPECT_EQ(config.model.max_seq_length, 512 + 1024);
}

TEST(ImportPolicy, DefaultsOfTheReleaseAreWritten) {
    const Json written = Json::parse(trl("").json);
    const Json expected = Json::parse(R"({"num_generations": 8, "max_completion_length": 512, "loss_type": "dapo",
        "beta": 0.0, "temperature": 1.0, "use_bias_correction_kl": true})");
    for (const auto& [key, value] : expected.items()) EXPECT_EQ(written["grpo"][key], value) << key;
    const import::ImportedConfig axolotl =
        import_text("base_model: m\nadapter: lora\nrl: grpo\ntrl: {reward_funcs: [r.f]}");
    EXPECT_FALSE(grpo_of(axolotl).use_bias_correction_kl) << "TRL 1.9, which axolotl 0.19 needs";
    EXPECT_EQ(grpo_of(axolotl).sampler_correction, SamplerCorrection::none);
}

TEST(ImportPolicy, Rloo) {
    const import::ImportedConfig imported =
        trl("objective: rloo\nreward_clip_range: [-2, 2]\nnormalize_advantages: true");
    const config::GrpoOptions grpo = grpo_of(imported);
    EXPECT_EQ(grpo.advantage, config::AdvantageBaseline::leave_one_out);
    EXPECT_EQ(grpo.importance_sampling_level, RatioLevel::sequence_sum);
    EXPECT_EQ(grpo.loss_type, PolicyLossType::grpo);
    EXPECT_EQ(grpo.num_generations, 2);
    EXPECT_EQ(grpo.beta, 0.05);
    EXPECT_TRUE(grpo.kl_in_reward);
    EXPECT_TRUE(grpo.normalize_advantages);
    EXPECT_EQ(Json::parse(grpo.reward_clip_range), Json({-2, 2}));
    EXPECT_FALSE(grpo_of(trl("objective: rloo\nbeta: 0")).kl_in_reward);
    EXPECT_EQ(grpo_of(trl("normalize_advantages: true")).advantage, config::AdvantageBaseline::leave_one_out);
}

TEST(ImportPolicy, CorrectionIsOfVllmsProbabilities) {
    const config::GrpoOptions by_default = grpo_of(trl("use_vllm: true"));
    EXPECT_EQ(by_default.sampler_correction, SamplerCorrection::sequence_mask);
    EXPECT_EQ(by_default.sampler_clip_max, 3.0);
    const config::GrpoOptions given =
        grpo_of(trl("use_vllm: true\nvllm_importance_sampling_mode: token_truncate\n"
                    "vllm_importance_sampling_cap: 2\nvllm_importance_sampling_clip_min: 0.5"));
    EXPECT_EQ(given.sampler_correction, SamplerCorrection::token_truncate);
    EXPECT_EQ(given.sampler_clip_max, 2.0);
    EXPECT_EQ(given.sampler_clip_min, 0.5);
    EXPECT_EQ(grpo_of(trl("use_vllm: true\nvllm_importance_sampling_clip_max: null")).sampler_clip_max, std::nullopt);
    EXPECT_EQ(grpo_of(trl("use_vllm: true\nvllm_importance_sampling_correction: false")).sampler_correction,
              SamplerCorrection::none);
    const import::ImportedConfig without = trl("vllm_importance_sampling_mode: token_mask");
    EXPECT_EQ(grpo_of(without).sampler_correction, SamplerCorrection::none);
    EXPECT_CONTAINS(all(without.notes), "vllm_importance_sampling_mode: has no effect: use_vllm is not on");
    EXPECT_CONTAINS(all(trl("use_vllm: true\nvllm_mode: server").notes), "vllm_mode has no effect");
}

TEST(ImportPolicy, RewardsKeepTheirOrderAndWeights) {
    const auto with = [](const std::string& rewards) {
        return import_text("model_name_or_path: m\nuse_peft: true\ndataset_name: r.jsonl\n" + rewards,
                           import::PeerProgram::trl);
    };
    const import::ImportedConfig some =
        with("reward_funcs: [a.one, org/model, my.rewards.two, bare]\nreward_weights: [1, 2, 3, 4]");
    EXPECT_EQ(Json::parse(grpo_of(some).rewards), Json({"a:one", "my.rewards:two"}));
    EXPECT_EQ(Json::parse(grpo_of(some).reward_weights), Json({1, 3}));
    EXPECT_CONTAINS(all(some.losses), "reward_funcs: org/model: is no MODULE.FUNCTION");
    EXPECT_CONTAINS(all(some.losses), "reward_funcs: bare: is no MODULE.FUNCTION");
    const import::ImportedConfig twins = with("reward_funcs: [a.score, b.score, 'rewards.py:other']");
    EXPECT_EQ(Json::parse(grpo_of(twins).rewards),
              Json::parse(R"(["a:score", {"py": "b:score", "name": "b.score"}, "rewards.py:other"])"));
    const import::ImportedConfig scripts =
        with("reward_funcs: [accuracy_reward, get_soft_overlong_punishment]\nreward_weights: [1]");
    EXPECT_EQ(Json::parse(grpo_of(scripts).rewards)[0], "trl.rewards:accuracy_reward");
    EXPECT_EQ(Json::parse(grpo_of(scripts).rewards)[1]["overlong"]["cache"], 256);
    EXPECT_CONTAINS(all(scripts.losses), "reward_weights: [1]: 2 are expected");
    EXPECT_CONTAINS(all(with("num_generations: 4").losses), "reward_funcs: no reward function is named");
}

TEST(ImportPolicy, WhatIsNotThereIsTold) {
    const import::ImportedConfig imported = trl(R"(
lora_dropout: 0.1
max_prompt_length: 256
max_completion_length: 128
generation_batch_size: 32
generation_kwargs: {stop_token_ids: [2], top_k: 5}
sapo_temperature_pos: 2.0
use_adaptive_entropy: true
vllm_structured_outputs_regex: a+
sync_ref_model: true
max_tool_calling_iterations: 3
eval_strategy: steps
eval_steps: 10
test_split_size: 0.1
num_generations_eval: 2
)");
    const std::string losses = all(imported.losses), notes = all(imported.notes);
    for (const char* key : {"lora_dropout: 0.1", "generation_kwargs.stop_token_ids", "use_adaptive_entropy",
                            "vllm_structured_outputs_regex", "sync_ref_model", "max_tool_calling_iterations"})
        EXPECT_CONTAINS(losses, key);
    EXPECT_EQ(imported.losses.size(), 6u) << losses;
    EXPECT_CONTAINS(notes, "max_prompt_length: 256: longer prompts were cut there");
    EXPECT_CONTAINS(notes, "sapo_temperature_pos: has no effect: loss_type is not sapo");
    EXPECT_CONTAINS(notes, "divide grpo.steps_per_generation by N");
    const config::Config config = loaded(imported).config;
    EXPECT_EQ(config.model.max_seq_length, 256 + 128);
    EXPECT_EQ(config.grpo.steps_per_generation, 8);
    EXPECT_EQ(config.grpo.top_k, 5);
    EXPECT_EQ(config.data.val_size, 0.1);
    EXPECT_EQ(config.training.eval_steps, 10);
    EXPECT_EQ(config.grpo.num_generations_eval, 2);
    EXPECT_CONTAINS(all(trl("generation_batch_size: 30").losses), "generation_batch_size: 30: a multiple");
    EXPECT_CONTAINS(all(trl("max_completion_length: null").notes), "max_completion_length: null");
    EXPECT_CONTAINS(all(import_text("model_name_or_path: m\nreward_funcs: [r.f]\nbeta: 0.1").losses),
                    "as a whole: a run would refuse it: grpo.beta");
}

TEST(ImportPolicy, UnslothsScripts) {
    const import::ImportedConfig imported = import_text(R"(
model_name: models/llama
max_seq_length: 1024
load_in_4bit: true
fast_inference: true
max_lora_rank: 32
gpu_memory_utilization: 0.6
r: 32
lora_alpha: 32
use_gradient_checkpointing: unsloth
random_state: 3407
dataset_name: rows.jsonl
learning_rate: 5e-6
num_generations: 6
max_prompt_length: 256
max_completion_length: 768
per_device_train_batch_size: 6
gradient_accumulation_steps: 1
reward_funcs: ["rewards.py:correctness", "rewards.py:format"]
top_k: -1
)");
    EXPECT_TRUE(imported.losses.empty()) << all(imported.losses);
    const config::Config config = loaded(imported).config;
    EXPECT_EQ(config.model.max_seq_length, 1024);
    EXPECT_EQ(config.grpo.top_k, 0);
    EXPECT_EQ(config.grpo.num_generations, 6);
}

TEST(ImportPolicy, Axolotl) {
    const std::string file = R"(
base_model: models/llama
adapter: qlora
load_in_4bit: true
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
lora_target_linear: true
datasets:
  - path: rows.jsonl
    type: rewards.transform
sequence_len: 2048
sample_packing: true
micro_batch_size: 4
gradient_accumulation_steps: 2
num_epochs: 1
learning_rate: 1e-5
val_set_size: 0.05
vllm: {host: 0.0.0.0, port: 8000}
rl_beta: 0.02
trl:
  use_vllm: true
  vllm_server_host: 0.0.0.0
  reward_funcs: [rewards.accuracy, rewards.format]
  reward_weights: [2.0, 1.0]
  num_generations: 8
  max_completion_length: 256
  loss_type: dr_grpo
  epsilon_high: 0.28
  scale_rewards: false
  generation_batch_size: 16
  reward_num_workers: 3
  async_prefetch: true
  no_such_field: 1
)";
    const import::ImportedConfig imported = import_text(file + "rl: grpo");
    const std::string losses = all(imported.losses), notes = all(imported.notes);
    for (const char* key : {"datasets[0].type: rewards.transform", "lora_dropout: 0.05", "trl.async_prefetch",
                            "trl.no_such_field: is not known"})
        EXPECT_CONTAINS(losses, key);
    EXPECT_EQ(imported.losses.size(), 4u) << losses;
    EXPECT_CONTAINS(notes, "sample_packing: has no effect");
    EXPECT_CONTAINS(notes, "trl.vllm_server_host has no effect");
    EXPECT_CONTAINS(notes, "vllm: has no effect");
    const config::Config config = loaded(imported).config;
    EXPECT_EQ(config.data.val_size, 0.05);
    const config::GrpoOptions& grpo = config.grpo;
    EXPECT_EQ(config.training.objective, config::Objective::grpo);
    EXPECT_EQ(config.model.max_seq_length, 2048);
    EXPECT_EQ(config.lora.lora_dropout, 0);
    EXPECT_FALSE(config.data.packing);
    EXPECT_EQ(grpo.beta, 0.02);
    EXPECT_EQ(grpo.num_generations, 8);
    EXPECT_EQ(grpo.max_completion_length, 256);
    EXPECT_EQ(grpo.loss_type, PolicyLossType::dr_grpo);
    EXPECT_EQ(grpo.epsilon_high, 0.28);
    EXPECT_EQ(grpo.scale_rewards, config::RewardScale::none);
    EXPECT_EQ(grpo.steps_per_generation, 4);
    EXPECT_EQ(grpo.reward_workers, 3);
    EXPECT_EQ(grpo.sampler_correction, SamplerCorrection::sequence_mask);
    EXPECT_EQ(Json::parse(grpo.rewards), Json({"rewards:accuracy", "rewards:format"}));
    EXPECT_EQ(Json::parse(grpo.reward_weights), Json({2.0, 1.0}));
    EXPECT_EQ(grpo_of(import_text(file + "  beta: 0.3\nrl: gdpo")).beta, 0.3);
    EXPECT_EQ(grpo_of(import_text(file + "rl: gdpo")).multi_objective_aggregation,
              config::RewardAggregation::normalize_then_sum);
}

}  // namespace
}  // namespace unsloth::testing
