#include <filesystem>

#include "app/doctor/findings.h"
#include "app/machine/gpus.h"
#include "app/machine/limits.h"
#include "app/machine/nvml.h"
#include "unsloth/core/error.h"
#include "unsloth/core/text.h"

namespace unsloth::app {
namespace fs = std::filesystem;
namespace {

constexpr int needed_cuda = 13000;  // of the LibTorch that the build fetches

std::string cuda_text(int cuda) {
    return cat(cuda / 1000, ".", cuda % 1000 / 10);
}

std::vector<Finding> without_nvml(const NvmlReport& report, const config::Config& config) {
    const GpuInventory inventory = find_gpus();
    const bool wanted = config.hardware.device.starts_with("cuda");
    if (!inventory.gpus.empty())
        return {{Verdict::broken, "driver",
                 cat(inventory.gpus.size(), " GPU(s) through ", inventory.found_through, ", but ",
                     report.problem.empty() ? "no libnvidia-ml.so.1" : report.problem),
                 "The driver's libraries are missing or of another version than its kernel module: reinstall the "
                 "driver, reboot, or start the container with --gpus all."}};
    if (!report.library.empty() || !report.problem.empty())
        return {{Verdict::broken, "driver", report.problem.empty() ? "installed, and shows no GPU" : report.problem,
                 "nvidia-smi should list the GPUs; see its message."}};
    return {{wanted ? Verdict::broken : Verdict::ok, "driver", "none: training runs on the CPU",
             wanted ? "hardware.device asks for a GPU: install the driver (580 or newer)." : ""}};
}

Finding driver(const NvmlReport& report) {
    Finding finding{Verdict::ok, "driver",
                    cat(report.driver, ", supports CUDA ", report.cuda == 0 ? "?" : cuda_text(report.cuda), " (",
                        report.library, ")"),
                    ""};
    if (report.cuda != 0 && report.cuda < needed_cuda) {
        finding.verdict = Verdict::broken;
        finding.advice = cat("This build needs CUDA ", cuda_text(needed_cuda), ", driver 580 or newer.");
    }
    return finding;
}

std::string node_of(const std::string& pci) {
    const fs::path device = fs::path("/sys/bus/pci/devices") / pci;
    const auto node = read_kernel_text(device / "numa_node"), cpus = read_kernel_text(device / "local_cpulist");
    if (!node || node->starts_with('-')) return "no NUMA node";
    return cat("NUMA node ", *node, cpus ? cat(", CPUs ", *cpus) : "");
}

Finding gpu(const NvmlGpu& gpu, std::size_t index) {
    Finding finding{Verdict::ok, cat("GPU ", index),
                    cat(gpu.name, ", ", human_size(gpu.memory_total), ", ", human_size(gpu.memory_used), " in use, ",
                        gpu.pci, ", ", node_of(gpu.pci), gpu.mig ? ", MIG" : ""),
                    ""};
    constexpr double busy = 0.1;
    if (static_cast<double>(gpu.memory_used) > busy * static_cast<double>(gpu.memory_total)) {
        finding.verdict = Verdict::warn;
        finding.advice = "Somebody else uses it: nvidia-smi lists the processes; CUDA_VISIBLE_DEVICES chooses others.";
    } else if (gpu.mig) {
        finding.verdict = Verdict::warn;
        finding.advice =
            "A process sees one MIG instance, and instances of one card cannot train together through NCCL.";
    }
    return finding;
}

Finding connections(const NvmlReport& report) {
    Finding finding{Verdict::ok, "between GPUs", "", ""};
    for (std::size_t i = 0; i < report.links.size(); ++i) {
        finding.value += cat(i == 0 ? "" : "\n", "GPU ", i, ":");
        for (const std::string& link : report.links[i]) finding.value += cat(" ", link);
    }
    for (const auto& row : report.links)
        for (const std::string& link : row)
            if (link == "SYS") {
                finding.verdict = Verdict::warn;
                finding.advice =
                    "SYS: some pairs meet only across CPU sockets; all-reduce is slow there. Prefer GPUs of one socket "
                    "(CUDA_VISIBLE_DEVICES).";
            }
    return finding;
}

Finding visible(const NvmlReport& report) {
    const auto seen = visible_gpus(gpus_of(report));
    Finding finding{Verdict::ok, "visible to a run", cat(seen.size(), " of ", report.gpus.size()), ""};
    if (seen.empty()) {
        finding.verdict = Verdict::warn;
        finding.advice = "CUDA_VISIBLE_DEVICES hides all: training would run on the CPU.";
    }
    return finding;
}

}  // namespace

std::vector<Finding> check_gpus(const config::Config& config) {
    const NvmlReport report = ask_nvml(true);
    if (report.gpus.empty()) return without_nvml(report, config);
    std::vector<Finding> findings{driver(report)};
    for (std::size_t i = 0; i < report.gpus.size(); ++i) findings.push_back(gpu(report.gpus[i], i));
    if (report.gpus.size() > 1) findings.push_back(connections(report));
    findings.push_back(visible(report));
    return findings;
}

}  // namespace unsloth::app
