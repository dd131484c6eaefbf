#include "unsloth/core/gpu_monitor.h"

#include <array>
#include <chrono>
#include <regex>
#include <utility>

#include "unsloth/core/cgroup.h"
#include "unsloth/core/nvml.h"

namespace unsloth {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

struct GpuMonitor::Nvml {
    nvml::Library library;
    nvml::Device device = nullptr;
    std::optional<GpuSample> last;
    Clock::time_point asked{};

    /// Finds the GPU.
    bool open(const std::string& pci) {
        const nvml::Calls& calls = library.calls;
        return library.starts() && calls.by_pci != nullptr && calls.utilization != nullptr && calls.memory != nullptr &&
               library.start() == nvml::success && calls.by_pci(pci.c_str(), &device) == nvml::success;
    }

    std::optional<GpuSample> ask() const {
        constexpr int of_the_chip = 0;  // the sensor
        const nvml::Calls& calls = library.calls;
        nvml::Utilization busy{};
        nvml::MemoryInfo bytes{};
        if (calls.utilization(device, &busy) != nvml::success || calls.memory(device, &bytes) != nvml::success)
            return std::nullopt;
        GpuSample sample;
        sample.utilization = busy.gpu / 100.0;
        sample.memory_used = static_cast<int64_t>(bytes.used);
        sample.memory_total = static_cast<int64_t>(bytes.total);
        const auto answers = [&](auto* call, auto... arguments) {
            return call != nullptr && call(device, arguments...) == nvml::success;
        };
        unsigned milliwatts = 0, degrees = 0;
        unsigned long long reasons = 0;
        if (answers(calls.power, &milliwatts)) sample.watts = milliwatts / 1000.0;
        if (answers(calls.temperature, of_the_chip, &degrees)) sample.celsius = degrees;
        if (answers(calls.throttle, &reasons)) sample.throttle_reasons = reasons;
        return sample;
    }
};

GpuMonitor::GpuMonitor(const std::string& pci) {
    if (pci.empty()) return;
    auto nvml = std::make_unique<Nvml>();
    if (nvml->open(pci)) nvml_ = std::move(nvml);
}

GpuMonitor::~GpuMonitor() = default;

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
    if (nvml::Library library; library.starts() && library.calls.driver != nullptr && library.start() == nvml::success)
        if (library.calls.driver(text.data(), text.size()) != nvml::success) text[0] = '\0';
    if (text[0] != '\0') return text.data();
    // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build …"
    const std::string module = read_kernel_text(root / "proc/driver/nvidia/version").value_or("");
    std::smatch version;
    return std::regex_search(module, version, std::regex(R"(\b\d+\.\d+[.\d]*)")) ? version.str() : "";
}

}  // namespace unsloth
