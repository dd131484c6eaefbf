#include "unsloth/core/cgroup.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

namespace unsloth {
namespace fs = std::filesystem;
namespace {

std::optional<int64_t> integer(const std::optional<std::string>& text) {
    if (!text) return std::nullopt;
    std::istringstream words(*text);
    int64_t value = 0;
    return words >> value ? std::optional(value) : std::nullopt;  // "max" is none
}

/// The path of this process' group in the hierarchy of a controller (version 1), or in the only one (version 2, "").
std::optional<std::string> group_path(const fs::path& root, const std::string& controller) {
    std::istringstream lines(read_kernel_text(root / "proc/self/cgroup").value_or(""));
    for (std::string line; std::getline(lines, line);) {  // "4:cpu,cpuacct:/path" or "0::/path"
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
        if (controller.empty() ? names == ",," : names.find("," + controller + ",") != std::string::npos)
            return line.substr(second + 1);
    }
    return std::nullopt;
}

/// The folders of the group and of those above it. In a container the path may be the host's: then only the mount's
/// root is there.
std::vector<fs::path> group_folders(const fs::path& mount, const std::string& path) {
    std::vector<fs::path> folders;
    std::error_code ignored;
    for (fs::path group = fs::path(path).relative_path(); !group.empty(); group = group.parent_path())
        if (fs::exists(mount / group, ignored)) folders.push_back(mount / group);
    folders.push_back(mount);
    return folders;
}

void tighten_cpus(CgroupLimits& limits, double quota, double period) {
    if (quota <= 0 || period <= 0) return;
    limits.cpus = std::min(limits.cpus.value_or(quota / period), quota / period);
}

void tighten_memory(CgroupLimits& limits, std::optional<int64_t> bytes, const fs::path& used) {
    constexpr int64_t unlimited = int64_t{1} << 60;  // version 1 writes its largest number for none
    if (!bytes || *bytes >= unlimited || (limits.memory && *limits.memory <= *bytes)) return;
    limits.memory = bytes;
    limits.memory_used = integer(read_kernel_text(used));
    limits.file_cache = 0;
    std::istringstream words(read_kernel_text(used.parent_path() / "memory.stat").value_or(""));
    std::string key;
    for (int64_t value = 0; words >> key >> value;)
        if (key == "inactive_file" || key == "active_file") limits.file_cache += value;
}

}  // namespace

std::optional<std::string> read_kernel_text(const fs::path& path) {
    std::ifstream file(path);
    if (!file) return std::nullopt;
    std::ostringstream text;
    text << file.rdbuf();
    if (!file) return std::nullopt;
    std::string content = std::move(text).str();
    if (content.ends_with('\n')) content.pop_back();
    return content;
}

CgroupLimits cgroup_limits(const fs::path& root) {
    CgroupLimits limits;
    const fs::path mount = root / "sys/fs/cgroup";
    if (const auto path = group_path(root, "")) {
        for (const fs::path& group : group_folders(mount, *path)) {
            double quota = 0, period = 0;
            std::istringstream words(
                read_kernel_text(group / "cpu.max").value_or(""));  // "150000 100000" or "max 100000"
            if (words >> quota >> period) tighten_cpus(limits, quota, period);
            tighten_memory(limits, integer(read_kernel_text(group / "memory.max")), group / "memory.current");
        }
    }
    if (const auto path = group_path(root, "cpu"))
        for (const fs::path& group : group_folders(mount / "cpu", *path))
            tighten_cpus(limits, static_cast<double>(integer(read_kernel_text(group / "cpu.cfs_quota_us")).value_or(0)),
                         static_cast<double>(integer(read_kernel_text(group / "cpu.cfs_period_us")).value_or(0)));
    if (const auto path = group_path(root, "memory"))
        for (const fs::path& group : group_folders(mount / "memory", *path))
            tighten_memory(limits, integer(read_kernel_text(group / "memory.limit_in_bytes")),
                           group / "memory.usage_in_bytes");
    return limits;
}

int64_t available_memory(const fs::path& root) {
    int64_t bytes = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
    std::istringstream lines(read_kernel_text(root / "proc/meminfo").value_or(""));
    for (std::string line; std::getline(lines, line);)
        if (line.starts_with("MemAvailable:")) bytes = 1024 * std::atoll(line.c_str() + sizeof "MemAvailable:" - 1);
    if (const CgroupLimits limits = cgroup_limits(root); limits.memory)
        bytes = std::min(bytes, *limits.memory - limits.memory_used.value_or(0) + limits.file_cache);
    return std::max<int64_t>(0, bytes);
}

}  // namespace unsloth
