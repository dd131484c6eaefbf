#include "app/machine/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>

#include "unsloth/core/error.h"

namespace unsloth::app {
namespace {

// What NVML's reference says of the few calls used here (nvml.h is no part of the CUDA wheels that the build fetches).
using Result = int;
using Device = void*;
constexpr Result success = 0;
constexpr int name_bytes = 96, uuid_bytes = 96, driver_bytes = 80;
constexpr int p2p_over_nvlink = 2, p2p_ok = 0;
struct PciInfo {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
struct MemoryInfo {
    unsigned long long total, free, used;
};

/// Entries that are absent in an old driver stay null; only those that everything rests on must be there.
struct Entries {
    Result (*init)();
    Result (*shutdown)();
    const char* (*error_text)(Result);
    Result (*driver)(char*, unsigned);
    Result (*cuda)(int*);
    Result (*count)(unsigned*);
    Result (*handle)(unsigned, Device*);
    Result (*pci)(Device, PciInfo*);
    Result (*name)(Device, char*, unsigned);
    Result (*uuid)(Device, char*, unsigned);
    Result (*memory)(Device, MemoryInfo*);
    Result (*mig)(Device, unsigned*, unsigned*);
    Result (*ancestor)(Device, Device, int*);
    Result (*p2p)(Device, Device, int, int*);
    Result (*throttle)(Device, unsigned long long*);
    Result (*temperature)(Device, int, unsigned*);
    Result (*power)(Device, unsigned*);
    Result (*power_limit)(Device, unsigned*);
    Result (*usual_power_limit)(Device, unsigned*);
    Result (*clock)(Device, int, unsigned*);
    Result (*clock_limit)(Device, int, unsigned*);
    Result (*ecc_mode)(Device, unsigned*, unsigned*);
    Result (*ecc_errors)(Device, int, int, unsigned long long*);
    Result (*remapped)(Device, unsigned*, unsigned*, unsigned*, unsigned*);

    bool load(void* library) {
        const auto find = [&](auto& entry, const char* symbol) {
            entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(::dlsym(library, symbol));
            return entry != nullptr;
        };
        find(error_text, "nvmlErrorString"), find(driver, "nvmlSystemGetDriverVersion"),
            find(cuda, "nvmlSystemGetCudaDriverVersion_v2");
        find(name, "nvmlDeviceGetName"), find(uuid, "nvmlDeviceGetUUID"), find(memory, "nvmlDeviceGetMemoryInfo"),
            find(mig, "nvmlDeviceGetMigMode");
        find(throttle, "nvmlDeviceGetCurrentClocksThrottleReasons"), find(temperature, "nvmlDeviceGetTemperature"),
            find(power, "nvmlDeviceGetPowerUsage"), find(power_limit, "nvmlDeviceGetEnforcedPowerLimit"),
            find(usual_power_limit, "nvmlDeviceGetPowerManagementDefaultLimit"), find(clock, "nvmlDeviceGetClockInfo"),
            find(clock_limit, "nvmlDeviceGetMaxClockInfo");
        find(ecc_mode, "nvmlDeviceGetEccMode"), find(ecc_errors, "nvmlDeviceGetTotalEccErrors"),
            find(remapped, "nvmlDeviceGetRemappedRows");
        find(ancestor, "nvmlDeviceGetTopologyCommonAncestor"), find(p2p, "nvmlDeviceGetP2PStatus");
        return find(init, "nvmlInit_v2") && find(shutdown, "nvmlShutdown") && find(count, "nvmlDeviceGetCount_v2") &&
               find(handle, "nvmlDeviceGetHandleByIndex_v2") && find(pci, "nvmlDeviceGetPciInfo_v3");
    }
};

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

void describe_health(const Entries& nvml, Device device, NvmlGpu& gpu) {
    constexpr int of_the_chip = 0, of_the_sms = 1, uncorrected = 1, since_load = 0, ever = 1;
    gpu.throttle = number_of<unsigned long long>(nvml.throttle, device);
    gpu.celsius = static_cast<int>(number_of<unsigned>(nvml.temperature, device, of_the_chip));
    gpu.watts = static_cast<int>(number_of<unsigned>(nvml.power, device) / 1000);
    gpu.watts_limit = static_cast<int>(number_of<unsigned>(nvml.power_limit, device) / 1000);
    gpu.watts_usual = static_cast<int>(number_of<unsigned>(nvml.usual_power_limit, device) / 1000);
    gpu.clock_mhz = static_cast<int>(number_of<unsigned>(nvml.clock, device, of_the_sms));
    gpu.clock_limit_mhz = static_cast<int>(number_of<unsigned>(nvml.clock_limit, device, of_the_sms));
    unsigned mode = 0, pending = 0;
    gpu.ecc = nvml.ecc_mode != nullptr && nvml.ecc_mode(device, &mode, &pending) == success && mode == 1;
    const auto errors = [&](int kind) {
        return static_cast<int64_t>(number_of<unsigned long long>(nvml.ecc_errors, device, uncorrected, kind));
    };
    gpu.ecc_uncorrected = errors(since_load);
    gpu.ecc_uncorrected_ever = errors(ever);
    unsigned corrected = 0, bad = 0, waiting = 0, failed = 0;
    if (nvml.remapped == nullptr || nvml.remapped(device, &corrected, &bad, &waiting, &failed) != success) return;
    gpu.rows_remapped = bad;
    gpu.remap_pending = waiting != 0;
    gpu.remap_failed = failed != 0;
}

/// nullopt where the device cannot be asked (a container may forbid it).
std::optional<NvmlGpu> describe(const Entries& nvml, Device device) {
    PciInfo pci{};
    if (nvml.pci(device, &pci) != success) return std::nullopt;
    NvmlGpu gpu;
    gpu.pci = pci_name(pci.domain, pci.bus, pci.device);
    gpu.name = text_of(nvml.name, device, name_bytes);
    gpu.uuid = text_of(nvml.uuid, device, uuid_bytes);
    MemoryInfo memory{};
    if (nvml.memory != nullptr && nvml.memory(device, &memory) == success) {
        gpu.memory_total = static_cast<int64_t>(memory.total);
        gpu.memory_used = static_cast<int64_t>(memory.used);
    }
    unsigned mode = 0, pending = 0;
    gpu.mig = nvml.mig != nullptr && nvml.mig(device, &mode, &pending) == success && mode == 1;
    describe_health(nvml, device, gpu);
    return gpu;
}

std::string link_between(const Entries& nvml, Device a, Device b) {
    int status = -1, level = -1;
    if (nvml.p2p != nullptr && nvml.p2p(a, b, p2p_over_nvlink, &status) == success && status == p2p_ok) return "NVLink";
    if (nvml.ancestor == nullptr || nvml.ancestor(a, b, &level) != success) return "?";
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

void ask_gpus(const Entries& nvml, bool with_links, NvmlReport& report) {
    report.driver = text_of(nvml.driver, driver_bytes);
    if (nvml.cuda == nullptr || nvml.cuda(&report.cuda) != success) report.cuda = 0;
    unsigned count = 0;
    if (const Result result = nvml.count(&count); result != success) {
        report.problem = cat("the driver's library does not count its GPUs (error ", result, ")");
        return;
    }
    std::vector<Device> devices;
    for (unsigned i = 0; i < count; ++i) {
        Device device = nullptr;
        if (nvml.handle(i, &device) != success) continue;  // not this container's
        if (auto gpu = describe(nvml, device)) {
            devices.push_back(device);
            report.gpus.push_back(std::move(*gpu));
        }
    }
    if (!with_links) return;
    for (const Device a : devices) {
        auto& row = report.links.emplace_back();
        for (const Device b : devices) row.push_back(a == b ? "X" : link_between(nvml, a, b));
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
    void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* const reason = ::dlerror();
        if (reason != nullptr &&
            std::string(reason).find("cannot open shared object file: No such file") == std::string::npos)
            report.problem = reason;
        return report;
    }
    Entries nvml{};
    report.library = "libnvidia-ml.so.1";
    if (!nvml.load(library)) {
        report.problem = "the driver's library libnvidia-ml.so.1 lacks entries that every driver since 2020 has";
    } else {
        if (Dl_info info{}; ::dladdr(reinterpret_cast<void*>(nvml.init), &info) != 0 && info.dli_fname != nullptr)
            report.library = info.dli_fname;
        if (const Result result = nvml.init(); result != success) {
            report.problem =
                cat("the driver does not answer (", nvml.error_text != nullptr ? nvml.error_text(result) : "NVML error",
                    ", ", result, ")");
        } else {
            ask_gpus(nvml, with_links, report);
            nvml.shutdown();
        }
    }
    ::dlclose(library);
    return report;
}

}  // namespace unsloth::app
