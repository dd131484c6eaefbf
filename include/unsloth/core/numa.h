// Which memory is near a device, on machines with several NUMA nodes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>

namespace unsloth {

/// The node that the PCI device of this address ("0000:17:00.0", in any case) is attached to; nullopt where the machine
/// has one node, or does not say. `root`: where /sys lies.
std::optional<int> numa_node_of(std::string pci, const std::filesystem::path& root = "/");

/// Pages of [data, data + bytes), which begins at a page, come from this node while it has some, whichever thread
/// touches them first; those that are there stay. Returns whether it is so: not where the process has a policy of its
/// own (numactl), or the system allows none.
bool prefer_numa_node(void* data, std::size_t bytes, int node);

}  // namespace unsloth
