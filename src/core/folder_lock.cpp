#include "unsloth/core/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/host.h"
#include "unsloth/core/log.h"
#include "unsloth/core/temporary.h"

namespace unsloth {
namespace {

std::string own_name() {
    return cat("process ", ::getpid(), " on ", host_name());
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder) : path_(folder / "run.lock") {
    do {
        if (fd_ >= 0) ::close(fd_);
        fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (fd_ < 0)
            throw runtime_failure(cat("cannot write into ", folder.string(), ": ", std::strerror(errno)),
                                  "Choose another training.output_dir.");
        if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
            const int reason = errno;
            if (reason == EWOULDBLOCK) {
                ::close(fd_);
                std::error_code gone;
                const std::string holder = std::filesystem::exists(path_, gone) ? read_file(path_) : "";
                throw usage_error(
                    cat(folder.string(), " is in use by another run", holder.empty() ? "" : cat(" (", holder, ")")),
                    "Wait for it, stop it, or choose another training.output_dir.");
            }
            log::warning(path_.string(), ": no lock (", std::strerror(reason),
                         "); nothing keeps a second run out of this folder");
            break;
        }
    } while (!is_at(fd_, path_));  // a run that ended in between took the file away
    const std::string name = own_name();
    if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, name.data(), name.size(), 0) < 0)
        log::debug(path_.string(), ": ", std::strerror(errno));
}

FolderLock::~FolderLock() {
    ::unlink(path_.c_str());
    ::close(fd_);
}

}  // namespace unsloth
