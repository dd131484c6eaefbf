#include "unsloth/core/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"

namespace unsloth {

bool wait_for_lock(int fd, int kind, const std::string& what, bool& logged) {
    while (::flock(fd, kind | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) return false;
        if (!std::exchange(logged, true)) log::info("waiting for another process, which ", what);
        stop_if_interrupted("stopped while waiting for another process");
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return true;
}

FileLock::FileLock(Folder folder, std::string name, Owner owner, After after, const std::string& what)
    : folder_(std::move(folder)), name_(std::move(name)), after_(after), failure_(folder_.failure()) {
    if (!folder_.open()) return;
    for (bool logged = false;;) {
        Descriptor file = open_own_file(folder_, name_, O_RDWR | O_CREAT, owner);
        if (!file.open()) {
            failure_ = errno;
            return;
        }
        if (!wait_for_lock(file.get(), LOCK_EX, what, logged)) return;
        if (!folder_.has(name_, file.get())) continue;  // its holder removed it: the next one is another file
        file_ = std::move(file);
        return;
    }
}

FileLock::~FileLock() {
    if (file_.open() && after_ == After::removed) (void)folder_.remove(name_);
}

}  // namespace unsloth
