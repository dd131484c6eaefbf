// Where this process runs: its machine's name, its own file.
#pragma once

#include <filesystem>
#include <string>

namespace unsloth {

/// The host name; "unknown host" where the system gives none.
std::string host_name();

/// The file that this process runs. runtime Error where the system does not tell.
std::filesystem::path own_executable();

}  // namespace unsloth
