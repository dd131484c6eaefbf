// `score --top_k`: a file of what a teacher says.
#pragma once

#include "unsloth/config/config.h"
#include "unsloth/engine_api/engine.h"

namespace unsloth::commands {

/// `score --top_k`: what the model says of the targets of a run's rows, training and evaluation, into request.out.
void write_teacher_file(const config::LoadedConfig& loaded, const engine_api::ScoreRequest& request);

}  // namespace unsloth::commands
