// Which memory is near a device, on machines with several NUMA nodes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <set>
#include <string>

namespace unsloth {

/// The node that the PCI device of this address ("0000:17:00.0", in any case) is attached to; nullopt where the machine
/// has one node, or does not say. `root`: the parent of /sys.
std::optional<int> numa_node_of(std::string pci, const std::filesystem::path& root = "/");

/// Pages of [data, data + bytes), which begins at a page, come from this node while it has some, or from several in
/// turns, whichever thread touches them first; those that are there stay. Returns whether it is so: not where none is
/// named, where the process has a policy of its own (numactl), or the system allows none.
bool use_numa_nodes(void* data, std::size_t bytes, const std::set<int>& nodes);

}  // namespace unsloth
