// The fastest way to run a model's layers within a budget. Layers are alike, so that it is a matter of counts: how many
// of them run in each of some ways.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "unsloth/planner/step_time.h"
#include "unsloth/spec/run_plan.h"

namespace unsloth::planner {

/// A way to run a layer, and what each layer takes that runs so.
struct LayerOption {
    spec::LayerPlan plan;
    spec::MemoryNeed bytes;
    LayerTime time;
};

struct Problem {
    int64_t layers = 0;
    std::vector<LayerOption> options;  ///< at most 64
    spec::MemoryNeed budget;
    /// What else a plan takes that uses these options (bit i: options[i]) and no others: buffers that its layers share.
    /// Asked for few sets only.
    std::function<spec::MemoryNeed(uint64_t used)> shared;
    spec::MemoryNeed least_shared;  ///< of any set
};

struct Solution {
    std::vector<int64_t> counts;  ///< of each option
    double ms = 0;                ///< of a micro-batch's layers
};

/// The counts with the least predicted time among those that fit, to a share of `tolerance` of it; nullopt: none fits.
/// Branch and bound with a Lagrangian bound: bytes have prices. Where hundreds of thousands of plans are within the
/// bound's distance, the best of the 200,000 that were tried first.
std::optional<Solution> solve(const Problem& problem, double tolerance = 0.002);

/// The time that solve() minimises.
double layers_ms(const std::vector<LayerOption>& options, const std::vector<int64_t>& counts);

/// The layers of a solution in the order that runs need: those with activations on the host lowest, those whose weights
/// are off the device last.
std::vector<spec::LayerPlan> arrange(const std::vector<LayerOption>& options, const std::vector<int64_t>& counts);

}  // namespace unsloth::planner
