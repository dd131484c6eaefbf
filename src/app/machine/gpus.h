// The GPUs that the ranks of this machine will take, found without starting CUDA.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace unsloth::app {

struct NvmlReport;

struct Gpu {
    std::string pci;  ///< "0000:17:00.0"; empty where it is not known which one this is
    std::string name, uuid;
};

struct GpuInventory {
    std::vector<Gpu> gpus;      ///< all of the machine, by PCI address
    std::string found_through;  ///< for the log: "NVML", "/proc/driver/nvidia/gpus", "/dev/nvidia*"; empty: none found
};

/// Those that NVML reported.
std::vector<Gpu> gpus_of(const NvmlReport& report);

/// Through NVML; without it through /proc/driver/nvidia/gpus, then /dev/nvidia0, … `root` is put before /proc and /dev.
GpuInventory find_gpus(const std::filesystem::path& root = "/");

/// The GPUs that CUDA will number 0, 1, … in a process with these values of CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER
/// (nullopt: not set), by CUDA's rules: numbers and beginnings of UUIDs. An entry that is neither is ignored, and all
/// entries after it too. Where CUDA sorts unequal cards by their speed, and for MIG instances, the result has GPUs
/// without address.
std::vector<Gpu> visible_gpus(const std::vector<Gpu>& all, const std::optional<std::string>& visible,
                              const std::optional<std::string>& order);
/// With the environment's values.
std::vector<Gpu> visible_gpus(const std::vector<Gpu>& all);

}  // namespace unsloth::app
