// What every .cu shares on the host side: checked CUDA calls and launches, and the choice of an element type.
// C++17, no LibTorch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "unsloth/spec/dtype.h"

namespace unsloth::kernels {

/// Whether this build holds code for Hopper (sm_90a). Without it a Hopper card runs what was built for older ones, and
/// kernels that need its clusters or tensor copies must not be chosen.
bool built_for_hopper();

/// Throws a runtime Error that names the call, its place and CUDA's reason, unless `status` is success.
void check_cuda(cudaError_t status, const char* call, const char* file, int line);
/// UNSLOTH_CUDA_CHECK(cudaMemsetAsync(...)): throws when the call fails.
#define UNSLOTH_CUDA_CHECK(call) ::unsloth::kernels::check_cuda((call), #call, __FILE__, __LINE__)

/// Throws a runtime Error that names the kernel and CUDA's reason, unless its launch's `status` is success.
void check_launch(cudaError_t status, const void* kernel);

/// Throws CheckError: no kernel is built for this element type.
[[noreturn]] void unsupported_dtype(spec::DType type);

/// Makes `device` the current one for a scope.
class DeviceGuard {
  public:
    explicit DeviceGuard(int device);
    ~DeviceGuard();
    DeviceGuard(const DeviceGuard&) = delete;
    DeviceGuard& operator=(const DeviceGuard&) = delete;

  private:
    int before_ = 0;
    bool changed_ = false;
};

/// Streaming multiprocessors of the current device.
int multiprocessor_count();

/// Whether the current device runs code of this build that waits for the kernel ahead by itself: from 9.0 on, and not
/// PTX of an older architecture that the driver compiles for a newer card. `kernel`: any of this build's, which all are
/// of the same architectures.
bool waits_by_itself(const void* kernel);

/// Shared memory that a block may ask for on the current device.
std::size_t most_shared_bytes();

/// Blocks of `kernel` that the current device holds at once: the grid of a kernel that loops over its rows.
int resident_blocks(const void* kernel, int threads, std::size_t shared_bytes);

/// A launch beyond what <<<>>> says.
struct Launch {
    dim3 grid{};
    dim3 threads{};
    std::size_t shared_bytes = 0;  ///< dynamic shared memory, also beyond the 48 KiB that need no asking
    cudaStream_t stream = nullptr;
    int cluster = 1;  ///< thread blocks along x that read each other's shared memory
    /// Programmatic dependent launch, where the card has it: may start before the kernel ahead on the stream ends, and
    /// waits for it by itself (griddepcontrol_wait).
    bool after_previous = false;
};

/// Launches `kernel` and checks the launch.
template <class... Params, class... Args>
void launch_kernel(void (*kernel)(Params...), const Launch& how, const Args&... args) {
    const auto* entry = reinterpret_cast<const void*>(kernel);
    if (how.shared_bytes > 0)  // with what is static it may be more than needs no asking
        check_launch(cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(how.shared_bytes)),
                     entry);
    cudaLaunchAttribute attributes[2] = {};
    unsigned count = 0;
    if (how.cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {static_cast<unsigned>(how.cluster), 1, 1};
    }
    if (how.after_previous && waits_by_itself(entry)) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = how.grid;
    config.blockDim = how.threads;
    config.dynamicSmemBytes = how.shared_bytes;
    config.stream = how.stream;
    config.attrs = attributes;
    config.numAttrs = count;
    check_launch(cudaLaunchKernelEx(&config, kernel, args...), entry);
}

template <class T>
struct TypeTag {
    using type = T;
};

/// Calls f(TypeTag<T>) for the CUDA type of a floating dtype.
template <class F>
void dispatch_floating(spec::DType type, F f) {
    switch (type) {
        case spec::DType::f32:
            f(TypeTag<float>{});
            return;
        case spec::DType::bf16:
            f(TypeTag<__nv_bfloat16>{});
            return;
        case spec::DType::f16:
            f(TypeTag<__half>{});
            return;
        default:
            unsupported_dtype(type);
    }
}

constexpr int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
constexpr int64_t round_up(int64_t a, int64_t multiple) {
    return ceil_div(a, multiple) * multiple;
}
constexpr int next_power_of_two(int64_t n) {
    int power = 1;
    while (power < n) power *= 2;
    return power;
}

/// True when a row start, and every `stride` elements after it, allows 16-byte accesses.
inline bool aligned_16(const void* data, std::initializer_list<int64_t> strides, spec::DType type) {
    if (reinterpret_cast<std::uintptr_t>(data) % 16 != 0) return false;
    for (int64_t stride : strides) {
        if (stride * static_cast<int64_t>(spec::size_of(type)) % 16 != 0) return false;
    }
    return true;
}

}  // namespace unsloth::kernels

/// UNSLOTH_LAUNCH((kernel<T, 4>), grid, block, shared_bytes, stream, arguments...): launches and checks the launch.
#define UNSLOTH_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                \
    do {                                                                                              \
        kernel<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__);                           \
        ::unsloth::kernels::check_cuda(cudaGetLastError(), "launch of " #kernel, __FILE__, __LINE__); \
    } while (false)
