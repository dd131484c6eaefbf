// Completes prompts with the model as it is, and scores the completions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "unsloth/reward/rewards.h"
#include "unsloth/rollouts/group.h"
#include "unsloth/rollouts/prompt_rows.h"
#include "unsloth/rollouts/sampled_groups.h"
#include "unsloth/session/session.h"

namespace unsloth::rollouts {

/// Every data-parallel rank completes and scores its share of the groups, and gets all ranks' results.
class GroupSampler {
  public:
    /// usage Error for rewards that are not allowed or cannot be loaded, input Error where no token ends a completion.
    GroupSampler(const config::Config& config, const session::OpenedModel& opened, int rank, int ranks);

    /// Before the first job. The model's plan has room for `rows` sequences of `context` tokens. All outlive this.
    void attach(ops::Context& ctx, model::Model& model, comm::Group* group, int64_t rows, int64_t context);

    struct Job {
        std::vector<const PromptRow*> prompts;
        int64_t completions = 1;  ///< of each prompt
        /// Of their random numbers: a prompt's and a completion's place are added.
        int64_t first_prompt = 0, first_answer = 0;
        reward::TrainerState trainer_state;
        std::string what;  ///< for messages
    };
    /// Throws a GenerationStopped.
    ScoredGroups operator()(const Job& job);

    /// Error reward.missing-column where a reward needs a column that no row of `rows` has.
    void require_columns(const std::vector<PromptRow>& rows);

    const tokenizer::Tokenizer& tokenizer() const { return tokenizer_; }
    int32_t end_token() const { return stops_.front(); }
    const std::vector<std::string>& reward_names() const { return rewards_.names(); }
    const std::vector<double>& reward_weights() const { return weights_; }  ///< empty: 1 each

  private:
    reward::Settings settings(const session::OpenedModel& opened) const;
    bool is_own(std::size_t group) const { return static_cast<int>(group % static_cast<std::size_t>(ranks_)) == rank_; }
    void sample(const Job& job, ScoredGroups& batch);
    void score(const Job& job, ScoredGroups& batch);
    void stop_together(const std::string& what);

    const config::Config& config_;
    int rank_, ranks_;
    tokenizer::Tokenizer tokenizer_;
    std::vector<int32_t> stops_;
    reward::Rewards rewards_;
    std::vector<double> weights_;
    comm::Group* group_ = nullptr;
    ops::Context* ctx_ = nullptr;
    model::Model* model_ = nullptr;
    int64_t rows_in_flight_ = 0, context_ = 0;
    double rows_in_flight_mean_ = 0;  ///< of the last job, on this rank
};

}  // namespace unsloth::rollouts
