// What `prune` holds in addition to the model while it measures, as part of what it plans.
#pragma once

#include "commands/calibration_rows.h"
#include "unsloth/engine_api/engine.h"

namespace unsloth::commands {

/// Bytes of sums and of what is converted to fp64, on the device; of residual streams in host memory.
struct MeasuringMemory {
    int64_t sums = 0;
    int64_t streams = 0;
    int64_t of_token = 0;  ///< of a token's stream
};
/// Streams are in the compute type, and only experts are measured layer by layer with them; those of one batch are
/// there twice when a layer replaces them.
MeasuringMemory measuring_memory(const engine_api::CalibrationRequest& request, const spec::ModelSpec& spec,
                                 const CalibrationRows& rows, spec::DType compute);

/// The passes over all batches, planned with what else is held meanwhile. Reads no weights. runtime Error
/// "memory.host-plan-too-large" where the streams do not fit and those of fewer tokens would, naming how many; others
/// as placement::require_memory().
session::PassesPlan plan_measuring(const config::LoadedConfig& loaded, const session::OpenedModel& opened,
                                   const CalibrationRows& rows, const MeasuringMemory& memory);

/// Bytes on the plan's device; on the CPU streams too.
int64_t planned_bytes(const session::PassesPlan& planned, const MeasuringMemory& memory);

/// Logs the plan before the model is read, and after the passes what was taken of it. The result: bytes taken at most.
void tell_plan(const session::PassesPlan& planned, const MeasuringMemory& memory, const CalibrationRows& rows);
int64_t tell_use(const session::PassesPlan& planned, const MeasuringMemory& memory);

}  // namespace unsloth::commands
