#include "kernels/common/launch.h"

#include <array>
#include <atomic>
#include <string>

#include "unsloth/core/error.h"

namespace unsloth::kernels {
namespace {

[[noreturn]] void fail(cudaError_t status, const std::string& what, const std::string& where) {
    throw Error("device.failed",
                cat("CUDA: ", what, ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status), where, ")"),
                status == cudaErrorNoKernelImageForDevice
                    ? "This build has no code for the card: add its architecture to TORCH_CUDA_ARCH_LIST."
                    : "");
}

}  // namespace

bool built_for_hopper() {
#ifdef UNSLOTH_SM90A
    return true;
#else
    return false;
#endif
}

void check_cuda(cudaError_t status, const char* call, const char* file, int line) {
    if (status != cudaSuccess) fail(status, cat(call, " failed"), cat(", ", file, ":", line));
}

void check_launch(cudaError_t status, const void* kernel) {
    if (status == cudaSuccess) return;
    const char* name = nullptr;
    if (cudaFuncGetName(&name, kernel) != cudaSuccess) name = "a kernel";
    fail(status, cat("launch of ", name, " failed"), "");
}

void unsupported_dtype(spec::DType type) {
    throw CheckError(cat("no kernel is built for element type ", spec::name_of(type)));
}

DeviceGuard::DeviceGuard(int device) {
    UNSLOTH_CUDA_CHECK(cudaGetDevice(&before_));
    if (before_ != device) UNSLOTH_CUDA_CHECK(cudaSetDevice(device));
    changed_ = before_ != device;
}

DeviceGuard::~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
}

bool waits_by_itself(const void* kernel) {
    enum Answer : int { unknown, no, yes };
    static std::array<std::atomic<int>, 64> answers{};  // by device: asked once
    int device = 0;
    UNSLOTH_CUDA_CHECK(cudaGetDevice(&device));
    std::atomic<int>& answer = answers.at(static_cast<std::size_t>(device));
    if (answer == unknown) {
        cudaFuncAttributes attributes{};
        check_launch(cudaFuncGetAttributes(&attributes, kernel), kernel);
        answer = attributes.ptxVersion >= 90 ? yes : no;
    }
    return answer == yes;
}

std::size_t most_shared_bytes() {
    int device = 0, bytes = 0;
    UNSLOTH_CUDA_CHECK(cudaGetDevice(&device));
    UNSLOTH_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return static_cast<std::size_t>(bytes);
}

int multiprocessor_count() {
    int device = 0;
    int count = 0;
    UNSLOTH_CUDA_CHECK(cudaGetDevice(&device));
    UNSLOTH_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
    return count;
}

int resident_blocks(const void* kernel, int threads, std::size_t shared_bytes) {
    int per_multiprocessor = 0;
    UNSLOTH_CUDA_CHECK(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_multiprocessor, kernel, threads, shared_bytes));
    return std::max(per_multiprocessor, 1) * multiprocessor_count();
}

}  // namespace unsloth::kernels
