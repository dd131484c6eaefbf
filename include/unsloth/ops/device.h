// Which device the work is done on, and what CUDA calls it.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace unsloth::ops {

/// hardware.device as a device; usage Error when it asks for a GPU that is not there. "auto" and "cuda" mean the GPU of
/// the process's number on this machine. A GPU becomes the calling thread's current one, which is where our kernels are
/// launched.
at::Device choose_device(const std::string& option, int local_rank = 0);
/// A CUDA device without a number is a GPU that need not be present: queries about it are answered by bounds.
inline bool is_absent(at::Device device) {
    return device.is_cuda() && !device.has_index();
}
/// As device maps number them; 0 for an absent GPU, -1 for the CPU.
inline int gpu_number(at::Device device) {
    return !device.is_cuda() ? -1 : is_absent(device) ? 0 : device.index();
}
/// Of CUDA, that this process sees; 0 without a driver.
int gpu_count();
/// "0000:17:00.0", as NVML takes it; empty for the CPU.
std::string pci_address(at::Device device);
/// "NVIDIA H200"; empty for the CPU.
std::string device_name(at::Device device);

}  // namespace unsloth::ops
