// What must be equal on all ranks.
#pragma once

#include <cstdint>
#include <string>

#include "unsloth/comm/group.h"
#include "unsloth/formats/checkpoint.h"

namespace unsloth::placement {

/// Of a checkpoint's names, shapes and, of each tensor, some values from its beginning, middle and end: reading all
/// would take as long as loading it.
std::string sample_hash(const formats::Checkpoint& checkpoint);

/// Of a tensor's values, wherever they are, a few MiB at a time.
std::string values_hash(const at::Tensor& values);

/// Called by all ranks with the hash of their trained values after that many steps: runtime Error, on all of them, that
/// names who differs among the ranks of a stage; each of the `stages` of a pipeline has values of its own.
void require_equal_hashes(comm::Group& group, const std::string& own, int64_t steps, int stages = 1);

}  // namespace unsloth::placement
