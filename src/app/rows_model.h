// A configuration's rows, loaded without the engine: no weights are needed.
#pragma once

#include <filesystem>

#include "unsloth/config/config.h"
#include "unsloth/data/training_data.h"

namespace unsloth::app {

/// What of the model's folder the rows need; nothing of it without a model.path.
struct RowsModel {
    std::filesystem::path tokenizer;  ///< folder
    data::ModelLimits limits;
};
/// Downloads what is missing of a hub's model, but no weights. Input Error as formats::resolve_model_path().
RowsModel open_rows_model(const config::Config& config);

/// As load_training_data(), without its warnings in the log.
data::TrainingData load_rows(const config::Config& config, const RowsModel& model, data::RefusedRows refused);

}  // namespace unsloth::app
