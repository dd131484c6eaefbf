// The pass over a run's rows that its preferences are measured against.
#pragma once

#include "unsloth/comm/group.h"
#include "unsloth/data/cache.h"
#include "unsloth/data/loader.h"
#include "unsloth/model/model.h"
#include "unsloth/objective/references.h"

namespace unsloth::train {

/// Where a reference's values are kept from run to run, by a hash of all that they depend on but the rows.
struct ReferenceCache {
    data::CacheOptions files;  ///< no folder: nothing is kept
    std::string key;
};

/// The log-probabilities of the rows' sequences under the model as it is, with the adapters that `scope` says: from the
/// cache where rank 0 finds them, else every rank scores its batches; all get all values. Interrupted when a rank was
/// sent a signal.
objective::References score_references(model::Model& model, at::Device device, const data::EvalLoader& rows,
                                       model::PolicyScope scope, comm::Group* group, ReferenceCache cache);

}  // namespace unsloth::train
