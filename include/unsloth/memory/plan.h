// The memory plan: every buffer of a run by name, made before the first step. The plan is the forecast that is printed,
// the table in the log, and what the run takes: one allocation, so a run that starts does not run out of memory later.
#pragma once

#include <ATen/ATen.h>

#include <concepts>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace unsloth::memory {

/// When a buffer's content must survive. Buffers that share no phase may share bytes.
enum Phase : uint8_t {
    forward = 1,   ///< embedding and the layers' forward pass
    head = 2,      ///< final norm, lm_head, loss and their gradients
    backward = 4,  ///< the layers' backward pass (recompute included)
    update = 8,    ///< gradient norm and optimizer
    tower = 16,    ///< a tower over images, before the embedding: nothing of the micro-batch is there yet
    always = 31,
};

/// A planned buffer's index.
using BufferId = std::size_t;

struct Entry {
    std::string group;  ///< a line of the printed table: "base weights", "layer inputs", …
    std::string name;   ///< unique in the plan
    int64_t bytes = 0;
    uint8_t phases = always;
    int64_t offset = -1;  ///< set by place()
    std::string content;  ///< what it will hold, for processes that share it (CommonMemory)
};

/// By name, for an arena; or by size alone, for what is only weighed: thousands of plans are before one is taken.
enum class Detail : uint8_t { names, sizes };

class Plan {
  public:
    explicit Plan(Detail detail = Detail::names) : named_(detail == Detail::names) {}
    /// Adds a buffer of `bytes` >= 0 bytes; names are unique (CheckError).
    BufferId add(std::string group, std::string name, int64_t bytes, uint8_t phases = always, std::string content = {});
    /// The same, of many: `name()` is asked for only where names are kept.
    template <std::invocable Name>
    void add(const char* group, const Name& name, int64_t bytes, uint8_t phases = always) {
        named_ ? void(add(std::string(group), std::string(name()), bytes, phases)) : add_sizes(bytes, phases, 1);
    }
    bool named() const { return named_; }
    /// Buffers that are alike, of a plan by size alone.
    void add_sizes(int64_t bytes, uint8_t phases, int64_t count);
    /// Assigns offsets (multiples of 512 bytes): larger buffers first, each at the lowest offset where it overlaps no
    /// buffer with a shared phase.
    void place();
    /// Bytes of the one allocation, the same by name and by size alone; valid after place().
    int64_t total_bytes() const { return total_; }
    /// None of a plan by size alone.
    const std::vector<Entry>& entries() const& { return entries_; }
    const std::vector<Entry>& entries() && = delete;
    const Entry& entry(BufferId id) const { return entries_.at(id); }
    /// The buffer of that name; CheckError when it was not planned.
    BufferId find(const std::string& name) const;
    /// Group, buffers, MiB; a last line with what sharing saves. One line a group, largest first.
    std::string table() const;

  private:
    struct Sizes {
        int64_t bytes;
        uint8_t phases;
        int64_t count;
    };
    void place_entries();

    bool named_;
    std::vector<Entry> entries_;
    std::unordered_map<std::string, BufferId> ids_;
    std::vector<Sizes> sizes_;  ///< of a plan by size alone what is not of all phases
    int64_t floor_ = 0;         ///< and of all phases
    int64_t total_ = 0;
};

/// What a run takes of a CUDA device's memory in addition to two arenas, by the caching allocator's count: less than
/// half a MiB of scalars and tables of a step, and up to 1 MiB an arena, the most that the allocator does not split off
/// a block.
inline constexpr int64_t outside_arenas_bytes = int64_t{3} << 20;

/// The memory of a placed plan on a device.
class Arena {
  public:
    /// Allocates the plan's bytes at once; runtime Error with the plan's table when the device cannot give them.
    Arena(Plan plan, at::Device device);
    /// Host memory that `device` can read and write: pinned for a CUDA device, plain for the CPU. Errors as above.
    static Arena host(Plan plan, at::Device device);
    /// The buffer as a contiguous tensor. CheckError when sizes x dtype exceed the buffer.
    at::Tensor tensor(BufferId id, at::IntArrayRef sizes, at::ScalarType dtype) const;
    const Plan& plan() const { return plan_; }
    at::Device device() const { return slab_.device(); }

  private:
    Arena(Plan plan, at::Tensor slab) : plan_(std::move(plan)), slab_(std::move(slab)) {}
    Plan plan_;
    at::Tensor slab_;
};

/// Free and total bytes of a device (CUDA: the driver's figures and what the caching allocator holds unused; CPU: what
/// core/cgroup.h says is available).
struct DeviceMemory {
    int64_t free = 0, total = 0;
};
DeviceMemory device_memory(at::Device device);
/// "NVIDIA H200 (139.8 GiB)", "CPU, 8 threads".
std::string describe_device(at::Device device);

/// Peak bytes that LibTorch's allocator held on this device since the last reset (CUDA), or the plan's bytes on the
/// CPU.
int64_t peak_allocated_bytes(at::Device device);
/// What LibTorch's allocator has taken of a CUDA device, and what of it is in use; 0 on the CPU.
struct AllocatorUse {
    int64_t allocated = 0, peak_allocated = 0;  ///< by tensors
    int64_t reserved = 0;                       ///< from the driver
    /// The share of reserved memory that is unused: gaps between tensors, and blocks kept for the next ones.
    double fragmentation() const {
        return reserved > 0 ? 1.0 - static_cast<double>(allocated) / static_cast<double>(reserved) : 0.0;
    }
};
AllocatorUse allocator_use(at::Device device);
/// Starts a new peak from what is allocated now (CUDA).
void reset_peak(at::Device device);
/// Number of allocations so far (CUDA): must not grow from step 2 on.
int64_t allocation_count(at::Device device);

}  // namespace unsloth::memory
