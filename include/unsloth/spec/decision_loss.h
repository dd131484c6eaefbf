// The loss of a decision: a softmax over the options of a question against the answer's probabilities. C++17, for host
// code and kernels.
//
// A question's options are said by tokens, perhaps several each. p of an option is the sum over its tokens of a softmax
// over the tokens of all options; t is its probability in the answer. The loss is
//   - sum t log p + brier_weight * sum (p - t)^2
//
// Sources: Brier, "Verification of forecasts expressed in terms of probability".
#pragma once

#include <cmath>
#include <cstdint>

#include "unsloth/spec/host_device.h"

namespace unsloth::spec {

struct DecisionRule {
    double brier_weight = 0;
};

struct DecisionFigures {
    double loss = 0, brier = 0;
    double accuracy = 0;  ///< the answer's probability of the option with the highest p
};

/// Logits of one option's tokens: log of the sum of their exp.
struct OptionLogit {
    double maximum, sum;
    int32_t end;  ///< place after its tokens
    UNSLOTH_HOST_DEVICE_FUNCTION double value() const { return maximum + ::log(sum); }
};

/// Of the option whose tokens begin at `begin`. `shares` are negative at all of an option's tokens but the first.
UNSLOTH_HOST_DEVICE_FUNCTION OptionLogit option_logit(const float* logits, const float* shares, int32_t begin,
                                                      int32_t count) {
    OptionLogit option{static_cast<double>(logits[begin]), 0, begin + 1};
    for (; option.end < count && shares[option.end] < 0; ++option.end)
        option.maximum = ::fmax(option.maximum, static_cast<double>(logits[option.end]));
    for (int32_t i = begin; i < option.end; ++i) option.sum += ::exp(static_cast<double>(logits[i]) - option.maximum);
    return option;
}

/// The loss of one position by the logits of its options' tokens (`count` of them; at an option's first token `shares`
/// has its t). `slope` (i, value) takes the derivative by each logit.
template <class Slope>
UNSLOTH_HOST_DEVICE_FUNCTION DecisionFigures decision_loss(const DecisionRule& rule, const float* logits,
                                                           const float* shares, int32_t count, Slope slope) {
    double highest = static_cast<double>(logits[0]), all = 0;
    for (int32_t i = 1; i < count; ++i) highest = ::fmax(highest, static_cast<double>(logits[i]));
    for (int32_t i = 0; i < count; ++i) all += ::exp(static_cast<double>(logits[i]) - highest);
    const double total = highest + ::log(all);

    DecisionFigures figures;
    double best = -1, centre = 0;  // the mean of the loss's derivative by p, weighted with p
    for (int32_t begin = 0; begin < count;) {
        const OptionLogit option = option_logit(logits, shares, begin, count);
        const double t = static_cast<double>(shares[begin]), log_p = option.value() - total, p = ::exp(log_p);
        if (!(t == 0)) figures.loss -= t * log_p;
        figures.brier += (p - t) * (p - t);
        centre += 2 * rule.brier_weight * (p - t) * p - t;
        if (p > best) {
            best = p;
            figures.accuracy = t;
        }
        begin = option.end;
    }
    figures.loss += rule.brier_weight * figures.brier;
    for (int32_t begin = 0; begin < count;) {
        const OptionLogit option = option_logit(logits, shares, begin, count);
        const double t = static_cast<double>(shares[begin]), p = ::exp(option.value() - total);
        const double of_option = 2 * rule.brier_weight * (p - t) * p - t - p * centre;
        for (int32_t i = begin; i < option.end; ++i)
            slope(i, of_option * (::exp(static_cast<double>(logits[i]) - option.maximum) / option.sum));
        begin = option.end;
    }
    return figures;
}

}  // namespace unsloth::spec
