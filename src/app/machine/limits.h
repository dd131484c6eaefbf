// The CPUs that this process may use, after affinity and control groups.
#pragma once

#include "app/machine/cpu_list.h"
#include "unsloth/core/cgroup.h"

namespace unsloth::app {

/// The CPUs that this process may run on; empty when the kernel does not say.
CpuList allowed_cpus();

/// CPUs that can be busy at once: allowed ones, no more than the quota, at least 1.
int usable_cpus();

}  // namespace unsloth::app
