// Pages of host memory, locked for a GPU.
#pragma once

#include <cstddef>
#include <set>
#include <string>

#include "unsloth/core/error.h"
#include "unsloth/memory/plan.h"

namespace unsloth::memory {

/// Makes the pages of fresh memory: huge ones where the system has them, of these NUMA nodes if some are named. Each
/// page is made by the thread that writes it first: several threads, because one makes about 4 GB a second; without a
/// node pages would come from wherever those threads run. `threads`: at most; 0: as many as there are.
void make_pages(void* data, std::size_t bytes, const std::set<int>& nodes, int threads = 0);

/// The NUMA nodes that a device is attached to; empty where there are none or the system reports none.
std::set<int> nodes_of(at::Device device);

/// Limits that may be why `bytes` of host memory cannot be had, for a message.
std::string limits_text(int64_t bytes);

/// `reason`: what the system says. The plan is what the bytes are for.
Error host_memory_failure(const Plan& plan, int64_t bytes, const std::string& reason);

/// uint8 [bytes] that `device` can read and write: pinned, near it, for a CUDA device, plain for the CPU. runtime
/// Error with the plan's table where the system gives none.
at::Tensor host_memory(const Plan& plan, int64_t bytes, at::Device device);

}  // namespace unsloth::memory
