// What `unsloth-train doctor` looks at: a check a subject, each of which returns what it found.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "app/machine/nvml.h"
#include "unsloth/engine_api/engine.h"

namespace unsloth::app {

enum class Verdict { ok, warn, broken };

struct Finding {
    Verdict verdict = Verdict::ok;
    std::string name;    ///< "memory"
    std::string value;   ///< "62.8 GiB, 58.1 GiB free"; may have several lines
    std::string advice;  ///< what to do; empty for ok
};

/// The machine without the GPU: program, system, CPUs, memory, disks, limits.
std::vector<Finding> check_system(const config::Config& config);
std::vector<Finding> check_limits(const config::Config& config);
/// Driver, GPUs, how they are connected with each other and with CPUs.
std::vector<Finding> check_gpus(const config::Config& config);
/// Opens the engine: LibTorch, CUDA and NCCL as a run would load them.
std::vector<Finding> check_libraries(const config::Config& config);
/// Sums over all visible GPUs of this machine, by ranks that are started as a run's: whether they end, are right, and
/// their rate.
std::vector<Finding> check_sums(const config::Config& config);
/// The operators on every device against their formulas, pinned memory, peer access, clocks and ECC meanwhile.
std::vector<Finding> check_kernels(const config::Config& config);
/// Variables that change what the libraries do.
std::vector<Finding> check_environment(const config::Config& config);

/// Parts of the above that tests feed with values of their own.
/// Variables ("NAME=value") that are worth a line in a report, with passwords in URLs masked.
std::vector<Finding> judge_environment(const std::vector<std::string>& variables);
/// /dev/shm as far as several ranks are concerned; sizes in bytes.
Finding judge_shared_memory(int64_t size, int64_t free);

/// What `bench comm --json` printed; `nvlink`: all GPUs reach each other by NVLink.
Finding judge_sums(const std::string& printed, bool nvlink);

/// What the engine found out about a device.
std::vector<Finding> judge_device(const engine_api::DeviceReport& report, const std::string& label);
/// What NVML says of a GPU while it works.
Finding judge_health(const NvmlGpu& gpu, const std::string& label);
/// Rates in bytes a second.
Finding judge_disk_rate(double write, double read);

}  // namespace unsloth::app
