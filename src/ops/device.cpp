#include "unsloth/ops/device.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdlib>

#include "unsloth/core/error.h"

#ifdef UNSLOTH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace unsloth::ops {

int gpu_count() {
    int count = 0;
#ifdef UNSLOTH_CUDA
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        (void)cudaGetLastError();  // no driver: not an error of ours
        count = 0;
    }
#endif
    return count;
}

at::Device choose_device(const std::string& option, int local_rank) {
    if (option == "cpu") return at::kCPU;
    const int count = gpu_count();
    if (option == "auto" && count == 0) return at::kCPU;
    // Some launchers show each process its own GPU alone.
    const int own = count == 1 && std::getenv("CUDA_VISIBLE_DEVICES") != nullptr ? 0 : local_rank;
    const int index = option.rfind("cuda:", 0) == 0 ? std::stoi(option.substr(5)) : own;
    if (index >= count)
        throw Error("device.too-few-gpus",
                    cat("hardware.device ", option, ": this machine offers ", count, " CUDA device(s)",
                        local_rank > 0 ? cat(", and this is process ", local_rank, " (from 0) on it") : "",
#ifdef UNSLOTH_CUDA
                        ""
#else
                        " (this build has no CUDA)"
#endif
                        ),
                    "Use --device cpu or auto, or check the driver with nvidia-smi.");
    at::globalContext().lazyInitDevice(at::kCUDA);  // the allocator's figures are asked for before its first allocation
    const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(index));
    c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA)
        .setDevice(device);  // our kernels are launched on the thread's current device
    return device;
}

std::string device_name(at::Device device) {
#ifdef UNSLOTH_CUDA
    cudaDeviceProp properties{};
    if (device.is_cuda() && cudaGetDeviceProperties(&properties, device.index()) == cudaSuccess) return properties.name;
#endif
    (void)device;
    return "";
}

std::string pci_address(at::Device device) {
#ifdef UNSLOTH_CUDA
    char text[32] = "";
    if (device.is_cuda() && cudaDeviceGetPCIBusId(text, sizeof text, device.index()) == cudaSuccess) return text;
#endif
    (void)device;
    return "";
}

}  // namespace unsloth::ops
