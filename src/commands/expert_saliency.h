// Which experts of a model matter on a file of rows.
//
// Source: Lasby et al., "REAP the Experts" (Router-weighted Expert Activation Pruning, arXiv 2510.13999): an expert's
// saliency is the mean, over the tokens that the router gave it, of its weight times the L2 norm of its output.
#pragma once

#include <vector>

#include "commands/calibration_rows.h"
#include "unsloth/engine_api/engine.h"

namespace unsloth::commands {

/// Passes of choose_experts() over each layer and all rows.
inline constexpr int64_t experts_passes = 2;

/// Chooses the `remain` experts of each layer with the largest saliency, one layer after another: a layer is measured
/// on what the layers below it give with their remaining experts alone. The weights are those that the model computes
/// with (spec::RouterWeights). Experts without a token rank last, and of equal ones the lower number remains.
///
/// Holds the residual stream of all rows in host memory: tokens × hidden size, in the compute type. One element for
/// each layer; those of layers without experts are empty. Error "numerics.not-finite" where a saliency is not finite.
/// Leaves model.experts_probe empty.
std::vector<engine_api::Calibration::Experts> choose_experts(model::Model& model, const CalibrationRows& rows,
                                                             int64_t remain);

}  // namespace unsloth::commands
