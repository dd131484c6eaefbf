// One plan for all ranks, and for all parts of a run.
#pragma once

#include <string>

#include "unsloth/comm/group.h"
#include "unsloth/placement/memory_use.h"

namespace unsloth::placement {

/// choose_memory_use() by the least memory that any rank has, as rank 0 chooses, or the first of a pipeline's stage.
/// `before`: the plan, as JSON, of the part of the run that this one resumes, or empty; it is kept where the choice is
/// the program's and it still fits. `taken`: by a plan that is loaded as well. `group` may be nullptr; called by all
/// ranks.
void choose_together(const config::Config& config, model::ModelPlan& plan, int64_t micro_batches, comm::Group* group,
                     const std::string& before, const MemoryBudget& taken = {});

/// fastest_pass_rows() likewise.
int64_t choose_pass_rows_together(const config::Config& config, const PassChoice& choice, at::Device device,
                                  comm::Group* group, const std::string& before);

}  // namespace unsloth::placement
