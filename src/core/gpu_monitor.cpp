#include "unsloth/core/gpu_monitor.h"

#include <dlfcn.h>

#include <array>
#include <chrono>
#include <regex>
#include <type_traits>

#include "unsloth/core/cgroup.h"

namespace unsloth {
namespace {

// What NVML's reference says of the few calls used here (nvml.h is no part of the CUDA wheels that the build fetches).
using Result = int;
using Device = void*;
constexpr Result success = 0;
constexpr int of_the_chip = 0;  // the sensor
constexpr const char* library_name = "libnvidia-ml.so.1";
struct Utilization {
    unsigned gpu, memory;  // per cent
};
struct MemoryInfo {
    unsigned long long total, free, used;
};

using Clock = std::chrono::steady_clock;

}  // namespace

struct GpuMonitor::Nvml {
    void* library = nullptr;
    Device device = nullptr;
    Result (*init)() = nullptr;
    Result (*shutdown)() = nullptr;
    Result (*by_pci)(const char*, Device*) = nullptr;
    Result (*utilization)(Device, Utilization*) = nullptr;
    Result (*memory)(Device, MemoryInfo*) = nullptr;
    Result (*power)(Device, unsigned*) = nullptr;  // milliwatts
    Result (*temperature)(Device, int, unsigned*) = nullptr;
    Result (*throttling)(Device, unsigned long long*) = nullptr;
    std::optional<GpuSample> last;
    Clock::time_point asked{};

    /// Entries that an old driver lacks stay null.
    bool load() {
        const auto find = [&](auto& entry, const char* symbol) {
            entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(::dlsym(library, symbol));
            return entry != nullptr;
        };
        find(power, "nvmlDeviceGetPowerUsage"), find(temperature, "nvmlDeviceGetTemperature");
        find(throttling, "nvmlDeviceGetCurrentClocksThrottleReasons");
        return find(init, "nvmlInit_v2") && find(shutdown, "nvmlShutdown") &&
               find(by_pci, "nvmlDeviceGetHandleByPciBusId_v2") && find(utilization, "nvmlDeviceGetUtilizationRates") &&
               find(memory, "nvmlDeviceGetMemoryInfo");
    }

    std::optional<GpuSample> ask() const {
        Utilization busy{};
        MemoryInfo bytes{};
        if (utilization(device, &busy) != success || memory(device, &bytes) != success) return std::nullopt;
        GpuSample sample;
        sample.utilization = busy.gpu / 100.0;
        sample.memory_used = static_cast<int64_t>(bytes.used);
        sample.memory_total = static_cast<int64_t>(bytes.total);
        unsigned milliwatts = 0, degrees = 0;
        unsigned long long reasons = 0;
        if (power != nullptr && power(device, &milliwatts) == success) sample.watts = milliwatts / 1000.0;
        if (temperature != nullptr && temperature(device, of_the_chip, &degrees) == success) sample.celsius = degrees;
        if (throttling != nullptr && throttling(device, &reasons) == success) sample.throttle_reasons = reasons;
        return sample;
    }
};

GpuMonitor::GpuMonitor(const std::string& pci) {
    if (pci.empty()) return;
    auto nvml = new Nvml;
    nvml->library = ::dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
    const bool ready = nvml->library != nullptr && nvml->load() && nvml->init() == success;
    if (ready && nvml->by_pci(pci.c_str(), &nvml->device) == success) {
        nvml_ = nvml;
        return;
    }
    if (ready) nvml->shutdown();
    if (nvml->library != nullptr) ::dlclose(nvml->library);
    delete nvml;
}

GpuMonitor::~GpuMonitor() {
    if (nvml_ == nullptr) return;
    nvml_->shutdown();
    ::dlclose(nvml_->library);
    delete nvml_;
}

std::optional<GpuSample> GpuMonitor::sample() {
    if (nvml_ == nullptr) return std::nullopt;
    if (Clock::now() - nvml_->asked >= std::chrono::seconds(1)) {
        nvml_->last = nvml_->ask();
        nvml_->asked = Clock::now();
    }
    return nvml_->last;
}

std::string gpu_driver_version(const std::filesystem::path& root) {
    std::array<char, 80> text{};  // as long as NVML's longest
    if (void* const library = ::dlopen(library_name, RTLD_NOW | RTLD_LOCAL); library != nullptr) {
        const auto init = reinterpret_cast<Result (*)()>(::dlsym(library, "nvmlInit_v2"));
        const auto shutdown = reinterpret_cast<Result (*)()>(::dlsym(library, "nvmlShutdown"));
        const auto ask = reinterpret_cast<Result (*)(char*, unsigned)>(::dlsym(library, "nvmlSystemGetDriverVersion"));
        if (init != nullptr && shutdown != nullptr && ask != nullptr && init() == success) {
            if (ask(text.data(), text.size()) != success) text[0] = '\0';
            shutdown();
        }
        ::dlclose(library);
    }
    if (text[0] != '\0') return text.data();
    // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build …"
    const std::string module = read_kernel_text(root / "proc/driver/nvidia/version").value_or("");
    std::smatch version;
    return std::regex_search(module, version, std::regex(R"(\b\d+\.\d+[.\d]*)")) ? version.str() : "";
}

}  // namespace unsloth
