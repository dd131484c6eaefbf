#include "import/policy_fields.h"

#include <algorithm>
#include <set>

#include "unsloth/core/error.h"
#include "unsloth/core/json.h"

namespace unsloth::import {
namespace {

/// Prompt tokens where no field says how many; max_prompt_length of earlier releases of TRL.
constexpr int64_t prompt_tokens = 512;

/// Fields that stand for themselves.
const std::vector<PeerField>& policy_fields() {
    static const std::vector<PeerField> table = [] {
        const auto& off = PeerRows::off;
        PeerRows rows;
        rows.any({"vllm_mode", "vllm_model_impl", "vllm_enable_sleep_mode", "vllm_server_base_url", "vllm_server_host",
                  "vllm_server_port", "vllm_server_timeout", "vllm_group_port", "vllm_gpu_memory_utilization",
                  "vllm_max_model_length", "vllm_tensor_parallel_size", "vllm_lora_sync", "vllm_sync_interval",
                  "use_transformers_continuous_batching", "transformers_continuous_batching_config",
                  "use_transformers_paged", "cache_implementation", "ds3_gather_for_generation"},
                 "completions are sampled by the model in training itself")
            .only({"vllm_structured_outputs_regex", "vllm_guided_decoding_regex"}, off,
                  "sampling is not constrained by an expression; a reward {\"regex\": …} scores it")
            .only({"rollout_func"}, off, "completions are sampled by the run, not by a function")
            .only({"max_tool_calling_iterations"}, {nullptr}, "no tools are called while sampling")
            .any({"cast_lm_head_to_fp32"}, "logits are always in float32")
            .any({"remove_unused_columns"}, "reward functions get all columns of the rows")
            .any({"pad_to_multiple_of"}, "rows are not padded")
            .any({"use_liger_loss"}, "kernels are compiled into the program")
            .only({"sync_ref_model"}, off, "the reference stays what it was at the start (grpo.reference)")
            .any({"ref_model_mixup_alpha", "ref_model_sync_steps"}, "it is for sync_ref_model")
            .only({"use_adaptive_entropy"}, off, "grpo.entropy_coef is constant")
            .any({"entropy_coef_min", "entropy_coef_max", "entropy_coef_delta", "entropy_target"},
                 "it is for use_adaptive_entropy")
            .any({"num_completions_to_print", "log_unique_prompts", "log_multimodal"},
                 "grpo.log_completions writes all of them to completions.jsonl")
            .only({"log_completions_hub_repo"}, off, "nothing is uploaded")
            .means("num_generations_eval", "grpo.num_generations_eval", {}, {nullptr})
            .only({"reward_model_name_or_path", "reward_processing_classes"}, off,
                  "no reward model is loaded; a reward {\"http\": URL} asks a server for scores")
            .only({"use_data_producer", "async_prefetch", "streaming_partial_batch"}, off,
                  "a generation batch is sampled by the weights that its first step starts from")
            .any({"prefetch_depth", "streaming_min_groups"}, "it is for async_prefetch or streaming_partial_batch")
            .only({"replay_buffer_size"}, {nullptr, 0}, "completions are used in their own generation batch alone")
            .any({"replay_recompute_logps"}, "it is for replay_buffer_size")
            .only({"reroll_start_fraction"}, {nullptr, 1}, "prompts come in the order of an epoch")
            .any({"reroll_max_groups"}, "it is for reroll_start_fraction")
            .any({"skip_zero_advantage_batches"}, "grpo.drop_zero_groups skips groups without a signal")
            .means("reward_num_workers", "grpo.reward_workers", {}, {nullptr})
            .means("shuffle_dataset", "data.shuffle", {}, {nullptr});
        return rows.take();
    }();
    return table;
}

class PolicyImporter {
  public:
    PolicyImporter(Importer& importer, const PolicySource& source) : importer_(importer), source_(source) {}

    void run() {
        set_defaults();
        if (importer_.is_null(key("max_completion_length")))
            importer_.note(key("max_completion_length"), "null: a bound is needed here; 512 is written");
        for (const char* name :
             {"num_generations", "max_completion_length", "num_iterations", "temperature", "top_p", "min_p",
              "repetition_penalty", "beta", "epsilon", "epsilon_high", "mask_truncated_completions", "log_completions"})
            carry(name, cat("grpo.", name));
        source_.rloo ? import_rloo() : import_grpo();
        import_top_k();
        import_generation_batch();
        import_rewards();
        import_correction();
        import_template_variables();
        import_generation_kwargs();
        import_lengths();
        for (const PeerField& field : policy_fields())
            if (const auto value = take(field.key)) importer_.carry(key(field.key), *value, field);
    }

  private:
    std::string key(const std::string& name) const {
        const auto theirs = source_.names.find(name);
        return source_.prefix + (theirs == source_.names.end() ? name : theirs->second);
    }
    std::optional<Json> take(const std::string& name) { return importer_.take(key(name)); }
    void carry(const char* name, const std::string& option) {
        auto value = take(name);
        const bool listed = name == std::string("loss_type") && value && value->is_array() && value->size() == 1;
        if (value)
            importer_.set(key(name), option, listed ? (*value)[0] : *value);  // a list of one, as ms-swift has it
    }
    /// For a field that has an effect with other values of another field only.
    void without_effect(const char* name, const std::string& why) {
        if (take(name)) importer_.note(key(name), cat("has no effect: ", why));
    }

    void set_defaults() {
        importer_.set_default("training.objective", "grpo");
        importer_.set_default("grpo.num_generations", source_.rloo ? 2 : 8);
        importer_.set_default("grpo.max_completion_length", 512);
        importer_.set_default("grpo.loss_type", source_.rloo ? "grpo" : "dapo");
        importer_.set_default("grpo.beta", source_.rloo ? 0.05 : 0.0);
        importer_.set_default("grpo.temperature", 1.0);
        if (!source_.rloo) importer_.set_default("grpo.use_bias_correction_kl", source_.bias_correction);
        for (const auto& [option, value] : source_.defaults) importer_.set_default(option, value);
    }

    void import_grpo() {
        for (const char* name :
             {"loss_type", "importance_sampling_level", "delta", "use_bias_correction_kl", "scale_rewards",
              "multi_objective_aggregation", "top_entropy_quantile", "entropy_coef", "off_policy_mask_threshold"})
            carry(name, cat("grpo.", name));
        const spec::PolicyLossType type = importer_.config().grpo.loss_type;
        for (const char* name : {"sapo_temperature_pos", "sapo_temperature_neg"})
            type == spec::PolicyLossType::sapo ? carry(name, cat("grpo.", name))
                                               : without_effect(name, "loss_type is not sapo");
        for (const char* name : {"vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"})
            type == spec::PolicyLossType::vespo ? carry(name, cat("grpo.", name))
                                                : without_effect(name, "loss_type is not vespo");
    }

    /// A row has one ratio there, the baseline is the mean of the group's others, and the reward has the divergence.
    void import_rloo() {
        importer_.set_default("grpo.advantage", "leave_one_out");
        importer_.set_default("grpo.importance_sampling_level", "sequence_sum");
        importer_.set_default("grpo.kl_in_reward", importer_.config().grpo.beta > 0);
        for (const char* name : {"normalize_advantages", "reward_clip_range"}) carry(name, cat("grpo.", name));
    }

    /// -1 is vLLM's, and null that of earlier releases, for all tokens.
    void import_top_k() {
        if (const auto value = take("top_k"))
            importer_.set(key("top_k"), "grpo.top_k", *value == -1 ? Json(0) : *value);
    }

    /// generation_batch_size counts completions of all processes; here micro-batches are counted.
    void import_generation_batch() {
        carry("steps_per_generation", "grpo.steps_per_generation");
        const auto size = take("generation_batch_size");
        if (!size) return;
        const Json said = importer_.look(source_.rows);
        const int64_t rows =
            said.is_number_integer() ? said.get<int64_t>() : importer_.config().training.per_device_train_batch_size;
        if (!size->is_number_integer() || rows < 1 || size->get<int64_t>() % rows != 0)
            return importer_.lose(key("generation_batch_size"),
                                  cat(shown(*size), ": a multiple of ", source_.rows, " ", rows, " is expected"));
        importer_.set(key("generation_batch_size"), "grpo.steps_per_generation", size->get<int64_t>() / rows);
        importer_.note(key("generation_batch_size"),
                       cat(shown(*size), ": in one process these are ", size->get<int64_t>() / rows,
                           " micro-batches; with N processes divide grpo.steps_per_generation by N"));
    }

    /// The option's value for a name; null where there is none.
    Json reward_of(const Json& given) {
        const std::string where = key("reward_funcs"), name = given.is_string() ? given.get<std::string>() : "";
        if (source_.reward && given.is_string()) return source_.reward(name);
        if (source_.short_names && name == "think_format_reward")
            return {{"think_format", Json::object()}, {"name", name}};
        if (source_.short_names && name == "get_soft_overlong_punishment")
            return {{"overlong", {{"max_length", 1280}, {"cache", 256}}}, {"name", "soft_overlong_punishment_reward"}};
        if (source_.short_names && (name == "accuracy_reward" || name == "reasoning_accuracy_reward")) {
            importer_.note(where,
                           cat(name, " is imported from TRL: grpo.reward_python names an interpreter that has it"));
            return "trl.rewards:" + name;
        }
        if (name.find(".py:") != std::string::npos) return name;
        const std::size_t dot = name.rfind('.');
        if (name.find('/') != std::string::npos || dot == std::string::npos || dot == 0 || dot + 1 == name.size()) {
            importer_.lose(where, cat(shown(given),
                                      ": is no MODULE.FUNCTION; write FILE.py:FUNCTION, or for a reward "
                                      "model's server {\"http\": URL}, into grpo.rewards"));
            return nullptr;
        }
        return name.substr(0, dot) + ":" + name.substr(dot + 1);
    }

    void import_rewards() {
        Json names = take("reward_funcs").value_or(Json::array());
        if (!names.is_array()) names = Json::array({names});
        Json weights = take("reward_weights").value_or(nullptr), rewards = Json::array(), kept = Json::array();
        const bool fits = weights.is_array() && weights.size() == names.size() + source_.lost_rewards;
        std::set<std::string> functions;
        for (std::size_t i = 0; i < names.size(); ++i) {
            Json reward = reward_of(names[i]);
            if (reward.is_null()) continue;
            if (reward.is_string()) {  // two of one name are distinguished by their modules
                const std::string text = reward;
                if (!functions.insert(text.substr(text.rfind(':') + 1)).second)
                    reward = {{"py", text}, {"name", shown(names[i])}};
            }
            rewards.push_back(reward);
            if (fits) kept.push_back(weights[i]);
        }
        if (!rewards.empty()) importer_.set(key("reward_funcs"), "grpo.rewards", rewards);
        if (names.empty())
            importer_.lose(key("reward_funcs"),
                           "no reward function is named: list them in grpo.rewards, as in "
                           "\"rewards.py:accuracy\"");
        if (weights.is_null()) return;
        if (names.empty() && source_.lost_rewards == 0)
            return importer_.set(key("reward_weights"), "grpo.reward_weights", weights);
        if (!fits)
            return importer_.lose(key("reward_weights"), cat(shown(weights), ": ", names.size() + source_.lost_rewards,
                                                             " are expected, one "
                                                             "for each reward"));
        if (kept.empty()) return importer_.lose(key("reward_weights"), cat(shown(weights), ": their rewards are lost"));
        importer_.set(key("reward_weights"), "grpo.reward_weights", kept);
    }

    /// Of vLLM's probabilities, where it samples; here of the sampler's, which are nearer to the trainer's.
    void import_correction() {
        const bool samples = importer_.take(key("use_vllm")).value_or(false) == true;
        if (samples)
            importer_.note(key("use_vllm"), "has no effect: completions are sampled by the model in training itself");
        const auto corrects = take("vllm_importance_sampling_correction"), mode = take("vllm_importance_sampling_mode");
        const std::vector<std::pair<const char*, const char*>> bounds = {
            {"vllm_importance_sampling_clip_max", "grpo.sampler_clip_max"},
            {"vllm_importance_sampling_cap", "grpo.sampler_clip_max"},  // its former name, which wins
            {"vllm_importance_sampling_clip_min", "grpo.sampler_clip_min"}};
        const bool on = samples && source_.vllm_corrects && !source_.rloo && corrects.value_or(true) == true;
        if (!on) {
            const std::string why = cat("has no effect: ", samples ? "the correction is off" : "use_vllm is not on");
            if (corrects && !samples) importer_.note(key("vllm_importance_sampling_correction"), why);
            if (mode) importer_.note(key("vllm_importance_sampling_mode"), why);
            for (const auto& [name, option] : bounds)
                if (take(name)) importer_.note(key(name), why);
            return;
        }
        importer_.set(key("vllm_importance_sampling_mode"), "grpo.sampler_correction", mode.value_or("sequence_mask"));
        for (const auto& [name, option] : bounds) {
            const bool none = importer_.is_null(key(name)) && name != std::string("vllm_importance_sampling_cap");
            const auto value = take(name);
            if (value || none) importer_.set(key(name), option, value.value_or(nullptr));
        }
    }

    /// Objects may be JSON texts there.
    std::optional<Json> take_object(const char* name) {
        auto value = take(name);
        if (value && value->is_string())
            if (Json parsed = try_parse_json<Json>(value->get<std::string>()); parsed.is_object()) value = parsed;
        return value;
    }

    void import_template_variables() {
        if (const auto variables = take_object("chat_template_kwargs"))
            importer_.set(key("chat_template_kwargs"), "data.chat_template_kwargs", *variables);
    }

    void import_generation_kwargs() {
        const auto given = take_object("generation_kwargs");
        if (!given) return;
        if (!given->is_object())
            return importer_.lose(key("generation_kwargs"), cat(shown(*given), ": an object is expected"));
        static const std::set<std::string> known = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"};
        for (const auto& [name, value] : given->items()) {
            const std::string where = cat(key("generation_kwargs"), ".", name);
            if (known.count(name) != 0 && !value.is_null())
                importer_.set(where, cat("grpo.", name), value);
            else if (!value.is_null())
                importer_.lose(where, cat(shown(value), ": section grpo has no such option of sampling"));
        }
    }

    /// A number of tokens is asked for here, of the prompt and a completion together.
    void import_lengths() {
        const bool says = std::any_of(source_.lengths.begin(), source_.lengths.end(),
                                      [&](const char* name) { return !importer_.look(name).is_null(); });
        const auto prompt = take("max_prompt_length");
        if (prompt && !prompt->is_number_integer())
            return importer_.lose(key("max_prompt_length"), cat(shown(*prompt), ": a number is expected"));
        if (prompt) importer_.note(key("max_prompt_length"), cat(shown(*prompt), ": ", source_.long_prompts));
        if (says) return;
        const int64_t completion = importer_.config().grpo.max_completion_length;
        const int64_t tokens = (prompt ? prompt->get<int64_t>() : prompt_tokens) + completion;
        importer_.set_default("model.max_seq_length", tokens);
        importer_.note("model.max_seq_length",
                       cat("is ", tokens, ": ", tokens - completion, " tokens of a prompt, and max_completion_length"));
    }

    Importer& importer_;
    const PolicySource& source_;
};

}  // namespace

void import_policy(Importer& importer, const PolicySource& source) {
    PolicyImporter(importer, source).run();
}

void import_dropout_of_policy(Importer& importer) {
    const bool disables = importer.take_flag("disable_dropout");
    const auto given = importer.take("lora_dropout");
    const double before = importer.config().lora.lora_dropout;
    importer.set_default("lora.lora_dropout", 0);
    if (disables) return;
    const char* const why =
        "completions are sampled and scored without dropout, for their probabilities would differ; "
        "lora.lora_dropout is 0";
    if (given && *given != 0)
        importer.lose("lora_dropout", cat(shown(*given), ": ", why));
    else if (!given && before != 0)
        importer.note("lora_dropout", cat("is ", before, " there unless it is said: ", why));
}

}  // namespace unsloth::import
