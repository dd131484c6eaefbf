// Successive halving (Jamieson and Talwalkar, "Non-stochastic Best Arm Identification", AISTATS 2016), with eta 2:
// after each comparison half of the trials continue, and take twice the steps.
#pragma once

#include <cstddef>
#include <vector>

namespace unsloth::app {

/// The shares of a run's steps at which `trials` (2 at least) are compared, ascending; the last is 1, which one trial
/// alone reaches: of eight 1/8, 1/4, 1/2, 1.
std::vector<double> halving_shares(std::size_t trials);

/// How many of `trials` continue after a comparison: half, rounded up.
constexpr std::size_t halved(std::size_t trials) {
    return (trials + 1) / 2;
}

/// Places in `values` that are kept, ascending: the best half, of those that are finite. Of equal values the first.
std::vector<std::size_t> kept_places(const std::vector<double>& values, bool more_is_better);

}  // namespace unsloth::app
