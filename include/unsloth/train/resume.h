// Resuming a run from one of its checkpoints.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "unsloth/config/config.h"
#include "unsloth/formats/run_state.h"

namespace unsloth::train {

struct ResumePoint {
    std::filesystem::path folder;
    formats::RunState state;
};

/// The checkpoint that training.resume_from_checkpoint means: nothing when it asks for none, or for "auto" where there
/// is none. Damaged and unfinished ones, those of another user and those of other programs are skipped with a warning,
/// except one that is named. usage Error when "true" finds none, and when the named one is another program's; input
/// Error when it is damaged.
std::optional<ResumePoint> find_resume_point(const config::TrainingOptions& training);

/// Reads a folder that is known to be whole.
ResumePoint read_resume_point(const std::filesystem::path& folder);

/// usage Error when resuming from `point` would overwrite what it does not continue in output_dir: another run, steps
/// of the same run after a named checkpoint, or a finished result after the newest complete checkpoint.
void require_nothing_lost(const config::TrainingOptions& training, const ResumePoint& point);

/// usage Error when the run is to end before the checkpoint's step.
void require_steps_left(const ResumePoint& point, int64_t total_steps);

/// Compares the configuration with the checkpoint's run_config.json. Logs what differs; usage Error for what would
/// change the meaning of the steps already taken (adapter, data, seed, optimizer, …).
void require_same_run(const config::Config& config, const ResumePoint& point);

/// Whether the configuration has the evaluation sets, and scores their completions, as the checkpoint's
/// run_config.json says. The files' contents are not compared.
bool evaluates_as_before(const config::Config& config, const ResumePoint& point);

/// A number of the checkpoint's run_config.json; nullopt where it has none there.
std::optional<double> number_before(const ResumePoint& point, const std::string& section, const std::string& key);

/// Gradient accumulation under which a step has as many rows as before, with `world_size` ranks. usage Error where
/// there is none, or where the configuration asks for another number of rows.
int64_t accumulation_for(const config::TrainingOptions& training, const formats::RunState& state, int world_size);

}  // namespace unsloth::train
