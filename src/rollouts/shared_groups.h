// What data-parallel ranks tell each other of the groups that each of them sampled and scored.
#pragma once

#include "unsloth/comm/group.h"
#include "unsloth/reward/rewards.h"
#include "unsloth/rollouts/group.h"

namespace unsloth::rollouts {

/// The stop signal that some rank was sent; 0: none. `group` nullptr: this one alone.
int agreed_signal(comm::Group* group, at::Device device, const std::string& what);

/// Completions that other ranks sampled are empty here, and full there: all get all. `longest`: most tokens of one.
void share_completions(ScoredGroups& batch, comm::Group* group, at::Device device, int64_t longest);

/// Puts this rank's scores of `groups` (places in the batch) into the batch, and the others' of theirs.
void share_scores(ScoredGroups& batch, const reward::Scored& own, const std::vector<std::size_t>& groups,
                  std::size_t functions, comm::Group* group);

}  // namespace unsloth::rollouts
