// Values that no rank has all of, brought to the one that writes them, a piece of a parameter at a time.
#pragma once

#include "unsloth/comm/communicator.h"
#include "unsloth/train/checkpoint.h"

namespace unsloth::train {

/// Calls write(read) on the first of the ranks, where read(p) gives the values of one of all parameters; the others
/// send it theirs until it returns. `part`: what this rank has. All ranks of the run together, with nothing in flight.
/// What `write` throws is thrown on the first.
void with_gathered_values(comm::Communicator& ranks, const weights::ParameterTable& all, const StatePart& part,
                          const weights::Parameters& parameters, at::Device device,
                          const std::function<void(const ReadValues&)>& write);

}  // namespace unsloth::train
