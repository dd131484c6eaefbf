// The pass over a run's rows that its preferences are measured against.
#pragma once

#include "unsloth/comm/group.h"
#include "unsloth/data/loader.h"
#include "unsloth/model/model.h"
#include "unsloth/objective/references.h"

namespace unsloth::train {

/// The log-probabilities of the rows' sequences under the model as it is, with the adapters that `scope` says. Every
/// rank scores its batches, and all get all values. Interrupted when a rank was sent a signal.
objective::References score_references(model::Model& model, at::Device device, const data::EvalLoader& rows,
                                       model::PolicyScope scope, comm::Group* group);

}  // namespace unsloth::train
