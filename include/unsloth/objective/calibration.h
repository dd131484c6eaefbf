// How well the probabilities of decisions are calibrated, and the temperature that makes them so.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "unsloth/data/batch.h"
#include "unsloth/formats/decision_calibration.h"
#include "unsloth/spec/decision_loss.h"

namespace unsloth::objective {

/// What a model says of a question whose answer is known.
class RatedDecision {
  public:
    /// `logits`: of each of the options' tokens.
    RatedDecision(const data::OptionTokens& options, const float* logits);

    spec::DecisionFigures figures(const spec::DecisionRule& rule) const;
    /// Adds the decision to the bins of calibration_error().
    void count(std::span<float> bins, double temperature = 1) const;
    /// -log p of the answer, where p of each option is softmax(option logits / temperature).
    double loss(double temperature) const;
    /// The derivative of loss() by 1 / temperature. It rises with 1 / temperature.
    double slope(double temperature) const;

  private:
    std::vector<double> probabilities(double temperature) const;

    data::OptionTokens options_;
    std::vector<float> logits_;
    std::vector<double> option_logits_, shares_;  ///< of each option; the highest logit is 0
};

/// Equal intervals of the highest probability of a decision's options.
inline constexpr int64_t calibration_bins = 15;
/// Of each bin the decisions, the sum of these probabilities, and the sum of the answers' for the same options.
inline constexpr int64_t calibration_measures = 3 * calibration_bins;
/// The expected calibration error (ECE) of this number of decisions.
double calibration_error(std::span<const float> bins, double decisions);

/// Replaces each value by its sum over the ranks that evaluate; with the same bits on each. Called by all of them
/// alike.
using SumOverRanks = std::function<void(std::vector<float>& values)>;

/// The temperature, from 0.05 to 20, with the least mean of loss() over all ranks' decisions. nullopt: there are none.
std::optional<formats::DecisionCalibration> fit_temperature(const std::vector<RatedDecision>& decisions,
                                                            const SumOverRanks& sum);

}  // namespace unsloth::objective
