// What the ways to run a model's layers take of memory and of time: bytes as the plan itself says, times as the card's
// rates do. From both follows the fastest plan within a budget.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "unsloth/model/loader.h"
#include "unsloth/planner/solve.h"

namespace unsloth::placement {

/// Where, and in which form, a layer's weights are stored.
struct WeightForm {
    spec::Place at = spec::Place::device;
    bool cached = false;
};

class LayerCosts {
  public:
    /// `plan` stays as it is, but for its run, and must outlive this; `micro_batches`: of a step; of `like` all but the
    /// layers holds.
    LayerCosts(const model::ModelPlan& plan, const planner::Card& card, int64_t micro_batches, spec::RunPlan like);

    /// The fastest plan whose layers keep activations in one of `ways` and have weights in one of `forms`; nullopt:
    /// none takes less than the budget.
    std::optional<spec::RunPlan> solve(const std::vector<spec::LayerPlan>& ways, const std::vector<WeightForm>& forms,
                                       const spec::MemoryNeed& budget);
    planner::LayerTime time_of(const spec::LayerPlan& layer) { return option(layer).time; }
    /// Of embeddings, lm_head and loss, and a micro-batch's share of the update.
    double outside_ms() const { return time_.outside(); }
    /// A whole step with this plan, whose layers may be any.
    double step_ms(const spec::RunPlan& run);

  private:
    spec::RunPlan with(const std::vector<spec::LayerPlan>& layers) const;
    spec::MemoryNeed estimate(const spec::LayerPlan& most, int64_t layers_of_it) const;
    spec::MemoryNeed beyond_full_recompute(const spec::LayerPlan& layer);
    planner::LayerOption option(const spec::LayerPlan& layer);
    spec::MemoryNeed shared(const std::vector<spec::LayerPlan>& plans);
    spec::MemoryNeed shared(const std::vector<planner::LayerOption>& options, uint64_t used);

    const model::ModelPlan& plan_;
    spec::RunPlan like_;
    int64_t in_flight_, layers_;
    planner::StepTime time_;
    spec::MemoryNeed full_recompute_;  ///< of the plan whose layers all keep their input, and no more, on the device
    std::map<int, spec::MemoryNeed> slopes_;
    std::map<std::vector<int>, spec::MemoryNeed> shared_;  ///< by the plans' numbers
};

/// What the passes of the plan's step share, with what `like` chooses for all layers.
planner::StepWork step_work(const model::ModelPlan& plan, int64_t micro_batches, const spec::RunPlan& like);

/// Whether GEMMs need the base's 4-bit weights dequantized.
bool holds_4bit(const model::ModelPlan& plan);

}  // namespace unsloth::placement
