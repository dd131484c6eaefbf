// run_state.json: what a run must know to resume from a checkpoint, in addition to its tensors. Our own format; all
// numbers are kept exactly.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace unsloth::formats {

/// What a step was measured by.
struct StepMeasure {
    int64_t step = 0;
    double loss = 0, grad_norm = 0;
    bool operator==(const StepMeasure&) const = default;
};

/// The optimizer's counters.
struct OptimizerProgress {
    int64_t updates = 0;  ///< Adam's t
    double loss_scale = 1;
    int64_t good_steps = 0;           ///< since the loss scale was changed
    std::vector<StepMeasure> recent;  ///< steps that training.skip_on_spike compares the next with; empty without it
};

/// The mean of losses that are finite: a step skipped by fp16's loss scale may have none.
struct LossMean {
    double sum = 0;
    int64_t steps = 0;
    void add(double loss);
    /// nullopt: no finite one was added.
    std::optional<double> mean() const;
};

/// The best evaluation, by one of its values; one that is not finite never is.
struct BestEvaluation {
    std::optional<double> value;
    int64_t step = 0;
    /// By how much it is better than the best before it, which it then replaces: infinitely for the first, 0 where it
    /// is not better.
    double observe(int64_t at_step, double value_there, bool more_is_better);
};

/// reduce_lr_on_plateau's memory.
struct PlateauProgress {
    double learning_rate = 0;
    double best = 0;
    bool has_best = false;  ///< `best` is valid
    int64_t bad_evaluations = 0;
    int64_t cooldown_left = 0;
};

/// How far a run is: the trainer works on this, and a checkpoint holds it as it is.
struct RunProgress {
    int64_t step = 0;  ///< optimizer steps taken, those skipped by loss scaling counted: the data's position
    double epoch = 0;
    int64_t seen_tokens = 0;
    OptimizerProgress optimizer;
    BestEvaluation best;
    int64_t worse_evaluations = 0;  ///< in a row: not better than the best by more than early_stopping_threshold
    LossMean unlogged;              ///< of the steps since the last logged one
    std::optional<PlateauProgress> plateau;
    bool evaluation_due = false;  ///< the evaluation after this step was broken off
};

struct RunState {
    RunProgress progress;

    // What the progress belongs to: a run that differs here would resume something else.
    int64_t per_device_train_batch_size = 1, gradient_accumulation_steps = 1, world_size = 1;
    int64_t cpu_threads = 0;  ///< that shared products on the CPU; 0: a GPU computed, or an older version wrote this
    std::string data;         ///< fingerprint of the training rows
    std::string parameters;   ///< fingerprint of the flat buffer's layout
};

/// Atomically writes folder/run_state.json.
void write_run_state(const std::filesystem::path& folder, const RunState& state);
/// input Error, naming file and key, for a text that is none, or of another version of the format.
RunState read_run_state(const std::filesystem::path& folder);

}  // namespace unsloth::formats
