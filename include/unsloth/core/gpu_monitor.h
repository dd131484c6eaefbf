// What a GPU is doing now, by the driver's management library (NVML), which is opened where there is one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace unsloth {

struct GpuSample {
    double utilization = 0;                     ///< share of the last sampling period in which a kernel ran, [0, 1]
    int64_t memory_used = 0, memory_total = 0;  ///< bytes, of all processes
    double watts = 0, celsius = 0;              ///< 0: not known
    uint64_t throttle_reasons = 0;              ///< NVML's bits: 0x4 power cap, 0x20 and 0x40 heat, 0x80 power brake
};

class GpuMonitor {
  public:
    /// `pci`: "0000:17:00.0"; empty: no GPU. Never throws: where NVML cannot be asked there are no samples.
    explicit GpuMonitor(const std::string& pci);
    ~GpuMonitor();
    GpuMonitor(const GpuMonitor&) = delete;
    GpuMonitor& operator=(const GpuMonitor&) = delete;

    /// Queried again once a second at most: a call costs about a millisecond.
    std::optional<GpuSample> sample();

  private:
    struct Nvml;
    std::unique_ptr<Nvml> nvml_;  ///< null: it cannot be asked
};

/// The driver's version, "580.65.06": by NVML, which sandboxes without the kernel's own files have, else by /proc,
/// which containers without NVML have. Empty: neither. Never throws. `root` is the parent of /proc.
std::string gpu_driver_version(const std::filesystem::path& root = "/");

}  // namespace unsloth
