// Where this process runs: its machine's name, its own file, the memory that it holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace unsloth {

/// The host name; "unknown host" where the system gives none.
std::string host_name();

/// The file that this process runs. runtime Error where the system does not tell.
std::filesystem::path own_executable();

/// Bytes of this process in memory, pages of libraries and mapped files included; 0 where the system does not say.
struct ProcessMemory {
    int64_t now = 0, peak = 0;
};
ProcessMemory process_memory();

}  // namespace unsloth
