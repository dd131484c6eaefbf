#include "hub/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"

namespace unsloth::hub {

FileLock::FileLock(const std::filesystem::path& path, const std::function<void()>& waiting) {
    std::error_code failure;
    std::filesystem::create_directories(path.parent_path(), failure);
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0)
        throw runtime_failure(
            cat("cannot write into the Hugging Face cache: ", path.string(), ": ", std::strerror(errno)),
            "HF_HOME names the folder of the cache.");
    bool told = false;
    while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EINTR) continue;
        if (errno != EWOULDBLOCK) {
            log::debug(path.string(), ": no lock: ", std::strerror(errno));
            return;
        }
        if (!told) waiting();
        told = true;
        stop_if_interrupted();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
}

FileLock::~FileLock() {
    ::close(fd_);
}

}  // namespace unsloth::hub
