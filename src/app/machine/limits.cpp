#include "app/machine/limits.h"

#include <sched.h>

#include <algorithm>
#include <cmath>

namespace unsloth::app {

CpuList allowed_cpus() {
    for (int size = 1024; size <= 1 << 16; size *= 2) {  // the kernel refuses a set that is smaller than its own
        cpu_set_t* const set = CPU_ALLOC(size);
        if (set == nullptr) return {};
        CpuList cpus;
        const std::size_t bytes = CPU_ALLOC_SIZE(size);
        const bool known = ::sched_getaffinity(0, bytes, set) == 0;
        for (int cpu = 0; known && cpu < size; ++cpu)
            if (CPU_ISSET_S(cpu, bytes, set)) cpus.push_back(cpu);
        CPU_FREE(set);
        if (known) return cpus;
    }
    return {};
}

int usable_cpus() {
    const int allowed = std::max<int>(1, static_cast<int>(allowed_cpus().size()));
    const auto quota = cgroup_limits().cpus;
    return quota ? std::clamp(static_cast<int>(std::ceil(*quota)), 1, allowed) : allowed;
}

}  // namespace unsloth::app
