// Evaluation during a run: the objective's loss and figures over rows that are not trained on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/comm/group.h"
#include "unsloth/data/loader.h"
#include "unsloth/model/model.h"
#include "unsloth/objective/objective.h"
#include "unsloth/train/observer.h"

namespace unsloth::train {

class Evaluator {
  public:
    /// Batches of at most `most_tokens` tokens, of which each of `ranks` takes its part, and of these a slice where
    /// rows are shared. `files`: data.eval_files, of which source i of the rows is the i-th; empty: the rows are one
    /// set. `group` (nullptr: alone) outlives this.
    Evaluator(data::Dataset rows, const std::vector<std::pair<std::string, std::string>>& files, int64_t most_tokens,
              int rank, int ranks, comm::Group* group, data::ContextRank context = {});

    data::BatchLimits limits() const { return batches_.limits(); }
    const data::EvalLoader& batches() const { return batches_; }
    int64_t tokens() const { return batches_.dataset().stats().tokens; }  ///< of one evaluation, over all ranks

    struct Result {
        std::optional<EvalReport> report;  ///< nothing when a signal asked to stop before it was done
        int signal = 0;                    ///< that all ranks saw last; 0: none
    };
    /// Called by all ranks. `ctx`: the model's. `references`: of these rows, where the objective has any. runtime Error
    /// as the group.
    Result run(model::Model& model, ops::Context& ctx, objective::Objective& objective,
               const objective::References& references, int64_t step, double epoch) const;

  private:
    data::EvalLoader batches_;
    std::vector<std::string> names_;     ///< of sets; empty: one without a name
    std::vector<data::Extent> extents_;  ///< of each set
    comm::Group* group_;
};

}  // namespace unsloth::train
