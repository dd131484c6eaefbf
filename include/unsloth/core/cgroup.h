// What control groups leave of the machine to this process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace unsloth {

/// A text of /proc or /sys without its last line end; nullopt when it cannot be read. (Such files have no size, so they
/// cannot be mapped.)
std::optional<std::string> read_kernel_text(const std::filesystem::path& path);

struct CgroupLimits {
    std::optional<double> cpus;          ///< quota in CPUs; nullopt: none
    std::optional<int64_t> memory;       ///< bytes; nullopt: none
    std::optional<int64_t> memory_used;  ///< bytes of the group with that limit, caches of files included
    int64_t file_cache = 0;              ///< what of that the kernel gives back when others need it
};

/// The tightest limits of this process' control group and of those above it, version 2 or 1. `root` is the parent of
/// /proc and /sys.
CgroupLimits cgroup_limits(const std::filesystem::path& root = "/");

/// Bytes that a process can take without swapping: MemAvailable, or what the control group leaves where that is less.
int64_t available_memory(const std::filesystem::path& root = "/");

}  // namespace unsloth
