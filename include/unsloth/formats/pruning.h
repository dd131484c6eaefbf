// A model without some of its parts: whole layers, neurons of the MLPs, experts, or single weights that become zero.
//
// Source of the rule for single weights: Sun et al., "A Simple and Effective Pruning Approach for Large Language
// Models" (Wanda, arXiv 2306.11695), section 3: each row keeps the weights with the largest |W| · ‖X‖₂, where ‖X‖₂ is
// the norm of the weight's input over the calibration tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "unsloth/formats/load_plan.h"
#include "unsloth/spec/tensor_table.h"

namespace unsloth::formats {

/// What remains of a base.
struct Pruning {
    /// Layers of the base that remain, ascending; the k-th of them becomes layer k.
    std::vector<int64_t> layers;
    /// MLP neurons (rows of gate and up, columns of down) that remain of each of `layers`, ascending, as many in all of
    /// them; empty: all.
    std::vector<std::vector<int64_t>> neurons;
    /// Experts that remain of each of `layers`, ascending, as many in all layers that have some; no element for a layer
    /// without. Empty: all.
    std::vector<std::vector<int64_t>> experts;
    /// Sets some weights of `rows` rows of a linear to zero; its layer is numbered as in the result.
    /// Called from several threads. Empty: no weight.
    std::function<void(const spec::TensorRule& rule, int64_t rows, float* values)> zero;
};

/// Without ModelSpec::experts where no layer with some remains.
spec::ModelSpec pruned_spec(const spec::ModelSpec& base, const Pruning& pruning);

/// A config.json text of `layers` layers whose lists of one entry a layer (layer_types) are cut to those that remain;
/// without mlp_only_layers, which names layers by their numbers, so that write_model_config adds it again. Input Error,
/// naming the key, for a list that is of layers and has another number of entries.
std::string pruned_config(const std::string& original, const Pruning& pruning, int64_t layers);

/// Which weights of a row Wanda sets to zero: none, half of them, or two of each four neighbours.
enum class Sparsity : uint8_t { none, half, two_of_four };

/// Applies Wanda's rule to one row. `norms`: ‖X‖₂ of each column. Of equal products the one with the lower column goes
/// first. With two_of_four the columns are a multiple of four.
void zero_least(Sparsity sparsity, const float* norms, int64_t cols, float* row);

/// L2 norm of each column, summed in fp64; reads some rows at a time.
std::vector<double> column_norms(const TensorSource& matrix);

/// The places of the `count` largest values, ascending. Of equal values the lower place is taken.
std::vector<int64_t> places_of_largest(const std::vector<double>& values, int64_t count);

}  // namespace unsloth::formats
