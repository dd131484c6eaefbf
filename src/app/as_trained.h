// What `train` did, taken over by the commands that work with its result.
#pragma once

#include <filesystem>

#include "app/command_line/command_line.h"

namespace unsloth::app {

/// Of score, generate, serve and evaluate: the run that made the adapter, or the fully trained model, says how the base
/// is held, in which type it computes and how rows are written, where neither flags nor a configuration file do. A
/// configuration RUN/run_config.json means the run's result. Both are logged. Input Error where such a run has none.
void take_from_run(CommandLine& line);

/// For merge: takes the base weight values that the run trained on, where the request does not set them. Logged.
void take_from_run(MergeRequest& request, const std::set<std::string>& given);

/// Of merge and quantize: what take_from_run() finds in `from` (an adapter's folder, or a model's) holds for the model
/// in `to`, too, whose weights stay as they are stored.
void pass_on_run(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace unsloth::app
