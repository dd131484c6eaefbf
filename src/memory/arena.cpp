#include <ATen/Parallel.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "unsloth/core/cgroup.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/core/numa.h"
#include "unsloth/core/parallel.h"
#include "unsloth/core/shared_segment.h"
#include "unsloth/memory/plan.h"
#include "unsloth/ops/device.h"

#ifdef UNSLOTH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#endif

namespace unsloth::memory {

Arena::Arena(Plan plan, at::Device device) : plan_(std::move(plan)) {
    try {
        slab_ =
            at::empty({std::max<int64_t>(plan_.total_bytes(), 1)}, at::TensorOptions().dtype(at::kByte).device(device));
    } catch (const c10::Error&) {  // LibTorch's text says neither what for nor what helps
        throw runtime_failure(
            cat("cannot allocate ", human_bytes(plan_.total_bytes()), " on ", device.str(), " for:\n", plan_.table()),
            "Lower per_device_train_batch_size or max_seq_length, set gradient_checkpointing to full, or free the "
            "device.");
    }
}

namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;

/// Limits that may be why `bytes` of host memory cannot be had, for a message.
[[maybe_unused]] std::string limits_text(int64_t bytes) {
    std::string text = cat(human_bytes(available_memory()), " are available");
    if (const CgroupLimits limits = cgroup_limits(); limits.memory && *limits.memory < bytes)
        text += cat(", the control group (container) allows ", human_bytes(*limits.memory));
    rlimit locked{};
    if (::getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY &&
        locked.rlim_cur < static_cast<rlim_t>(bytes))
        text += cat(", ulimit -l (locked memory) is ", human_bytes(static_cast<int64_t>(locked.rlim_cur)));
    return text;
}

[[maybe_unused]] Error host_memory_failure(const Plan& plan, int64_t bytes, const std::string& reason) {
    return runtime_failure(cat("cannot allocate ", human_bytes(bytes), " of page-locked host memory (", reason, "; ",
                               limits_text(bytes), ") for:\n", plan.table()),
                           "Raise the limit that stands in the way, choose a gradient_checkpointing that keeps less or "
                           "does not offload, lower per_device_train_batch_size or max_seq_length, or leave fewer "
                           "layers in host memory (model.device_map, model.max_memory); a run with training.save_steps "
                           "0 and save_minutes 0 plans no copies for checkpoints.");
}

std::size_t whole_huge_pages(int64_t bytes) {
    return (static_cast<std::size_t>(std::max<int64_t>(bytes, 1)) + huge_page - 1) / huge_page * huge_page;
}

/// Makes the pages of fresh memory: huge ones where the system has them, of these NUMA nodes if some are named. Each
/// page is made by the thread that writes it first: several threads, because one makes about 4 GB a second; without a
/// node pages would come from wherever those threads run.
void make_pages(void* data, std::size_t bytes, const std::set<int>& nodes) {
    use_numa_nodes(data, bytes, nodes);
    ::madvise(data, bytes, MADV_HUGEPAGE);
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    parallel_ranges(static_cast<int64_t>(bytes / huge_page), 16, [&](int64_t begin, int64_t end) {
        auto* const first = static_cast<volatile char*>(data);
        for (std::size_t at = static_cast<std::size_t>(begin) * huge_page;
             at < static_cast<std::size_t>(end) * huge_page; at += page)
            first[at] = 0;
    });
}

[[maybe_unused]] void* map_memory(std::size_t bytes, std::optional<int> node) {
    void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return nullptr;
    make_pages(data, bytes, node ? std::set<int>{*node} : std::set<int>());
    return data;
}

/// A shared piece of memory that a device may read: page-locked for a CUDA device until this is gone.
class LockedSegment {
  public:
    /// Why it cannot be locked; empty: it is.
    std::string lock(std::unique_ptr<SharedSegment> segment, [[maybe_unused]] std::size_t bytes,
                     [[maybe_unused]] at::Device device) {
        segment_ = std::move(segment);
#ifdef UNSLOTH_CUDA
        if (!device.is_cuda()) return "";
        const cudaError_t status = cudaHostRegister(segment_->data(), bytes, cudaHostRegisterDefault);
        (void)cudaGetLastError();
        if (status != cudaSuccess)
            return cat("it cannot be page-locked: ", cudaGetErrorString(status), "; ",
                       limits_text(static_cast<int64_t>(bytes)));
        locked_ = true;
#endif
        return "";
    }
    void close() { segment_->close(); }
    std::byte* data() const { return segment_->data(); }
    LockedSegment() = default;
    LockedSegment(const LockedSegment&) = delete;
    LockedSegment& operator=(const LockedSegment&) = delete;
    ~LockedSegment() {
#ifdef UNSLOTH_CUDA
        if (locked_) cudaHostUnregister(segment_->data());
#endif
    }

  private:
    std::unique_ptr<SharedSegment> segment_;
    [[maybe_unused]] bool locked_ = false;
};

/// The nodes that the processes' devices are attached to; none where one of them does not say.
std::set<int> nodes_of(const Sharing& processes, at::Device device) {
    const std::optional<int> own = device.is_cuda() ? numa_node_of(ops::pci_address(device)) : std::optional<int>();
    std::set<int> nodes;
    bool known = true;
    for (const std::string& node : processes.gather(own ? std::to_string(*own) : "")) {
        known = known && !node.empty();
        if (!node.empty()) nodes.insert(std::stoi(node));
    }
    return known ? nodes : std::set<int>();
}

}  // namespace

Arena Arena::host(Plan plan, at::Device device) {
    if (!device.is_cuda()) return Arena(std::move(plan), at::kCPU);
#ifdef UNSLOTH_CUDA
    const int64_t bytes = std::max<int64_t>(plan.total_bytes(), 1);
    const std::size_t mapped = whole_huge_pages(bytes);
    void* const data = map_memory(mapped, numa_node_of(ops::pci_address(device)));
    if (data == nullptr) throw host_memory_failure(plan, bytes, std::strerror(errno));
    if (cudaHostRegister(data, mapped, cudaHostRegisterDefault) != cudaSuccess) {
        // Some sandboxes lock no pages that are there already: then the driver makes them, which takes longer.
        (void)cudaGetLastError();
        ::munmap(data, mapped);
        void* made = nullptr;
        const cudaError_t status = cudaHostAlloc(&made, static_cast<std::size_t>(bytes), cudaHostAllocDefault);
        (void)cudaGetLastError();
        if (status != cudaSuccess) throw host_memory_failure(plan, bytes, cudaGetErrorString(status));
        return Arena(std::move(plan),
                     at::from_blob(made, {bytes}, [](void* memory) { cudaFreeHost(memory); }, at::kByte));
    }
    const auto release = [mapped](void* memory) {
        cudaHostUnregister(memory);
        ::munmap(memory, mapped);
    };
    return Arena(std::move(plan), at::from_blob(data, {bytes}, release, at::kByte));
#else
    throw runtime_failure("this program was built without CUDA");
#endif
}

std::optional<Arena> Arena::shared_host(Plan plan, at::Device device, const Sharing& processes) {
    const std::size_t bytes = whole_huge_pages(plan.total_bytes());
    const std::set<int> nodes = nodes_of(processes, device);
    std::unique_ptr<SharedSegment> segment;
    std::string address, why;
    if (processes.place == 0) {
        try {
            segment = SharedSegment::make(bytes);
            make_pages(segment->data(), bytes, nodes);
            address = segment->address();
        } catch (const Error& refused) {
            why = refused.what();
        }
    }
    address = processes.gather(address).front();
    if (processes.place != 0 && !address.empty()) {
        segment = SharedSegment::open(address, bytes);
        if (segment == nullptr) why = "it cannot be reached: processes of another container or user";
    }
    auto locked = std::make_shared<LockedSegment>();
    if (segment != nullptr) why = locked->lock(std::move(segment), bytes, device);
    for (const std::string& reason : processes.gather(why.substr(0, 400))) {
        if (reason.empty()) continue;
        log::warning("host memory that the ranks of this machine could share is taken by each of them (",
                     human_bytes(plan.total_bytes()), "): ", reason);
        if (plan.total_bytes() > available_memory() / processes.size)
            throw host_memory_failure(plan, plan.total_bytes() * processes.size, "one copy for each rank");
        return std::nullopt;
    }
    locked->close();
    const at::Tensor slab =
        at::from_blob(locked->data(), {std::max<int64_t>(plan.total_bytes(), 1)}, [locked](void*) {}, at::kByte);
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
    if (status != cudaSuccess) throw runtime_failure(cat("cudaMemGetInfo: ", cudaGetErrorString(status)));
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
