// What this machine is called.
#pragma once

#include <string>

namespace unsloth {

/// The host name; "unknown host" where the system gives none.
std::string host_name();

}  // namespace unsloth
