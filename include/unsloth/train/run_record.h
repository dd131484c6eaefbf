// What a run did in this process, in figures: where its time goes, how much is left, its losses.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "unsloth/config/step_intervals.h"

namespace unsloth::train {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// All counts, seconds and losses are of this process: a run that resumes from a checkpoint begins at 0, except for
/// global_step.
struct RunSummary {
    std::string exit_reason;  ///< finished | SIGTERM, SIGINT (saved after such a signal) | error
    std::string error;        ///< its first line; empty without one
    std::string error_id;     ///< "data.empty"; empty without one
    int64_t global_step = 0, steps = 0;
    double epoch = 0;
    int64_t tokens = 0, trained_tokens = 0;
    /// From opening the model on; waiting for data is training, for a save's copies is saving.
    double seconds = 0, train_seconds = 0, eval_seconds = 0, save_seconds = 0, load_seconds = 0;
    std::optional<double> train_loss;  ///< mean of the steps' losses
    std::optional<double> final_loss;  ///< of the last logged row
    std::optional<double> final_eval_loss;
    std::string best_metric;           ///< training.metric_for_best_model: eval_loss, …
    std::optional<double> best_value;  ///< of it, at best_step
    int64_t best_step = 0;
    double memory_gib = 0;
    int64_t skipped_steps = 0;  ///< spikes, and overflows of fp16's loss scale

    double tokens_per_second() const { return static_cast<double>(tokens) / train_seconds; }
};

/// Estimates what is left of a run from what its steps, evaluations and saves took.
class TimeLeft {
  public:
    struct Plan {
        int64_t total_steps = 0;
        config::StepInterval eval, save;
        double save_minutes = 0;
        int64_t eval_tokens = 0;  ///< of one evaluation; 0: there is none
    };
    TimeLeft() = default;
    explicit TimeLeft(const Plan& plan) : plan_(plan) {}

    void stepped(double seconds, int64_t tokens);
    void evaluated(double seconds) { eval_seconds_ = seconds; }
    void saved(double seconds) { save_seconds_ = seconds; }
    /// Once `step`'s result is there, and before the evaluation and the save that may follow it. Until one was measured
    /// an evaluation counts half of what its tokens would take to train on (a forward pass alone), a save nothing.
    double after(int64_t step) const;

  private:
    Plan plan_;
    double smoothed_seconds_ = 0, weight_ = 0;  ///< newer steps weigh more
    double seconds_ = 0, tokens_ = 0;
    std::optional<double> eval_seconds_;
    double save_seconds_ = 0;
};

}  // namespace unsloth::train
