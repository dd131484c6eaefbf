#include "unsloth/core/host.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>

#include "unsloth/core/error.h"

namespace unsloth {

std::string host_name() {
    char name[256] = {};
    return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown host";
}

std::filesystem::path own_executable() {
    std::error_code failure;
    const auto executable = std::filesystem::read_symlink("/proc/self/exe", failure);
    if (failure) throw Error("process.system-call", cat("cannot find this executable: ", failure.message()));
    return executable;
}

ProcessMemory process_memory() {
    ProcessMemory memory;
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
        for (const auto& [name, bytes] : {std::pair{"VmRSS:", &memory.now}, {"VmHWM:", &memory.peak}})
            if (line.starts_with(name)) *bytes = std::strtoll(line.c_str() + std::strlen(name), nullptr, 10) * 1024;
    return memory;
}

}  // namespace unsloth
