// A run plan as text: for the log, and as JSON for files and other ranks.
#pragma once

#include <optional>
#include <string>

#include "unsloth/spec/run_plan.h"

namespace unsloth::planner {

/// "none" where all layers keep alike; else how many keep what: "20 x none, 12 x mlp+offload"; then what else bounds
/// memory: "; 8192 tokens of an MLP at a time".
std::string describe_keep(const spec::RunPlan& run);

/// {"layers": [{"count", "keep", "activations_at", "weights_at", "cached"}, …], "head_tile", "row_tile",
/// "inputs_in_fp8", "in_flight", "pass_rows"}: a run of layers that are alike is one entry.
std::string run_plan_json(const spec::RunPlan& run);
/// nullopt for a text that is no such plan.
std::optional<spec::RunPlan> parse_run_plan(const std::string& json);

/// The option's word for what a layer keeps: everything | mlp | attention | input.
const char* name_of(spec::Keep keep);
const char* name_of(spec::Place place);

}  // namespace unsloth::planner
