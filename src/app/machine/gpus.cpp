#include "app/machine/gpus.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string_view>

#include "app/machine/limits.h"
#include "app/machine/nvml.h"
#include "unsloth/core/text.h"
#include "unsloth/core/whole_number.h"

namespace unsloth::app {
namespace fs = std::filesystem;
namespace {

std::vector<std::string> entries_of(const fs::path& folder) {
    std::vector<std::string> names;
    std::error_code failure;
    for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end; entry.increment(failure))
        names.push_back(entry->path().filename());
    std::sort(names.begin(), names.end());
    return names;
}

std::vector<Gpu> gpus_of_proc(const fs::path& folder) {
    std::vector<Gpu> gpus;
    for (const std::string& name : entries_of(folder)) {
        Gpu gpu{name, "", ""};
        std::istringstream lines(read_kernel_text(folder / name / "information").value_or(""));
        for (std::string line; std::getline(lines, line);) {  // "Model: \t\t NVIDIA H200"
            const std::size_t colon = line.find(':');
            if (colon == std::string::npos) continue;
            const std::string key = trimmed(std::string_view(line).substr(0, colon)),
                              value = trimmed(std::string_view(line).substr(colon + 1));
            if (key == "Model") gpu.name = value;
            if (key == "GPU UUID") gpu.uuid = value;
        }
        gpus.push_back(std::move(gpu));
    }
    return gpus;
}

/// Nodes of other things are named nvidiactl, nvidia-uvm, …
std::size_t count_device_nodes(const fs::path& folder) {
    std::size_t count = 0;
    constexpr std::string_view stem = "nvidia";
    for (const std::string& name : entries_of(folder))
        if (name.starts_with(stem) && whole_number(std::string_view(name).substr(stem.size()))) ++count;
    return count;
}

std::optional<Gpu> gpu_called(const std::vector<Gpu>& all, const std::string& entry) {
    if (entry.starts_with("MIG-")) return Gpu{};
    if (const auto number = whole_number(entry)) {
        const auto index = static_cast<std::size_t>(*number);
        return index < all.size() ? std::optional(all[index]) : std::nullopt;
    }
    if (!entry.starts_with("GPU-")) return std::nullopt;
    for (const Gpu& gpu : all)
        if (gpu.uuid.starts_with(entry)) return gpu;
    return std::nullopt;
}

}  // namespace

std::vector<Gpu> gpus_of(const NvmlReport& report) {
    std::vector<Gpu> gpus;
    for (const NvmlGpu& gpu : report.gpus) gpus.push_back({gpu.pci, gpu.name, gpu.uuid});
    return gpus;
}

GpuInventory find_gpus(const fs::path& root) {
    GpuInventory found;
    if (root == "/") found.gpus = gpus_of(ask_nvml());
    if (!found.gpus.empty()) return found.found_through = "NVML", found;
    const char* const proc = "proc/driver/nvidia/gpus";
    found.gpus = gpus_of_proc(root / proc);
    if (!found.gpus.empty()) return found.found_through = std::string("/") + proc, found;
    found.gpus.resize(count_device_nodes(root / "dev"));
    if (!found.gpus.empty()) found.found_through = "/dev/nvidia*";
    return found;
}

std::vector<Gpu> visible_gpus(const std::vector<Gpu>& all, const std::optional<std::string>& visible,
                              const std::optional<std::string>& order) {
    const bool equal = std::all_of(all.begin(), all.end(),
                                   [&](const Gpu& gpu) { return !gpu.name.empty() && gpu.name == all.front().name; });
    std::vector<Gpu> numbered = all;
    if (!equal && order != "PCI_BUS_ID")
        for (Gpu& gpu : numbered) gpu.pci.clear();
    if (!visible) return numbered;
    std::vector<Gpu> chosen;
    for (std::size_t begin = 0; begin <= visible->size();) {
        const std::size_t comma = std::min(visible->find(',', begin), visible->size());
        const std::string entry = trimmed(std::string_view(*visible).substr(begin, comma - begin));
        const auto gpu = gpu_called(entry.starts_with("GPU-") ? all : numbered, entry);
        if (!gpu) break;
        chosen.push_back(*gpu);
        begin = comma + 1;
    }
    return chosen;
}

std::vector<Gpu> visible_gpus(const std::vector<Gpu>& all) {
    const auto value = [](const char* name) {
        const char* const text = std::getenv(name);
        return text == nullptr ? std::nullopt : std::optional<std::string>(text);
    };
    return visible_gpus(all, value("CUDA_VISIBLE_DEVICES"), value("CUDA_DEVICE_ORDER"));
}

}  // namespace unsloth::app
