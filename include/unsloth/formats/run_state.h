// run_state.json: what a run must know to go on from a checkpoint, beside its tensors. Our own format; all numbers are
// kept exactly.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace unsloth::formats {

struct RunState {
    /// reduce_lr_on_plateau's memory.
    struct Plateau {
        double learning_rate = 0, best = 0;
        bool has_best = false;
        int64_t bad_evaluations = 0, cooldown_left = 0;
    };

    int64_t step = 0;     ///< optimizer steps taken, those skipped by loss scaling counted: the data's position
    int64_t updates = 0;  ///< Adam's t
    double loss_scale = 1;
    int64_t good_steps = 0;  ///< since the loss scale was changed
    double epoch = 0;
    int64_t seen_tokens = 0;
    std::optional<double> best_eval;
    int64_t best_step = 0;
    double unlogged_loss = 0;  ///< sum over the steps since the last logged one whose loss is finite
    int64_t unlogged_steps = 0;
    std::optional<Plateau> plateau;
    bool evaluation_due = false;  ///< the evaluation after this step was broken off

    // What the numbers above belong to: a run that differs here would go on with something else.
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
