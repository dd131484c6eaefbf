// What this process may use of the machine: its CPUs and its memory, after affinity and control groups.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "app/machine/cpu_list.h"

namespace unsloth::app {

/// The CPUs that this process may run on; empty when the kernel does not say.
CpuList allowed_cpus();

/// A text of /proc or /sys without its last line end; nullopt when it cannot be read. (Such files have no size, so they
/// cannot be mapped.)
std::optional<std::string> read_kernel_text(const std::filesystem::path& path);

struct CgroupLimits {
    std::optional<double> cpus;          ///< quota in CPUs; nullopt: none
    std::optional<int64_t> memory;       ///< bytes; nullopt: none
    std::optional<int64_t> memory_used;  ///< bytes of the group with that limit
};

/// The tightest limits of this process' control group and of those above it, version 2 or 1. `root` stands before /proc
/// and /sys.
CgroupLimits cgroup_limits(const std::filesystem::path& root = "/");

/// CPUs that can be busy at once: allowed ones, no more than the quota, at least 1.
int usable_cpus();

}  // namespace unsloth::app
