// evaluate --sensitivity: which weight matrices a quantized base should hold in 16 bits, by the loss of rows.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include "unsloth/config/config.h"
#include "unsloth/spec/model_spec.h"
#include "unsloth/spec/weight_type.h"

namespace unsloth::commands {

/// The rows' mean loss with the base held as the configuration says.
using LossOf = std::function<double(const config::LoadedConfig&)>;

/// Measures the loss with unquantized matrices (eval_loss), with each kind of projection in `type` alone
/// (loss_added, the largest first), and with all of them (eval_loss_quantized). `precision` is a value of
/// model.precision that keeps kinds unquantized, most added loss per byte first, until at most half of the sum is left;
/// eval_loss_mixed is the loss with it. Experts keep their form. Loads the model once for each measurement.
nlohmann::ordered_json precision_sensitivity(const config::LoadedConfig& loaded, const spec::ModelSpec& model,
                                             spec::WeightType type, const LossOf& loss_of);

}  // namespace unsloth::commands
