#include "unsloth/core/host.h"

#include <unistd.h>

#include <system_error>

#include "unsloth/core/error.h"

namespace unsloth {

std::string host_name() {
    char name[256] = {};
    return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown host";
}

std::filesystem::path own_executable() {
    std::error_code failure;
    const auto executable = std::filesystem::read_symlink("/proc/self/exe", failure);
    if (failure) throw runtime_failure(cat("cannot find this executable: ", failure.message()));
    return executable;
}

}  // namespace unsloth
