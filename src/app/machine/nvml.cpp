#include "app/machine/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>

#include "unsloth/core/error.h"
#include "unsloth/core/nvml.h"

namespace unsloth::app {
namespace {

using nvml::Calls, nvml::Device, nvml::Result, nvml::success;

constexpr int name_bytes = 96, uuid_bytes = 96, driver_bytes = 80;
constexpr int p2p_over_nvlink = 2, p2p_ok = 0;

std::string text_of(Result (*ask)(char*, unsigned), int bytes) {
    std::string text(static_cast<std::size_t>(bytes), '\0');
    if (ask == nullptr || ask(text.data(), static_cast<unsigned>(bytes)) != success) return "";
    return text.c_str();
}

std::string text_of(Result (*ask)(Device, char*, unsigned), Device device, int bytes) {
    std::string text(static_cast<std::size_t>(bytes), '\0');
    if (ask == nullptr || ask(device, text.data(), static_cast<unsigned>(bytes)) != success) return "";
    return text.c_str();
}

/// What `ask` writes; 0 where it is absent or fails.
template <class Number, class Function, class... Arguments>
Number number_of(Function* ask, Device device, Arguments... arguments) {
    Number number = 0;
    return ask != nullptr && ask(device, arguments..., &number) == success ? number : 0;
}

void describe_health(const Calls& calls, Device device, NvmlGpu& gpu) {
    constexpr int of_the_chip = 0, of_the_sms = 1, uncorrected = 1, since_load = 0, ever = 1;
    gpu.throttle = number_of<unsigned long long>(calls.throttle, device);
    gpu.celsius = static_cast<int>(number_of<unsigned>(calls.temperature, device, of_the_chip));
    gpu.watts = static_cast<int>(number_of<unsigned>(calls.power, device) / 1000);
    gpu.watts_limit = static_cast<int>(number_of<unsigned>(calls.power_limit, device) / 1000);
    gpu.watts_usual = static_cast<int>(number_of<unsigned>(calls.usual_power_limit, device) / 1000);
    gpu.clock_mhz = static_cast<int>(number_of<unsigned>(calls.clock, device, of_the_sms));
    gpu.clock_limit_mhz = static_cast<int>(number_of<unsigned>(calls.clock_limit, device, of_the_sms));
    unsigned mode = 0, pending = 0;
    gpu.ecc = calls.ecc_mode != nullptr && calls.ecc_mode(device, &mode, &pending) == success && mode == 1;
    const auto errors = [&](int kind) {
        return static_cast<int64_t>(number_of<unsigned long long>(calls.ecc_errors, device, uncorrected, kind));
    };
    gpu.ecc_uncorrected = errors(since_load);
    gpu.ecc_uncorrected_ever = errors(ever);
    unsigned corrected = 0, bad = 0, waiting = 0, failed = 0;
    if (calls.remapped == nullptr || calls.remapped(device, &corrected, &bad, &waiting, &failed) != success) return;
    gpu.rows_remapped = bad;
    gpu.remap_pending = waiting != 0;
    gpu.remap_failed = failed != 0;
}

/// nullopt where the device cannot be asked (a container may forbid it).
std::optional<NvmlGpu> describe(const Calls& calls, Device device) {
    nvml::PciInfo pci{};
    if (calls.pci(device, &pci) != success) return std::nullopt;
    NvmlGpu gpu;
    gpu.pci = pci_name(pci.domain, pci.bus, pci.device);
    gpu.name = text_of(calls.name, device, name_bytes);
    gpu.uuid = text_of(calls.uuid, device, uuid_bytes);
    nvml::MemoryInfo memory{};
    if (calls.memory != nullptr && calls.memory(device, &memory) == success) {
        gpu.memory_total = static_cast<int64_t>(memory.total);
        gpu.memory_used = static_cast<int64_t>(memory.used);
    }
    unsigned mode = 0, pending = 0;
    gpu.mig = calls.mig != nullptr && calls.mig(device, &mode, &pending) == success && mode == 1;
    describe_health(calls, device, gpu);
    return gpu;
}

std::string link_between(const Calls& calls, Device a, Device b) {
    int status = -1, level = -1;
    if (calls.p2p != nullptr && calls.p2p(a, b, p2p_over_nvlink, &status) == success && status == p2p_ok)
        return "NVLink";
    if (calls.ancestor == nullptr || calls.ancestor(a, b, &level) != success) return "?";
    switch (level) {
        case 0:
            return "SELF";  // two chips of one board
        case 10:
            return "PIX";
        case 20:
            return "PXB";
        case 30:
            return "PHB";
        case 40:
            return "NODE";
        case 50:
            return "SYS";
        default:
            return "?";
    }
}

void ask_gpus(const Calls& calls, bool with_links, NvmlReport& report) {
    report.driver = text_of(calls.driver, driver_bytes);
    if (calls.cuda == nullptr || calls.cuda(&report.cuda) != success) report.cuda = 0;
    unsigned count = 0;
    if (const Result result = calls.count(&count); result != success) {
        report.problem = cat("the driver's library does not count its GPUs (error ", result, ")");
        return;
    }
    std::vector<Device> devices;
    for (unsigned i = 0; i < count; ++i) {
        Device device = nullptr;
        if (calls.handle(i, &device) != success) continue;  // not this container's
        if (auto gpu = describe(calls, device)) {
            devices.push_back(device);
            report.gpus.push_back(std::move(*gpu));
        }
    }
    if (!with_links) return;
    for (const Device a : devices) {
        auto& row = report.links.emplace_back();
        for (const Device b : devices) row.push_back(a == b ? "X" : link_between(calls, a, b));
    }
}

}  // namespace

std::string pci_name(unsigned domain, unsigned bus, unsigned device) {
    char text[32];
    std::snprintf(text, sizeof text, "%04x:%02x:%02x.0", domain, bus, device);
    return text;
}

NvmlReport ask_nvml(bool with_links) {
    NvmlReport report;
    nvml::Library library;
    const Calls& calls = library.calls;
    report.problem = library.problem();
    if (!library.opened()) return report;
    report.library = nvml::library_name;
    if (!library.starts() || calls.count == nullptr || calls.handle == nullptr || calls.pci == nullptr) {
        report.problem = "the driver's library libnvidia-ml.so.1 lacks entries that every driver since 2020 has";
        return report;
    }
    if (Dl_info info{}; ::dladdr(reinterpret_cast<void*>(calls.init), &info) != 0 && info.dli_fname != nullptr)
        report.library = info.dli_fname;
    if (const Result result = library.start(); result == success)
        ask_gpus(calls, with_links, report);
    else
        report.problem = cat("the driver does not answer (",
                             calls.error_text != nullptr ? calls.error_text(result) : "NVML error", ", ", result, ")");
    return report;
}

}  // namespace unsloth::app
