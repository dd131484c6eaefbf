// The steps of a run that learns from completions: generation batches, their slices and passes (rollouts/order.h).
#pragma once

#include <memory>

#include "unsloth/rollouts/generation.h"
#include "unsloth/train/step_source.h"
#include "unsloth/train/training_state.h"

namespace unsloth::train {

class RowFile;

class RolloutSource final : public StepSource {
  public:
    /// Continues after the state's step, with the checkpoint's state of a generation batch that was in use. All outlive
    /// this. input Error where that is missing or damaged.
    RolloutSource(const RunSetup& setup, TrainingState& state);
    ~RolloutSource() override;

    data::StepBatch next(int64_t step) override;
    std::string progress() const override;

  private:
    using Use = std::shared_ptr<const rollouts::Generation>;
    Use generation(int64_t number, int64_t step);
    rollouts::ScoredGroups groups_of(int64_t number, int64_t step) const;
    rollouts::GenerationScores scores_of(const rollouts::ScoredGroups& groups) const;
    rollouts::TokenScores reference_scores(std::span<const std::shared_ptr<const data::SampledRow>> rows) const;
    void log_completions(const rollouts::ScoredGroups& groups, const rollouts::Generation& generation, int64_t step);
    std::shared_ptr<data::PolicyStep> compose(int64_t step);
    void choose_by_entropy(data::PolicyStep& policy) const;
    data::Batch pass_over(const data::PolicyStep& policy, std::span<const std::size_t> places) const;
    bool is_own(int64_t row) const;
    void restore();
    rollouts::PolicyScorer scorer() const;
    const config::GrpoOptions& options() const { return setup_.config().grpo; }

    const RunSetup& setup_;
    TrainingState& state_;
    const rollouts::RolloutOrder& order_;
    Use in_use_;              ///< the newest generation
    int64_t num_tokens_ = 0;  ///< of all generations so far
    int64_t next_micro_ = 0;  ///< after the last step that was asked for
    /// Of the step that is composed: this rank's rows, as places in it, which passes may join.
    std::vector<std::vector<std::size_t>> units_;
    std::unique_ptr<RowFile> completions_;  ///< nullptr: nothing was written yet
};

}  // namespace unsloth::train
