#include "unsloth/core/host.h"

#include <unistd.h>

namespace unsloth {

std::string host_name() {
    char name[256] = {};
    return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown host";
}

}  // namespace unsloth
