#include "unsloth/core/numa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <vector>

namespace unsloth {
namespace {

// linux/mempolicy.h, which not every system has installed.
constexpr int mpol_default = 0, mpol_preferred = 1, mpol_interleave = 3;

}  // namespace

std::optional<int> numa_node_of(std::string pci, const std::filesystem::path& root) {
    std::string nodes;
    std::ifstream(root / "sys/devices/system/node/online") >> nodes;
    if (nodes.find_first_of(",-") == std::string::npos) return std::nullopt;  // "0"
    std::transform(pci.begin(), pci.end(), pci.begin(), [](unsigned char c) { return std::tolower(c); });
    int node = -1;
    if (pci.empty() || !(std::ifstream(root / "sys/bus/pci/devices" / pci / "numa_node") >> node) || node < 0)
        return std::nullopt;
    return node;
}

bool use_numa_nodes(void* data, std::size_t bytes, const std::set<int>& nodes) {
    if (nodes.empty()) return false;
    int policy = mpol_default;
    if (::syscall(SYS_get_mempolicy, &policy, nullptr, 0, nullptr, 0) != 0 || policy != mpol_default) return false;
    constexpr int bits = 8 * sizeof(unsigned long);
    std::vector<unsigned long> mask(static_cast<std::size_t>(*nodes.rbegin() / bits) + 1, 0);
    for (const int node : nodes) mask[static_cast<std::size_t>(node / bits)] |= 1UL << (node % bits);
    // The kernel reads one bit less than the size that it gets.
    return ::syscall(SYS_mbind, data, bytes, nodes.size() == 1 ? mpol_preferred : mpol_interleave, mask.data(),
                     mask.size() * bits + 1, 0) == 0;
}

}  // namespace unsloth
