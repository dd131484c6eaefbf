#include "unsloth/core/temporary.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"

namespace unsloth {
namespace {

namespace fs = std::filesystem;

constexpr const char* mark = ".tmp-";

bool is_temporary_of(const std::string& name, const std::string& target) {
    const std::string begin = target + mark;
    return name.starts_with(begin) && name.size() > begin.size() &&
           name.find_first_not_of("0123456789", begin.size()) == std::string::npos;
}

void remove_if_abandoned(const fs::path& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || ::flock(fd, LOCK_EX | LOCK_NB) != 0) {
        log::debug(path.string(), " stays: ", std::strerror(errno));
    } else {
        std::error_code failure;
        fs::remove_all(path, failure);
        if (failure)
            log::debug(path.string(), " stays: ", failure.message());
        else
            log::info("removed ", path.string(), ", which a killed process left");
    }
    if (fd >= 0) ::close(fd);
}

}  // namespace

fs::path temporary_name(const fs::path& target) {
    return target.string() + mark + std::to_string(::getpid());
}

bool is_at(int fd, const fs::path& path) {
    struct stat opened{}, named{};
    return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

bool claim_temporary(int fd, const fs::path& path) {
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
    return is_at(fd, path);
}

void remove_abandoned(const fs::path& target) {
    const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
    std::vector<fs::path> found;
    std::error_code failure;
    for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end; entry.increment(failure))
        if (is_temporary_of(entry->path().filename().string(), target.filename().string()))
            found.push_back(entry->path());
    for (const fs::path& path : found) remove_if_abandoned(path);
}

}  // namespace unsloth
