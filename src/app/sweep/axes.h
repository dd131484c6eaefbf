// The settings of a sweep: which options have several values, and each combination of them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "app/command_line/command_line.h"

namespace unsloth::app {

inline constexpr std::size_t most_trials = 16;

/// Moves flags with several values, such as --learning_rate 1e-4,2e-4, into `request.axes`. Fills in
/// `request.arguments`, and returns what is left to be parsed, --grid and the sweep's other options included.
std::vector<std::string> take_axes(const std::vector<std::string>& arguments, SweepRequest& request);

/// Adds the axes of `request.grid`. `typed`: full names of the options among the arguments, which no axis may repeat.
/// Usage Error for an unknown option, one whose settings cannot be compared, a wrong value, one value alone, a value
/// that is there twice, and for more than most_trials settings.
void read_axes(SweepRequest& request, const std::set<std::string>& typed, const Config& config);

/// Every combination of the axes' values, {full name, value} each; the last axis changes first.
std::vector<std::vector<std::pair<std::string, std::string>>> combinations(const SweepRequest& request);

}  // namespace unsloth::app
