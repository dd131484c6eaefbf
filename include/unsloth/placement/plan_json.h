// A plan as programs read it: of `plan --json`, and of a run that ends after its plan.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "unsloth/model/loader.h"

namespace unsloth::placement {

/// {"total_bytes", "device": {group: bytes}, "host_bytes", "disk_bytes", "layers", …}. The groups of the device add up
/// to the total. `teacher`: loaded together with it; nullptr: there is none.
nlohmann::ordered_json plan_json(const model::ModelPlan& plan, const model::ModelPlan* teacher);

}  // namespace unsloth::placement
