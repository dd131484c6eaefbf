#include <algorithm>

#include "config/options/sections.h"

namespace unsloth::config {
namespace {

void declare_rollouts(OptionSet& options, GrpoOptions& grpo) {
    options.add("num_generations", grpo.num_generations, "Completions of each prompt: the size of a group.")
        .at_least(2)
        .at_most(1e6);
    options
        .add("num_generations_eval", grpo.num_generations_eval,
             "Completions of each held-out prompt in an evaluation; null: num_generations.")
        .at_least(1)
        .at_most(1e6)
        .needs(evaluation_rows)
        .error("option.no-evaluation");
    options
        .add("max_completion_length", grpo.max_completion_length,
             "Most tokens of a completion, its end token among them. One that has no end by then is truncated.")
        .at_least(1)
        .at_most(1e9);
    options
        .add("steps_per_generation", grpo.steps_per_generation,
             "Micro-batches that a generation batch is cut into. It has per_device_train_batch_size x ranks x this "
             "number of completions; null: training.gradient_accumulation_steps.")
        .at_least(1)
        .at_most(1e6);
    options.add("num_iterations", grpo.num_iterations, "Passes over each generation batch.").at_least(1).at_most(1e6);
    options
        .add("temperature", grpo.temperature,
             "Divides the logits, in sampling and in every log-probability that is trained.")
        .above(0);
    options.add("top_p", grpo.top_p, "Sample from the smallest set of tokens with this total probability; 1: from all.")
        .above(0)
        .at_most(1);
    options.add("top_k", grpo.top_k, "Sample from this number of most likely tokens; 0: from all.").at_least(0);
    options.add("min_p", grpo.min_p, "Drop tokens less likely than this share of the most likely one's.")
        .at_least(0)
        .at_most(1);
    options
        .add("repetition_penalty", grpo.repetition_penalty,
             "Divides positive logits, and multiplies negative ones, of tokens that were there before; 1: off.")
        .above(0);
    options
        .add("max_rows_in_flight", grpo.max_rows_in_flight,
             "Most completions that are sampled at a time on each rank; 0: as many as the memory plan has room for.")
        .at_least(0)
        .at_most(1e6);
    options
        .add("replay_rollouts", grpo.replay_rollouts,
             "File of completions and rewards to learn from, a line a prompt. Nothing is sampled then, and no reward "
             "function is called.")
        .path("FILE")
        .not_with("data.eval_file")
        .because("no reward function scores the completions of held-out prompts")
        .not_with("data.eval_files")
        .because("no reward function scores the completions of held-out prompts")
        .not_with("data.val_size")
        .because("no reward function scores the completions of held-out prompts");
    options.add("log_completions", grpo.log_completions,
                "Write completions.jsonl: each completion with its rewards and its advantage. Completions of held-out "
                "prompts are in eval_completions.jsonl.");
}

void declare_rewards(OptionSet& options, GrpoOptions& grpo) {
    options
        .add_json("rewards", grpo.rewards,
                  "List of reward functions: \"FILE.py:FUNCTION\", or objects such as {\"regex\": …}, "
                  "{\"numeric\": …}, {\"command\": […]}, {\"http\": URL}; docs/reference/rewards.md has them all.")
        .suggested_for({"reward_funcs", "reward_functions"});
    options
        .add("reward_python", grpo.reward_python,
             "Python interpreter of reward functions; auto: the active virtual environment's, or python3.")
        .path("FILE|auto");
    options.add("reward_workers", grpo.reward_workers, "Helper processes on each rank that score whole groups.")
        .at_least(1)
        .at_most(1e6);
    options.add("reward_memory_gib", grpo.reward_memory_gib, "Address space that a helper process may take; 0: any.")
        .at_least(0);
    options.add_json("reward_weights", grpo.reward_weights,
                     "Weight of each reward: a list in the order of the rewards, or an object by their names; null: 1 "
                     "each, or what grpo.rewards says.");
    options
        .add_choice("scale_rewards", grpo.scale_rewards,
                    {{"group", RewardScale::group}, {"batch", RewardScale::batch}, {"none", RewardScale::none}},
                    "What divides a reward's distance from its group's mean: the standard deviation of the group or "
                    "of the generation batch, or nothing.")
        .synonym(true, "group")
        .synonym(false, "none");
    options.add_choice("multi_objective_aggregation", grpo.multi_objective_aggregation,
                       {{"sum_then_normalize", RewardAggregation::sum_then_normalize},
                        {"normalize_then_sum", RewardAggregation::normalize_then_sum}},
                       "Whether rewards are added up first, or each is normalised in its group first (GDPO).");
    options.add_choice(
        "advantage", grpo.advantage,
        {{"group_mean", AdvantageBaseline::group_mean}, {"leave_one_out", AdvantageBaseline::leave_one_out}},
        "Baseline of a completion's reward: its group's mean, or the mean of the group's others (RLOO).");
    options
        .add("normalize_advantages", grpo.normalize_advantages,
             "Normalise advantages by mean and standard deviation of the generation batch.")
        .only_with("grpo.advantage", {"leave_one_out"});
    options.add_json("reward_clip_range", grpo.reward_clip_range, "Bounds [low, high] of the weighted sum of rewards.")
        .only_with("grpo.advantage", {"leave_one_out"});
    options
        .add("kl_in_reward", grpo.kl_in_reward,
             "Subtract beta times the divergence from the reference from the reward, instead of adding it to the loss.")
        .only_with("grpo.advantage", {"leave_one_out"});
    options.add("mask_truncated_completions", grpo.mask_truncated_completions,
                "Drop truncated completions from the loss. Their rewards count in their group.");
    options
        .add("drop_zero_groups", grpo.drop_zero_groups,
             "Skip the passes over groups whose rewards are all equal. Divisors do not change; entropy and ratio "
             "metrics are of the other groups.")
        .not_with("grpo.beta")
        .because("the reference counts for every group");
}

void declare_policy_loss(OptionSet& options, GrpoOptions& grpo) {
    using spec::PolicyLossType, spec::RatioLevel;
    options
        .add_choice("loss_type", grpo.loss_type,
                    {{"grpo", PolicyLossType::grpo},
                     {"bnpo", PolicyLossType::bnpo},
                     {"dr_grpo", PolicyLossType::dr_grpo},
                     {"dapo", PolicyLossType::dapo},
                     {"cispo", PolicyLossType::cispo},
                     {"sapo", PolicyLossType::sapo},
                     {"luspo", PolicyLossType::luspo},
                     {"vespo", PolicyLossType::vespo}},
                    "Form and divisor of the policy loss.")
        .on_resume(OnResume::immutable);
    options.add_choice(
        "importance_sampling_level", grpo.importance_sampling_level,
        {{"token", RatioLevel::token}, {"sequence", RatioLevel::sequence}, {"sequence_sum", RatioLevel::sequence_sum}},
        "What has one ratio of new and old probability: a token, a completion by its mean (GSPO), or a "
        "completion by its sum (RLOO).");
    options.add("epsilon", grpo.epsilon, "Ratios below 1 - epsilon are clipped.").at_least(0);
    options
        .add("epsilon_high", grpo.epsilon_high,
             "Ratios above 1 + epsilon_high are clipped, with cispo above epsilon_high itself; null: epsilon.")
        .at_least(0);
    options.add("delta", grpo.delta, "Bound of the ratio that is not clipped; null: none.").above(0);
    options.add("beta", grpo.beta, "Weight of the divergence from the reference.").at_least(0);
    options.add("use_bias_correction_kl", grpo.use_bias_correction_kl, "Multiply the divergence by the ratio.");
    options.add_choice("reference", grpo.reference, {{"base", Reference::base}, {"initial", Reference::initial}},
                       "Reference of beta: the base without adapter, or the adapter as it was at the start.");
    options
        .add("top_entropy_quantile", grpo.top_entropy_quantile,
             "Share of a micro-batch's tokens, those of most entropy, that the policy loss is of. Below 1 each step "
             "takes one more forward pass.")
        .above(0)
        .at_most(1);
    options.add("entropy_coef", grpo.entropy_coef, "Weight of the entropy that is subtracted from the loss.");
    options.add("off_policy_mask_threshold", grpo.off_policy_mask_threshold,
                "Drop completions with a negative advantage whose mean log-ratio of sampler and policy is above "
                "this; null: none.");
    for (const auto& [name, field] : {std::pair{"sapo_temperature_pos", &grpo.sapo_temperature_pos},
                                      {"sapo_temperature_neg", &grpo.sapo_temperature_neg}})
        options.add(name, *field, "Temperature of sapo's gate for this sign of the advantage.")
            .above(0)
            .only_with("grpo.loss_type", {"sapo"});
    for (const auto& [name, field] : {std::pair{"vespo_k_pos", &grpo.vespo_k_pos},
                                      {"vespo_lambda_pos", &grpo.vespo_lambda_pos},
                                      {"vespo_k_neg", &grpo.vespo_k_neg},
                                      {"vespo_lambda_neg", &grpo.vespo_lambda_neg}})
        options.add(name, *field, "Shape of vespo's weight for this sign of the advantage.")
            .only_with("grpo.loss_type", {"vespo"});
}

void declare_correction(OptionSet& options, GrpoOptions& grpo) {
    using spec::SamplerCorrection;
    options.add_choice(
        "sampler_correction", grpo.sampler_correction,
        {{"none", SamplerCorrection::none},
         {"token_truncate", SamplerCorrection::token_truncate},
         {"token_mask", SamplerCorrection::token_mask},
         {"sequence_truncate", SamplerCorrection::sequence_truncate},
         {"sequence_mask", SamplerCorrection::sequence_mask}},
        "Weighs tokens or completions by the ratio of trainer and sampler, cut at its bounds, or dropped "
        "beyond them.");
    options.add("sampler_clip_max", grpo.sampler_clip_max, "Upper bound of that ratio; null: none.").above(0);
    options.add("sampler_clip_min", grpo.sampler_clip_min, "Lower bound of that ratio; null: none.").above(0);
    options.add_choice(
        "old_logps", grpo.old_logps,
        {{"auto", OldLogProbs::automatic}, {"trainer", OldLogProbs::trainer}, {"sampler", OldLogProbs::sampler}},
        "Old log-probabilities: a forward pass of the trainer after each generation, or what the "
        "sampler recorded. auto: the trainer's where a generation takes several steps.");
}

}  // namespace

void declare_grpo(OptionSet& options, GrpoOptions& grpo) {
    options.section("grpo", "Reinforcement learning",
                    "What training.objective grpo takes: completions are sampled, scored and trained on. Names, "
                    "defaults and formulas are TRL's.",
                    OnResume::immutable);
    declare_rollouts(options, grpo);
    declare_rewards(options, grpo);
    declare_policy_loss(options, grpo);
    declare_correction(options, grpo);
    for (const Option* declared : options.options_of("grpo")) {
        Option& option = options.at(declared->full_name());
        option.only_with("training.objective", {"grpo"});
        option.full_name_only =
            std::any_of(options.options().begin(), options.options().end(),
                        [&](const Option& other) { return other.section != "grpo" && other.key == option.key; });
    }
    for (const char* name : {"grpo.max_rows_in_flight", "grpo.log_completions", "grpo.reward_python",
                             "grpo.reward_workers", "grpo.reward_memory_gib"})
        options.at(name).on_resume(OnResume::mutable_);
    for (const char* name : {"grpo.rewards", "grpo.replay_rollouts"}) options.at(name).on_resume(OnResume::logged);
}

}  // namespace unsloth::config
