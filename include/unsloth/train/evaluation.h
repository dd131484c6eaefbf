// Evaluation during a run: the objective's loss and figures over rows that are not trained on.
#pragma once

#include <cstdint>
#include <optional>

#include "unsloth/comm/group.h"
#include "unsloth/data/loader.h"
#include "unsloth/model/model.h"
#include "unsloth/objective/objective.h"
#include "unsloth/train/observer.h"

namespace unsloth::train {

class Evaluator {
  public:
    /// Batches of at most so many tokens, of which each rank takes its part. `group` (nullptr: alone) outlives this.
    Evaluator(data::Dataset rows, int64_t most_tokens, const comm::LaunchEnvironment& environment, comm::Group* group)
        : batches_(std::move(rows), most_tokens, environment.rank, environment.world_size), group_(group) {}

    data::BatchLimits limits() const { return batches_.limits(); }
    const data::EvalLoader& batches() const { return batches_; }
    int64_t tokens() const { return batches_.dataset().stats().tokens; }  ///< of one evaluation, over all ranks

    struct Result {
        std::optional<EvalReport> report;  ///< nothing when a signal asked to stop before it was done
        int signal = 0;                    ///< that all ranks saw last; 0: none
    };
    /// Called by all ranks. `references`: of these rows, where the objective has any. runtime Error as the group.
    Result run(model::Model& model, at::Device device, objective::Objective& objective,
               const objective::References& references, int64_t step, double epoch);

  private:
    data::EvalLoader batches_;
    comm::Group* group_;
};

}  // namespace unsloth::train
