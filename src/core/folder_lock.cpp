#include "unsloth/core/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "unsloth/core/error.h"
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
        file_ = open_own_file(path_, O_RDWR | O_CREAT);
        if (!file_.open())
            throw runtime_failure(cat("cannot write into ", folder.string(), ": ", std::strerror(errno)),
                                  "Choose another training.output_dir.");
        if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
            const int reason = errno;
            if (reason == EWOULDBLOCK) {
                char holder[256];
                const ssize_t size = ::pread(file_.get(), holder, sizeof holder, 0);
                throw usage_error(cat(folder.string(), " is in use by another run",
                                      size <= 0 ? "" : cat(" (", std::string(holder, static_cast<size_t>(size)), ")")),
                                  "Wait for it, stop it, or choose another training.output_dir.");
            }
            log::warning(path_.string(), ": no lock (", std::strerror(reason),
                         "); nothing keeps a second run out of this folder");
            break;
        }
    } while (!is_at(file_.get(), path_));  // a run that ended in between took the file away
    const std::string name = own_name();
    if (::ftruncate(file_.get(), 0) != 0 || ::pwrite(file_.get(), name.data(), name.size(), 0) < 0)
        log::debug(path_.string(), ": ", std::strerror(errno));
}

FolderLock::~FolderLock() {
    ::unlink(path_.c_str());
}

}  // namespace unsloth
