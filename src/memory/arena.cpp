#include <ATen/Parallel.h>
#include <unistd.h>

#include <algorithm>

#include "memory/host_pages.h"
#include "unsloth/core/cgroup.h"
#include "unsloth/core/error.h"
#include "unsloth/core/text.h"
#include "unsloth/memory/plan.h"
#include "unsloth/ops/device.h"

#ifdef UNSLOTH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#endif

namespace unsloth::memory {

Arena::Arena(Plan plan, at::Device device) : plan_(std::move(plan)) {
#ifdef UNSLOTH_CUDA
    // In part of a larger block that LibTorch keeps of a model before, it would keep the rest from allocations that
    // need the whole block.
    if (device.is_cuda()) c10::cuda::CUDACachingAllocator::emptyCache();
#endif
    try {
        slab_ =
            at::empty({std::max<int64_t>(plan_.total_bytes(), 1)}, at::TensorOptions().dtype(at::kByte).device(device));
    } catch (const c10::Error&) {  // LibTorch's text says neither what for nor what helps
        throw Error(
            "memory.device-full",
            cat("cannot allocate ", human_bytes(plan_.total_bytes()), " on ", device.str(), " for:\n", plan_.table()),
            "Lower per_device_train_batch_size or max_seq_length, set gradient_checkpointing to full, or free the "
            "device.");
    }
}

Arena Arena::host(Plan plan, at::Device device) {
    if (!device.is_cuda()) return Arena(std::move(plan), at::kCPU);
    const at::Tensor slab = host_memory(plan, std::max<int64_t>(plan.total_bytes(), 1), device);
    return Arena(std::move(plan), slab);
}

at::Tensor Arena::tensor(BufferId id, at::IntArrayRef sizes, at::ScalarType dtype) const {
    const Entry& entry = plan_.entry(id);
    const int64_t bytes = c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(dtype));
    UNSLOTH_CHECK(bytes <= entry.bytes, entry.name, ": ", bytes, " of ", entry.bytes, " bytes");
    return slab_.narrow(0, entry.offset, bytes).view(dtype).view(sizes);
}

DeviceMemory device_memory(at::Device device) {
    DeviceMemory memory;
    if (device.is_cpu()) {
        memory.total = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
        memory.free = available_memory();
        return memory;
    }
#ifdef UNSLOTH_CUDA
    std::size_t free = 0, total = 0;
    const cudaError_t status = cudaMemGetInfo(&free, &total);
    if (status != cudaSuccess) throw Error("device.failed", cat("cudaMemGetInfo: ", cudaGetErrorString(status)));
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
    const int64_t cached = stats.reserved_bytes[0].current - stats.allocated_bytes[0].current;
    memory.free = static_cast<int64_t>(free) + cached;
    memory.total = static_cast<int64_t>(total);
#endif
    return memory;
}

std::string describe_device(at::Device device) {
    const std::string memory = human_bytes(device_memory(device).total);
    if (const std::string name = ops::device_name(device); !name.empty()) return cat(name, " (", memory, ")");
    return cat("CPU, ", at::get_num_threads(), " threads (", memory, ")");
}

int64_t peak_allocated_bytes([[maybe_unused]] at::Device device) {
#ifdef UNSLOTH_CUDA
    if (device.is_cuda())
        return c10::cuda::CUDACachingAllocator::getDeviceStats(device.index()).allocated_bytes[0].peak;
#endif
    return 0;
}

AllocatorUse allocator_use([[maybe_unused]] at::Device device) {
#ifdef UNSLOTH_CUDA
    if (device.is_cuda()) {
        const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
        return {stats.allocated_bytes[0].current, stats.allocated_bytes[0].peak, stats.reserved_bytes[0].current};
    }
#endif
    return {};
}

void reset_peak([[maybe_unused]] at::Device device) {
#ifdef UNSLOTH_CUDA
    if (device.is_cuda()) c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
#endif
}

int64_t allocation_count([[maybe_unused]] at::Device device) {
#ifdef UNSLOTH_CUDA
    if (device.is_cuda())
        return c10::cuda::CUDACachingAllocator::getDeviceStats(device.index()).allocation[0].allocated;
#endif
    return 0;
}

}  // namespace unsloth::memory
