#include "memory/host_pages.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "unsloth/core/cgroup.h"
#include "unsloth/core/error.h"
#include "unsloth/core/numa.h"
#include "unsloth/core/parallel.h"
#include "unsloth/core/text.h"
#include "unsloth/ops/device.h"

#ifdef UNSLOTH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace unsloth::memory {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;

#ifdef UNSLOTH_CUDA
std::size_t whole_huge_pages(int64_t bytes) {
    return (static_cast<std::size_t>(std::max<int64_t>(bytes, 1)) + huge_page - 1) / huge_page * huge_page;
}

void* map_memory(std::size_t bytes, const std::set<int>& nodes) {
    void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return nullptr;
    make_pages(data, bytes, nodes);
    return data;
}
#endif

}  // namespace

std::string limits_text(int64_t bytes) {
    std::string text = cat(human_bytes(available_memory()), " are available");
    if (const CgroupLimits limits = cgroup_limits(); limits.memory && *limits.memory < bytes)
        text += cat(", the control group (container) allows ", human_bytes(*limits.memory));
    rlimit locked{};
    if (::getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY &&
        locked.rlim_cur < static_cast<rlim_t>(bytes))
        text += cat(", ulimit -l (locked memory) is ", human_bytes(static_cast<int64_t>(locked.rlim_cur)));
    return text;
}

Error host_memory_failure(const Plan& plan, int64_t bytes, const std::string& reason) {
    return Error("memory.pinning-failed",
                 cat("cannot allocate ", human_bytes(bytes), " of pinned host memory (", reason, "; ",
                     limits_text(bytes), ") for:\n", plan.table()),
                 "Raise that limit, choose a gradient_checkpointing that keeps less or "
                 "does not offload, lower per_device_train_batch_size or max_seq_length, or leave fewer "
                 "layers in host memory (model.device_map, model.max_memory); a run with training.save_steps "
                 "0 and save_minutes 0 plans no copies for checkpoints.");
}

void make_pages(void* data, std::size_t bytes, const std::set<int>& nodes, int threads) {
    use_numa_nodes(data, bytes, nodes);
    ::madvise(data, bytes, MADV_HUGEPAGE);
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const auto make = [&](int64_t begin, int64_t end) {
        auto* const first = static_cast<volatile char*>(data);
        for (int64_t at = begin; at < end; ++at) first[static_cast<std::size_t>(at) * page] = 0;
    };
    parallel_ranges(static_cast<int64_t>((bytes + page - 1) / page), huge_page / page, make, threads);
}

std::set<int> nodes_of(at::Device device) {
    const std::optional<int> node = device.is_cuda() ? numa_node_of(ops::pci_address(device)) : std::nullopt;
    return node ? std::set<int>{*node} : std::set<int>();
}

at::Tensor host_memory(const Plan& plan, int64_t bytes, at::Device device) {
    if (bytes > available_memory()) throw host_memory_failure(plan, bytes, "the machine has no more");
    if (!device.is_cuda()) return at::empty({bytes}, at::kByte);
#ifdef UNSLOTH_CUDA
    const std::size_t mapped = whole_huge_pages(bytes);
    void* const data = map_memory(mapped, nodes_of(device));
    if (data == nullptr) throw host_memory_failure(plan, bytes, std::strerror(errno));
    if (cudaHostRegister(data, mapped, cudaHostRegisterDefault) != cudaSuccess) {
        // Some sandboxes lock no pages that are there already: then the driver makes them, which takes longer.
        (void)cudaGetLastError();
        ::munmap(data, mapped);
        void* made = nullptr;
        const cudaError_t status = cudaHostAlloc(&made, static_cast<std::size_t>(bytes), cudaHostAllocDefault);
        (void)cudaGetLastError();
        if (status != cudaSuccess) throw host_memory_failure(plan, bytes, cudaGetErrorString(status));
        return at::from_blob(made, {bytes}, [](void* memory) { cudaFreeHost(memory); }, at::kByte);
    }
    const auto release = [mapped](void* memory) {
        cudaHostUnregister(memory);
        ::munmap(memory, mapped);
    };
    return at::from_blob(data, {bytes}, release, at::kByte);
#else
    throw Error("device.no-cuda", "this program was built without CUDA");
#endif
}

}  // namespace unsloth::memory
