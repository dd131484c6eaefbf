// When a run saves, and what: checkpoints, the result, of the best evaluation or of the last step.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "unsloth/train/run_reporter.h"
#include "unsloth/train/run_saver.h"
#include "unsloth/train/step_source.h"

namespace unsloth::train {

class SavePolicy {
  public:
    /// All outlive this.
    SavePolicy(const RunSetup& setup, TrainingState& state, RunReporter& reporter);
    /// On the rank that leads: from here on the output folder is this run's.
    void begin_folder() const;
    /// Ranks that trained apart without a word must not leave it in a checkpoint: runtime Error. Called by all ranks.
    void require_same_values();

    /// Whose progress checkpoints hold from here on; outlives this.
    void set_source(const StepSource& source) { source_ = &source; }
    /// training.save_minutes count from here.
    void start_clock() { last_save_ = std::chrono::steady_clock::now(); }
    bool save_time_has_come() const;
    /// With a group: some rank asked for a checkpoint with the step whose result was read.
    void agree(bool due) { agreed_ = agreed_ || due; }
    /// Whether a checkpoint follows this step.
    bool due(int64_t step) const;
    /// A checkpoint between two steps: training pauses until the state was copied.
    void save_while_training();
    /// The result of the last good values, before the run ends with an error.
    void keep_result();
    /// A checkpoint and the result, with steps left; false where the checkpoint could not be written.
    bool pause();
    /// The same for a signal; throws Interrupted.
    [[noreturn]] void stop_for(int signal);
    /// The end of a whole run: the last checkpoint, the result.
    void finish();

  private:
    void checkpoint();
    bool finish_saving();
    void save_result();
    void load_best();
    std::filesystem::path best_checkpoint() const;
    std::string calibration() const;
    void tell_calibration() const;
    RunFiles run_files() const;
    RunMoment moment() const;
    bool leads() const { return setup_.leads(); }
    bool full() const { return setup_.full(); }
    const config::Config& config() const { return setup_.config(); }

    const RunSetup& setup_;
    TrainingState& state_;
    RunReporter& reporter_;
    const StepSource* source_ = nullptr;
    std::optional<RunSaver> saver_;         ///< of ranks that write parts of a checkpoint
    std::optional<int64_t> saved_step_;     ///< of the last checkpoint asked for
    std::optional<int64_t> compared_step_;  ///< with a group: after it all ranks had the same values
    std::chrono::steady_clock::time_point last_save_;
    bool agreed_ = false;
    std::filesystem::path loaded_;  ///< checkpoint that the values come from; empty: they are the last step's
};

}  // namespace unsloth::train
