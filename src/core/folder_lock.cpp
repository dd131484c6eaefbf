#include "unsloth/core/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "unsloth/core/error.h"
#include "unsloth/core/host.h"
#include "unsloth/core/log.h"

namespace unsloth {
namespace {

constexpr const char* lock_name = "run.lock";

std::string own_name() {
    return cat("process ", ::getpid(), " on ", host_name());
}

std::string text_in(int file) {
    char text[256];
    const ssize_t size = ::pread(file, text, sizeof text, 0);
    return size <= 0 ? "" : std::string(text, static_cast<std::size_t>(size));
}

/// False, with errno, when another run has it, or there are no locks. folder_use() has a shared lock for a moment: that
/// one is waited for.
bool take(int file) {
    constexpr int most_looks = 1000;
    for (int looks = 0; looks < most_looks; ++looks) {
        if (::flock(file, LOCK_EX | LOCK_NB) == 0) return true;
        if (errno != EWOULDBLOCK || ::flock(file, LOCK_SH | LOCK_NB) != 0) return false;
        (void)::flock(file, LOCK_UN);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    errno = EWOULDBLOCK;
    return false;
}

[[noreturn]] void refuse_taken(const std::filesystem::path& folder, const std::string& holder) {
    throw Error("output.in-use",
                cat(folder.string(), " is in use by another run", holder.empty() ? "" : cat(" (", holder, ")")),
                "Wait for it, stop it, or choose another training.output_dir.");
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& path) : folder_(Folder::named(path)) {
    do {
        errno = folder_.failure();
        if (folder_.open()) file_ = open_own_file(folder_, lock_name, O_RDWR | O_CREAT);
        if (!file_.open())
            throw Error("disk.cannot-write", cat("cannot write into ", path.string(), ": ", std::strerror(errno)),
                        "Choose another training.output_dir.");
        if (!take(file_.get())) {
            const int reason = errno;
            if (reason == EWOULDBLOCK) refuse_taken(path, text_in(file_.get()));
            log::warning((folder_ / lock_name).string(), ": no lock (", std::strerror(reason),
                         "); nothing keeps a second run out of this folder");
            break;
        }
    } while (!folder_.has(lock_name, file_.get()));  // a run that ended in between took the file away
    const std::string name = own_name();
    if (::ftruncate(file_.get(), 0) != 0 || ::pwrite(file_.get(), name.data(), name.size(), 0) < 0)
        log::debug((folder_ / lock_name).string(), ": ", std::strerror(errno));
}

FolderLock::~FolderLock() {
    (void)folder_.remove(lock_name);
}

FolderUse folder_use(const std::filesystem::path& path) {
    const Folder folder = Folder::named(path);
    const Descriptor file(::openat(folder.fd(), lock_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (!file.open()) return {};
    const std::string holder = text_in(file.get());
    const bool here = holder.ends_with(" on " + host_name());
    if (::flock(file.get(), LOCK_SH | LOCK_NB) == 0) return {FolderUse::State::left, holder, here};
    return {errno == EWOULDBLOCK ? FolderUse::State::held : FolderUse::State::unknown, holder, here};
}

void require_unused(const std::filesystem::path& folder) {
    (void)open_own_file(Folder::named(folder), lock_name, O_RDONLY);  // what somebody planted there is refused
    const FolderUse use = folder_use(folder);
    if (use.state == FolderUse::State::held) refuse_taken(folder, use.holder);
}

}  // namespace unsloth
