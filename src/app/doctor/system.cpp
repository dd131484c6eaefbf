#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <sstream>

#include "app/doctor/findings.h"
#include "app/machine/limits.h"
#include "unsloth/core/error.h"
#include "unsloth/core/version.h"

namespace unsloth::app {
namespace fs = std::filesystem;
namespace {

constexpr int64_t gib = int64_t{1} << 30;

/// The value of "KEY<separator>value" in a text of such lines, without quotes and blanks around it.
std::string value_of(const std::string& text, const std::string& key, char separator) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        const std::size_t at = line.find(separator);
        if (at == std::string::npos) continue;
        std::string name = line.substr(0, at);
        name.erase(name.find_last_not_of(" \t") + 1);
        if (name != key) continue;
        const std::size_t first = line.find_first_not_of(" \t\"", at + 1);
        return first == std::string::npos ? "" : line.substr(first, line.find_last_not_of(" \t\"") - first + 1);
    }
    return "";
}

Finding program() {
    return {Verdict::ok, "unsloth-train",
            cat(version, ", compiler ", __VERSION__
#ifdef __SANITIZE_ADDRESS__
                ,
                ", with sanitizers"
#endif
                ),
            ""};
}

Finding operating_system() {
    utsname name{};
    ::uname(&name);
    std::string system = value_of(read_kernel_text("/etc/os-release").value_or(""), "PRETTY_NAME", '=');
    if (system.empty()) system = name.sysname;
    std::error_code ignored;
    const bool container = fs::exists("/.dockerenv", ignored) || fs::exists("/run/.containerenv", ignored);
    return {Verdict::ok, "operating system",
            cat(system, ", kernel ", name.release, ", ", name.machine, container ? ", in a container" : ""), ""};
}

Finding cpus() {
    const std::string info = read_kernel_text("/proc/cpuinfo").value_or("");
    const std::string model = value_of(info, "model name", ':');
    const std::string flags = " " + value_of(info, "flags", ':') + " ";
    const CpuList allowed = allowed_cpus();
    const CgroupLimits limits = cgroup_limits();
    Finding finding{
        Verdict::ok, "CPUs",
        cat(::sysconf(_SC_NPROCESSORS_ONLN), " online, ", allowed.size(), " allowed (", format_cpu_list(allowed), ")"),
        ""};
    if (limits.cpus) finding.value += cat(", control group's quota ", *limits.cpus);
    if (!model.empty()) finding.value += cat("\n", model);
    const auto nodes = parse_cpu_list(read_kernel_text("/sys/devices/system/node/online").value_or(""));
    if (nodes && nodes->size() > 1) finding.value += cat("\n", nodes->size(), " NUMA nodes");
    for (const char* feature : {"avx2", "avx512f", "avx512_bf16", "amx_bf16"})
        if (flags.find(cat(" ", feature, " ")) != std::string::npos)
            finding.value += cat(feature == std::string("avx2") ? "\n" : " ", feature);
    if (usable_cpus() < 2) {
        finding.verdict = Verdict::warn;
        finding.advice =
            "One CPU prepares data, launches kernels and serves the ranks' store: GPUs will wait for it. Give the "
            "container more.";
    }
    return finding;
}

Finding memory() {
    const std::string info = read_kernel_text("/proc/meminfo").value_or("");
    const auto bytes = [&](const char* key) { return std::atoll(value_of(info, key, ':').c_str()) * 1024; };
    int64_t total = bytes("MemTotal"), available = bytes("MemAvailable");
    Finding finding{
        Verdict::ok, "memory",
        cat(human_size(total), ", ", human_size(available), " available, swap ", human_size(bytes("SwapTotal"))), ""};
    if (const CgroupLimits limits = cgroup_limits(); limits.memory) {
        finding.value += cat(", control group's limit ", human_size(*limits.memory));
        if (limits.memory_used) finding.value += cat(" (", human_size(*limits.memory_used), " used, caches included)");
        available = std::min(available, *limits.memory);
    }
    constexpr int64_t least = 4 * gib;
    if (available < least) {
        finding.verdict = Verdict::warn;
        finding.advice =
            cat("Less than ", human_size(least), ": loading a model may be ended by the kernel (signal 9).");
    }
    return finding;
}

/// The nearest folder that exists: where a folder that is not there yet would be made.
fs::path existing_part(fs::path path) {
    std::error_code failure;
    path = fs::absolute(path, failure).lexically_normal();
    while (!fs::exists(path, failure) && path.has_relative_path()) path = path.parent_path();
    return path;
}

Finding disk(const std::string& name, const std::string& folder) {
    const fs::path place = existing_part(folder.empty() ? fs::current_path() : fs::path(folder));
    struct statvfs space{};
    if (::statvfs(place.c_str(), &space) != 0)
        return {Verdict::broken, name, cat(folder, ": ", std::strerror(errno)), "Choose another folder."};
    const auto unit = static_cast<int64_t>(space.f_frsize);
    const int64_t available = static_cast<int64_t>(space.f_bavail) * unit;
    Finding finding{Verdict::ok, name,
                    cat(place.string(), ": ", human_size(available), " free of ",
                        human_size(static_cast<int64_t>(space.f_blocks) * unit)),
                    ""};
    if (::access(place.c_str(), W_OK | X_OK) != 0) {
        finding.verdict = Verdict::broken;
        finding.advice = "This user cannot write there: choose another folder, or change its owner.";
    } else if (available < gib || (space.f_files > 0 && space.f_favail == 0)) {
        finding.verdict = Verdict::warn;
        finding.advice =
            "Little room: a checkpoint holds adapters, optimizer states and tokenizer. (No inodes left counts as no "
            "room.)";
    }
    return finding;
}

}  // namespace

std::string human_size(int64_t bytes) {
    constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double size = static_cast<double>(bytes);
    std::size_t unit = 0;
    while (size >= 1024 && unit + 1 < std::size(units)) size /= 1024, ++unit;
    char text[32];
    std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", size, units[unit]);
    return text;
}

std::vector<Finding> check_system(const config::Config& config) {
    std::vector<Finding> findings{program(), operating_system(), cpus(), memory()};
    findings.push_back(disk("output_dir", config.training.output_dir));
    findings.push_back(disk("working directory", ""));
    findings.back().verdict = std::min(findings.back().verdict, Verdict::warn);  // a run need not write here
    findings.push_back(disk("temporary files", fs::temp_directory_path()));
    return findings;
}

}  // namespace unsloth::app
