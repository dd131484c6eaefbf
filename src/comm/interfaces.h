// The network interfaces that NCCL is set to use.
#pragma once

#include <string>
#include <vector>

namespace unsloth::comm {

/// Whether NCCL_SOCKET_IFNAME's `value` leaves one of these names: a list of beginnings, or after '=' of whole names;
/// '^' in front excludes them.
bool leaves_an_interface(const std::string& value, const std::vector<std::string>& names);

/// usage Error where NCCL_SOCKET_IFNAME leaves none of this machine's.
void require_interfaces();

/// The text of a c10d message about NCCL, on one line.
std::string nccl_reason(const std::string& message);
/// What to look at: the settings of NCCL that are in force.
std::string nccl_advice();

}  // namespace unsloth::comm
