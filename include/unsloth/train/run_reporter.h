// What people and programs learn of a run: the log before its first step, its steps and evaluations, how it ended.
#pragma once

#include <string>
#include <vector>

#include "unsloth/train/observer.h"
#include "unsloth/train/run_record.h"
#include "unsloth/train/run_warnings.h"
#include "unsloth/train/training_state.h"

namespace unsloth::train {

class RunReporter {
  public:
    /// `setup` outlives this.
    explicit RunReporter(const RunSetup& setup) : setup_(setup) {}

    /// What the run is made of, and what is doubtful about it.
    void banner() const;
    /// For programs, as the observers' lines.
    void print_plan() const;
    /// The model was loaded: from here on observers see the run. `state` outlives this.
    void begin(const TrainingState& state, double load_seconds);

    bool is_logged(int64_t step) const;
    /// A step whose result was read; `unlogged`: losses of the steps since the last logged one.
    void step(const StepResult& result, formats::LossMean& unlogged);
    void evaluation(const EvalReport& report);
    /// Whether the run evaluated these steps' values before; then its summary has that loss.
    bool was_evaluated(int64_t step);
    /// Time that answers to the sampled prompts took.
    void answered(double seconds) { summary_.eval_seconds += seconds; }
    void saved(double seconds);
    /// Tells the observers how the run ended, and lets them go; `error`: its first line, or empty.
    void end(const std::string& exit_reason, const std::string& error, const std::string& error_id = {});
    /// The end at training.stop_at_step, for the log too.
    void stopped();
    /// The end of a whole run, likewise.
    void finish();

    /// For trainer_state.json.
    const std::vector<formats::TrainerLogRow>& history() const { return history_.rows; }

  private:
    void warn() const;
    double peak_gib() const;
    void tell_memory() const;
    bool leads() const { return setup_.leads(); }
    bool full() const { return setup_.full(); }
    const config::Config& config() const { return setup_.config(); }

    const RunSetup& setup_;
    const TrainingState* state_ = nullptr;  ///< until begin()
    std::vector<std::unique_ptr<Observer>> observers_;
    HistoryObserver history_;
    LossWatch loss_watch_;
    RunSummary summary_;  ///< so far
    TimeLeft time_left_;
    formats::LossMean losses_;  ///< of this process' steps
    double hardware_rate_ = 0;  ///< of this process' GPU (report/hardware_rate.h); 0: not known
};

}  // namespace unsloth::train
