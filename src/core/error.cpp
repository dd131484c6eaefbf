#include "unsloth/core/error.h"

namespace unsloth {

void check_failed(const char* file, int line, const char* condition, const std::string& detail) {
    throw CheckError(cat(file, ":", line, ": check failed: ", condition, detail.empty() ? "" : ": ", detail));
}

}  // namespace unsloth
