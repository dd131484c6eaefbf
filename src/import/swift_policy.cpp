// Group relative policy optimisation of ms-swift: TRL's names where it builds on TRL, and names of its own.
#include <fstream>
#include <iterator>

#include "import/policy_fields.h"
#include "import/swift_parts.h"
#include "unsloth/core/error.h"

namespace unsloth::import {
namespace {

/// Entries of grpo.rewards for names of ms-swift's rewards, which are its own or of plugins.
class SwiftRewards {
  public:
    explicit SwiftRewards(Importer& importer) : importer_(importer), plugins_(importer.take_names("external_plugins")) {
        for (const std::string& older : importer.take_names("custom_register_path")) plugins_.push_back(older);
    }

    Json reward(const std::string& name) {
        if (name == "soft_overlong") return overlong();
        if (name == "cosine" || name == "repetition")
            return lost(name, cat("a reward {\"", name, "\": {…}} is much the same, with other arguments"));
        if (name == "toolbench" || name == "math")
            return lost(name, "it takes requests, not completions; {\"py\": \"FILE.py:FUNCTION\"} scores answers");
        if (name == "accuracy" || name == "format" || name == "react_format") {
            if (!tells_package_)
                importer_.note("reward_funcs", cat(name,
                                                   " is imported from ms-swift: grpo.reward_python names an "
                                                   "interpreter that has it"));
            tells_package_ = true;
            return entry("swift.rewards.orm", name);
        }
        const std::string file = plugin_of(name);
        if (!file.empty()) return entry(file, name);
        return lost(name, plugins_.empty()
                              ? "no external_plugins define it: write FILE.py:FUNCTION into grpo.rewards"
                              : "which of external_plugins defines it is not known: write FILE.py:FUNCTION "
                                "into grpo.rewards");
    }

    void tell_plugins() {
        if (plugins_.empty()) return;
        std::string files;
        for (const std::string& file : plugins_) files += cat(files.empty() ? "" : ", ", file);
        importer_.note("external_plugins", cat(files, ": they are read for rewards alone, by the interpreter of ",
                                               "grpo.reward_python, which needs what they import"));
    }

  private:
    static Json entry(const std::string& module, const std::string& name) {
        return {{"py", module + ":" + name}, {"style", "swift"}};
    }

    Json lost(const std::string& name, const std::string& why) {
        importer_.lose("reward_funcs", cat(name, ": ", why));
        return nullptr;
    }

    /// The only one, or of several the one whose text has the name.
    std::string plugin_of(const std::string& name) const {
        if (plugins_.size() == 1) return plugins_[0];
        for (const std::string& file : plugins_) {
            std::ifstream stream(importer_.folder() / file);
            const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
            if (text.find("'" + name + "'") != std::string::npos || text.find("\"" + name + "\"") != std::string::npos)
                return file;
        }
        return "";
    }

    Json overlong() {
        const auto cache = importer_.take("soft_cache_length"), longest = importer_.take("soft_max_length");
        if (!cache || !cache->is_number_integer()) return lost("soft_overlong", "soft_cache_length is not given");
        Json arguments = {{"cache", *cache}};
        if (longest) arguments["max_length"] = *longest;
        if (longest && longest->is_number_integer() && *longest < importer_.config().grpo.max_completion_length)
            importer_.note("soft_max_length",
                           cat(shown(*longest), ": a longer completion scores -1 here, and less there"));
        return {{"overlong", arguments}, {"name", "soft_overlong"}};
    }

    Importer& importer_;
    std::vector<std::string> plugins_;
    bool tells_package_ = false;
};

/// Several names mean the longest completion there; the first of these wins.
const char* length_of_completions(Importer& importer) {
    const char* wins = "max_completion_length";
    for (const char* name : {"max_new_tokens", "response_length"})
        if (const Json value = importer.look(name); !value.is_null() && value != 0) wins = name;
    const Json length = importer.look(wins);
    for (const char* name : {"max_completion_length", "max_new_tokens", "response_length"}) {
        if (name == std::string(wins)) continue;
        if (const auto other = importer.take(name); other && *other != length)
            importer.note(name, cat(shown(*other), ": has no effect: ", wins, " is given too, and wins"));
        else if (other)
            importer.note(name, cat("is ", wins));
    }
    return wins;
}

/// The ratio of trainer and vLLM. A completion's is the geometric mean of its tokens' there, and their product here.
void import_swift_correction(Importer& importer, bool samples) {
    const auto mode = importer.take_text("rollout_importance_sampling_mode");
    const auto threshold = importer.take("rollout_importance_sampling_threshold");
    const bool tokens = mode == "token_truncate" || mode == "token_mask";
    if (mode && !samples)
        importer.note("rollout_importance_sampling_mode", cat(*mode, ": has no effect: use_vllm is not on"));
    else if (mode && !tokens)
        importer.lose("rollout_importance_sampling_mode",
                      cat(*mode,
                          ": a completion's ratio is a mean over its tokens there, and their product here; "
                          "grpo.sampler_correction none is enough, for sampler and trainer share their weights"));
    if (!mode || !samples || !tokens) {
        if (threshold)
            importer.note("rollout_importance_sampling_threshold",
                          "has no effect: it is for a rollout_importance_sampling_mode that is carried over");
        return;
    }
    importer.set("rollout_importance_sampling_mode", "grpo.sampler_correction", *mode);
    importer.set("rollout_importance_sampling_threshold", "grpo.sampler_clip_max", threshold.value_or(2));
    const config::GrpoOptions& grpo = importer.config().grpo;
    if (grpo.beta > 0 && !grpo.kl_in_reward)
        importer.note("rollout_importance_sampling_mode",
                      "weighs the divergence of beta too there, and the policy's loss alone here");
}

/// What advantages are measured by.
class SwiftAdvantages {
  public:
    explicit SwiftAdvantages(Importer& importer)
        : importer_(importer),
          estimator_(importer.take_text("advantage_estimator").value_or("grpo")),
          kl_in_reward_(importer.take("kl_in_reward").value_or(nullptr)),
          scale_(importer.look("scale_rewards")) {
        const bool one_out = estimator_ == "rloo";
        if (scale_ == "gdpo" || (one_out && !scale_.is_null() && scale_ != "none")) importer.take("scale_rewards");
    }

    /// After section grpo's other options.
    void finish() {
        const bool gdpo = scale_ == "gdpo", one_out = estimator_ == "rloo" && !gdpo;
        if (gdpo) {
            importer_.set("scale_rewards", "grpo.multi_objective_aggregation", "normalize_then_sum");
            if (estimator_ != "grpo")
                importer_.note("advantage_estimator", "has no effect: scale_rewards gdpo makes the advantages");
        } else if (one_out) {
            importer_.set("advantage_estimator", "grpo.advantage", "leave_one_out");
            if (!scale_.is_null() && scale_ != "none")
                importer_.lose("scale_rewards", cat(shown(scale_),
                                                    ": with advantage_estimator rloo nothing divides "
                                                    "advantages here"));
        } else if (estimator_ != "grpo") {
            importer_.lose("advantage_estimator", cat(estimator_,
                                                      ": grpo.advantage is group_mean or leave_one_out; it "
                                                      "stays group_mean"));
        }
        if (one_out && kl_in_reward_.is_null())
            importer_.set_default("grpo.kl_in_reward", importer_.config().grpo.beta > 0);
        else if (one_out)
            importer_.set("kl_in_reward", "grpo.kl_in_reward", kl_in_reward_);
        else if (gdpo && !kl_in_reward_.is_null())
            importer_.note("kl_in_reward", "has no effect: scale_rewards gdpo leaves the divergence in the loss");
        else if (!kl_in_reward_.is_null() && kl_in_reward_ != false)
            importer_.lose("kl_in_reward", cat(shown(kl_in_reward_),
                                               ": it is for advantage_estimator rloo; the "
                                               "divergence of beta is in the loss"));
    }

  private:
    Importer& importer_;
    std::string estimator_;
    Json kl_in_reward_, scale_;
};

}  // namespace

void import_swift_policy(Importer& importer) {
    import_dropout_of_policy(importer);
    SwiftRewards rewards(importer);
    SwiftAdvantages advantages(importer);
    const bool samples = importer.look("use_vllm") == true,
               model_scores = importer.look("reward_model").is_array() && !importer.look("reward_model").empty();
    const std::string cut = importer.take_text("truncation_strategy").value_or("left");
    if (cut != "left" && cut != "delete")
        importer.lose("truncation_strategy", cat(cut, ": left or delete is expected; prompts are never cut here"));
    import_policy(
        importer,
        {.rows = "per_device_train_batch_size",
         .bias_correction = false,
         .defaults = {{"grpo.loss_type", "grpo"}, {"grpo.beta", 0.04}, {"grpo.temperature", 0.9}},
         .names = {{"max_completion_length", length_of_completions(importer)},
                   {"max_prompt_length", "max_length"},
                   {"mask_truncated_completions", "overlong_filter"},
                   {"sapo_temperature_pos", "tau_pos"},
                   {"sapo_temperature_neg", "tau_neg"},
                   {"off_policy_mask_threshold", "off_policy_sequence_mask_delta"}},
         .vllm_corrects = false,
         .reward = [&](const std::string& name) { return rewards.reward(name); },
         .lost_rewards = model_scores ? importer.look("reward_model").size() : 0,
         .long_prompts = cut == "delete"
                             ? "longer prompts are replaced by others there; here data.skip_invalid skips them"
                             : "longer prompts are cut on their left there; here data.skip_invalid skips them"});
    rewards.tell_plugins();
    advantages.finish();
    import_swift_correction(importer, samples);
}

}  // namespace unsloth::import
