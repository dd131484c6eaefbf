#include "app/launch/pinning.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <vector>

#include "app/machine/limits.h"
#include "unsloth/core/error.h"

namespace unsloth::app {
namespace fs = std::filesystem;
namespace {

// linux/mempolicy.h, which not every system has installed.
constexpr int mpol_default = 0, mpol_preferred = 1;

bool set_cpus(const CpuList& cpus) {
    if (cpus.empty()) return false;
    const auto size = static_cast<std::size_t>(cpus.back()) + 1;
    cpu_set_t* const set = CPU_ALLOC(size);
    if (set == nullptr) return false;
    const std::size_t bytes = CPU_ALLOC_SIZE(size);
    CPU_ZERO_S(bytes, set);
    for (const int cpu : cpus) CPU_SET_S(static_cast<std::size_t>(cpu), bytes, set);
    const bool done = ::sched_setaffinity(0, bytes, set) == 0;
    CPU_FREE(set);
    return done;
}

bool prefer_memory_of(int node) {
    constexpr int bits = 8 * sizeof(unsigned long);
    std::vector<unsigned long> mask(static_cast<std::size_t>(node / bits) + 1, 0);
    mask.back() = 1UL << (node % bits);
    // The kernel reads one bit less than the size that it gets.
    return ::syscall(SYS_set_mempolicy, mpol_preferred, mask.data(), mask.size() * bits + 1) == 0;
}

Pin none(std::string reason) {
    return {-1, {}, std::move(reason)};
}

}  // namespace

Pin plan_pin(const std::string& pci, const CpuList& allowed, const fs::path& root) {
    const auto nodes = parse_cpu_list(read_kernel_text(root / "sys/devices/system/node/online").value_or(""));
    if (!nodes || nodes->size() < 2) return none("one NUMA node: not pinned");
    if (pci.empty()) return none("its GPU's PCI address is not known: not pinned");
    const fs::path device = root / "sys/bus/pci/devices" / pci;
    const std::string node_text = read_kernel_text(device / "numa_node").value_or("-1");
    int node = -1;
    std::from_chars(node_text.data(), node_text.data() + node_text.size(), node);
    if (node < 0) return none(cat("GPU ", pci, " names no NUMA node: not pinned"));
    const auto near = parse_cpu_list(read_kernel_text(device / "local_cpulist").value_or(""));
    if (!near || near->empty()) return none(cat("GPU ", pci, " names no CPUs of NUMA node ", node, ": not pinned"));
    CpuList cpus = common_cpus(*near, allowed);
    if (cpus.empty())
        return none(cat("none of NUMA node ", node, "'s CPUs ", format_cpu_list(*near), " is among the allowed ",
                        format_cpu_list(allowed), ": not pinned"));
    std::string reason = cat("GPU ", pci, ", NUMA node ", node, ", CPUs ", format_cpu_list(cpus));
    return {node, std::move(cpus), std::move(reason)};
}

ScopedPin::ScopedPin(const Pin& pin) {
    if (pin.node < 0) return;
    const CpuList before = allowed_cpus();
    if (!before.empty() && set_cpus(pin.cpus)) {
        before_ = before;
    } else {
        problem_ = cat("CPUs: ", std::strerror(errno));
    }
    int policy = mpol_default;
    if (::syscall(SYS_get_mempolicy, &policy, nullptr, 0, nullptr, 0) == 0 && policy != mpol_default)
        return;  // numactl's, the user's
    memory_set_ = prefer_memory_of(pin.node);
    if (!memory_set_) problem_ += cat(problem_.empty() ? "" : "; ", "memory: ", std::strerror(errno));
}

ScopedPin::~ScopedPin() {
    if (!before_.empty()) set_cpus(before_);
    if (memory_set_) ::syscall(SYS_set_mempolicy, mpol_default, nullptr, 0);
}

}  // namespace unsloth::app
