// A generation batch: completions with advantages and metrics, and what models say of their tokens.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/comm/group.h"
#include "unsloth/data/dataset.h"
#include "unsloth/data/loader.h"
#include "unsloth/data/policy_step.h"
#include "unsloth/model/model.h"
#include "unsloth/rollouts/group.h"
#include "unsloth/rollouts/order.h"

namespace unsloth::rollouts {

/// A row to train on: the prompt, and the completion, whose tokens are the targets. `row` names it in a batch.
data::Sample sample_of(const std::vector<int32_t>& prompt, const std::vector<int32_t>& ids, int64_t row);

/// Completions to train on, as few samples: consecutive ones with the same prompt, up to `most`, share its tokens, and
/// are segments of one sample. `places` ascend; a sample's row is the first one's place, and its others' follow.
std::vector<data::Sample> samples_of(std::span<const std::shared_ptr<const data::SampledRow>> rows,
                                     std::span<const std::size_t> places, int64_t most);

/// The most that a pass of `pass_rows` of a rank's completions holds, whose prompts samples_of() shares. `rows` are
/// as long as any that the run may meet: prompt after prompt, each with a group's completions.
data::BatchLimits pass_limits(const data::Dataset& rows, const RolloutOrder& order, int ranks, int64_t pass_rows);

/// Name and value in the order of report; NaN: undefined.
using Metrics = std::vector<std::pair<std::string, double>>;

/// What is kept of a generation batch while steps use it.
struct Generation {
    int64_t number = -1;
    std::vector<std::shared_ptr<const data::SampledRow>> rows;  ///< of all ranks
    std::vector<bool> zero_groups;                              ///< [groups] whether all rewards are equal
    double tokens = 0;                                          ///< that count, one at least
    int64_t all_tokens = 0;                                     ///< prompts, one for each completion, and completions
    Metrics metrics;
    std::vector<double> advantages() const;
};

/// Log-probability and entropy of each token of rows, at a temperature.
struct TokenScores {
    std::vector<std::vector<float>> logps, entropies;  ///< [rows][tokens of the completion]
};

/// Scores completions with the model as it is, rows in passes of `rows_each`, up to `of_sample` of which share a prompt
/// (RolloutOrder). Every rank scores its share of the rows,
/// and gets all ranks' values.
class PolicyScorer {
  public:
    struct Ranks {
        comm::Group* group = nullptr;
        int rank = 0, ranks = 1;  ///< of data-parallel ones
    };
    PolicyScorer(ops::Context& ctx, model::Model& model, const Ranks& ranks, const config::GrpoOptions& options,
                 int64_t rows_each, int64_t of_sample)
        : ctx_(ctx), model_(model), ranks_(ranks), options_(options), rows_each_(rows_each), of_sample_(of_sample) {}
    /// `rows`: of all ranks, alike on each.
    TokenScores operator()(std::span<const std::shared_ptr<const data::SampledRow>> rows,
                           model::PolicyScope scope = model::PolicyScope::policy) const;

  private:
    void score_pass(std::span<const std::shared_ptr<const data::SampledRow>> rows, model::PolicyScope scope,
                    float* logps, float* entropies) const;

    ops::Context& ctx_;
    model::Model& model_;
    Ranks ranks_;
    const config::GrpoOptions& options_;
    int64_t rows_each_, of_sample_;
};

/// Log-probabilities of the policy at generation and of the reference; each may be empty.
struct GenerationScores {
    std::vector<std::vector<float>> old_logps, reference;
};

/// Advantages and metrics of scored groups.
Generation make_generation(const config::GrpoOptions& options, const GroupSource& source, const ScoredGroups& groups,
                           int64_t number, GenerationScores scores);

/// What completions of held-out prompts are worth; `sets` as Evaluation's.
Metrics evaluation_metrics(const config::GrpoOptions& options, const GroupSource& source, const ScoredGroups& groups,
                           const std::vector<std::string>& sets);

/// The rows of these groups, without advantages.
std::vector<std::shared_ptr<const data::SampledRow>> rows_of(const config::GrpoOptions& options,
                                                             const ScoredGroups& groups);

}  // namespace unsloth::rollouts
