// What merge, quantize and prune share: writing a model's folder.
#pragma once

#include <filesystem>

#include "unsloth/core/staged_folder.h"
#include "unsloth/formats/model_writer.h"

namespace unsloth::app {

/// Tokenizer, templates and generation config: the adapter's where it has a tokenizer, what is left from the base.
/// The adapter's decision_calibration.json.
void copy_companions(const std::filesystem::path& base, const std::filesystem::path& adapter,
                     const std::filesystem::path& to);

/// Writes weights and config.json, and says how long it took. Errors as write_model.
void write_weights(const formats::MergedModel& model, const StagedFolder& staged,
                   const formats::ModelWriteOptions& options);

}  // namespace unsloth::app
