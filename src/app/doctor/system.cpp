#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <sstream>

#include "app/doctor/findings.h"
#include "app/machine/limits.h"
#include "unsloth/core/error.h"
#include "unsloth/core/text.h"
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
            "One CPU prepares data, launches kernels and runs the ranks' store: GPUs will wait for it. Give the "
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

/// Of a file without a name in the folder: flushed to the disk, and read past the system's cache.
Finding disk_rate(const fs::path& folder) {
    constexpr std::size_t part = std::size_t{4} << 20;
    constexpr int parts = 32;
    constexpr std::chrono::seconds patience(2);
    using Clock = std::chrono::steady_clock;
    const std::string name = (folder / cat(".unsloth-doctor-", ::getpid())).string();
    const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return {Verdict::warn, "its rate", std::strerror(errno), "A run would have to write there."};
    ::unlink(name.c_str());
    std::vector<char> bytes(part);
    std::minstd_rand numbers;  // what can be compressed says nothing
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(numbers() >> 8); });
    std::size_t written = 0, read = 0;
    int problem = 0;
    const auto begin = Clock::now();
    for (int i = 0; i < parts && problem == 0 && Clock::now() - begin < patience; ++i) {
        const ssize_t done = ::write(fd, bytes.data(), part);
        if (done != static_cast<ssize_t>(part) || ::fdatasync(fd) != 0) problem = done < 0 ? errno : ENOSPC;
        written += part;
    }
    const auto middle = Clock::now();
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::lseek(fd, 0, SEEK_SET);
    const auto again = Clock::now();
    while (problem == 0 && read < written && Clock::now() - again < patience) {
        const ssize_t done = ::read(fd, bytes.data(), part);
        if (done <= 0) problem = EIO;
        read += static_cast<std::size_t>(std::max<ssize_t>(done, 0));
    }
    const auto end = Clock::now();
    ::close(fd);
    if (problem != 0)
        return {Verdict::warn, "its rate", std::strerror(problem), "128 MiB could not be written and read there."};
    const auto rate = [](std::size_t count, Clock::duration time) {
        return static_cast<double>(count) / std::max(std::chrono::duration<double>(time).count(), 1e-6);
    };
    return judge_disk_rate(rate(written, middle - begin), rate(read, end - again));
}

}  // namespace

Finding judge_disk_rate(double write, double read) {
    char text[96];
    std::snprintf(text, sizeof text, "writes %.0f MB/s, reads %.0f MB/s", write / 1e6, read / 1e6);
    Finding finding{Verdict::ok, "its rate", text, ""};
    constexpr double slow = 50e6;
    if (write < slow || read < slow) {
        finding.verdict = Verdict::warn;
        finding.advice =
            "Slow: a checkpoint of 1 GB takes longer than 20 s, and a run that is stopped may not finish its last one. "
            "Choose a local disk, or fewer checkpoints (save_steps).";
    }
    return finding;
}

std::vector<Finding> check_system(const config::Config& config) {
    std::vector<Finding> findings{program(), operating_system(), cpus(), memory()};
    findings.push_back(disk("output_dir", config.training.output_dir));
    if (findings.back().verdict == Verdict::ok)
        findings.push_back(disk_rate(existing_part(config.training.output_dir)));
    findings.push_back(disk("working directory", ""));
    findings.back().verdict = std::min(findings.back().verdict, Verdict::warn);  // a run need not write here
    findings.push_back(disk("temporary files", fs::temp_directory_path()));
    return findings;
}

}  // namespace unsloth::app
