// The steps of a run, and what happens between them: evaluations, checkpoints, the stop.
#pragma once

#include <cstdint>
#include <memory>

#include "unsloth/train/rollout_guard.h"
#include "unsloth/train/save_policy.h"
#include "unsloth/train/step_source.h"

namespace unsloth::train {

class RowFile;

class TrainingLoop {
  public:
    /// All outlive this.
    TrainingLoop(const RunSetup& setup, TrainingState& state, SavePolicy& saves, RunReporter& reporter);
    ~TrainingLoop();

    /// From the state's step to the last one, or where it stops early, with the evaluations before and after. False
    /// where steps are left, after training.stop_at_step.
    bool run(StepSource& source);
    /// Takes the next step of the training rows and waits for its result; evaluates where the schedule follows
    /// evaluations.
    StepResult take_step(const IssueOptions& options);

  private:
    void take_steps(StepSource& source);
    bool issue(const data::StepBatch& batch, int64_t step);
    bool profiles(int64_t step) const;
    bool evaluates_after(int64_t step) const;
    void take_in(const StepResult& result);
    void watch_rollouts(const StepResult& result);
    void maybe_evaluate(int64_t step);
    std::optional<EvalReport> evaluate_rows(int64_t step, int& signal);
    std::optional<EvalReport> evaluate_completions(int64_t step, int& signal);
    void judge(const EvalReport& report);
    bool stops_early() const;
    void tell_early_stop() const;
    bool judge_answers(EvalReport& report, int& signal);
    void answer_prompts(int64_t step);
    bool leads() const { return setup_.leads(); }
    const config::Config& config() const { return setup_.config(); }

    const RunSetup& setup_;
    TrainingState& state_;
    SavePolicy& saves_;
    RunReporter& reporter_;
    RolloutGuard rollouts_;
    std::unique_ptr<RowFile> answer_rows_;      ///< nullptr: none were judged yet
    std::unique_ptr<RowFile> completion_rows_;  ///< nullptr: none were evaluated yet
    bool started_ = false;                      ///< a step of this process is done
    double step_seconds_ = 0;                   ///< of the last step
    int agreed_signal_ = 0;                     ///< with a group: as all ranks saw it with the last result
};

}  // namespace unsloth::train
