// Prompts with their completions and rewards, and where they come from.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/comm/group.h"
#include "unsloth/data/dataset.h"
#include "unsloth/model/model.h"
#include "unsloth/placement/recipe.h"
#include "unsloth/reward/advantages.h"

namespace unsloth::rollouts {

struct GroupCompletion {
    std::vector<int32_t> ids;     ///< with the end token where it has one; one at least
    std::vector<float> logprobs;  ///< natural, of the whole vocabulary at the temperature; NaN: not known; empty: none
    bool truncated = false;       ///< it has no end
    std::optional<std::string> text = {};  ///< without special tokens; absent where there is no tokenizer
};

/// A prompt and its completions.
struct Group {
    std::vector<int32_t> prompt;
    std::optional<std::string> prompt_text = {};
    std::vector<GroupCompletion> completions;
};

/// The groups of a whole generation batch, of all ranks, with the scores of all reward functions.
struct ScoredGroups {
    std::vector<Group> groups;
    std::vector<reward::Scores> scores;  ///< [functions][completions], groups one after another
    reward::Metrics metrics;             ///< that reward functions and the sampler add
    /// Columns that reward functions add for completions.jsonl: a JSON text a completion.
    std::vector<std::pair<std::string, std::vector<std::string>>> extra;
};

/// Completions of held-out prompts, of all ranks.
struct Evaluation {
    ScoredGroups groups;
    /// Name and value: reward, rewards/NAME/mean, completions/mean_length, …; of each of data.eval_files NAME_reward.
    /// NaN: undefined.
    std::vector<std::pair<std::string, double>> metrics;
    std::vector<std::string> sets;  ///< [groups] the name of data.eval_files; empty: there is one set
};

class GroupSource {
  public:
    virtual ~GroupSource() = default;
    /// Generation batch number `number`, from 0. `step`: the optimizer step that it begins with. Of all ranks: each
    /// gets all groups.
    virtual ScoredGroups generation(int64_t number, int64_t step) = 0;
    /// The most tokens that completions of held-out prompts take in an evaluation; 0: there are no such prompts.
    virtual int64_t evaluated_tokens() const { return 0; }
    /// What the model as it is completes held-out prompts with, each time by the same random numbers; where there are
    /// such prompts. Throws as generation().
    virtual Evaluation evaluation(int64_t /*step*/, double /*epoch*/) { return {}; }
    /// Of rewards, in the order of ScoredGroups::scores.
    virtual const std::vector<std::string>& reward_names() const = 0;
    /// One a reward; empty: 1 each.
    virtual std::vector<double> reward_weights() const = 0;
    /// Generation batches of an epoch.
    virtual int64_t generations_of_epoch() const = 0;
    /// Whether generations can be sampled after the first epoch.
    virtual bool repeats() const = 0;
    /// Rows that are as long as a step's may become: what memory is planned for.
    virtual data::Dataset longest_rows() const = 0;
    /// Changes with anything that the groups depend on, apart from the model.
    virtual std::string fingerprint() const = 0;
    /// For the log.
    virtual std::string describe() const = 0;
    /// What completions take of the model's plan that are sampled all at a time on a rank; nothing: none are.
    virtual std::optional<placement::Answering> needs() const { return std::nullopt; }
    /// Before the first generation(): the model that is trained, whose plan has room for `rows` completions at a time,
    /// and the ranks that share the groups (nullptr: alone). All outlive this.
    virtual void attach(ops::Context& /*ctx*/, model::Model& /*model*/, comm::Group* /*group*/, int64_t /*rows*/) {}
};

}  // namespace unsloth::rollouts
