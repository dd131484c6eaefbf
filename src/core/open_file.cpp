#include "unsloth/core/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "unsloth/core/error.h"
#include "unsloth/core/path_advice.h"

namespace unsloth {
namespace {

const char* kind_of(mode_t mode) {
    if (S_ISFIFO(mode)) return "a FIFO";
    if (S_ISDIR(mode)) return "a folder";
    if (S_ISSOCK(mode)) return "a socket";
    if (S_ISLNK(mode)) return "a symbolic link";
    return "a device";
}

[[noreturn]] void refuse_planted(const std::filesystem::path& path, const std::string& what) {
    throw runtime_failure(cat(path.string(), " ", what, ": this program keeps a file of its own there"),
                          "Somebody else may have put it there. Look at it and remove it, or choose another folder.");
}

/// Why a file that is open is none of this program's own, or an empty text.
std::string objection(const std::filesystem::path& path, const struct stat& status, Owner allowed) {
    if (!S_ISREG(status.st_mode)) return cat("is ", kind_of(status.st_mode));
    if (status.st_nlink > 1) return "has another name too (a hard link)";
    if (allowed == Owner::anyone) return {};
    struct stat folder{};
    const auto parent = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
    const uid_t owner = status.st_uid;
    if (owner == ::geteuid() || owner == 0 || (::stat(parent.c_str(), &folder) == 0 && owner == folder.st_uid))
        return {};
    return cat("belongs to another user (number ", owner, ")");
}

}  // namespace

void Descriptor::close() noexcept {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Descriptor open_to_read(const std::filesystem::path& path) {
    Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    struct stat status{};
    if (!file.open() || ::fstat(file.get(), &status) != 0) {
        const int reason = errno;
        throw input_error(cat("cannot open ", path.string(), ": ",
                              reason == ENXIO ? "not a regular file, but a socket or a device" : std::strerror(reason)),
                          reason == ENOENT ? advice_on_missing(path) : "");
    }
    if (!S_ISREG(status.st_mode))
        throw input_error(cat("cannot open ", path.string(), ": not a regular file, but ", kind_of(status.st_mode)));
    return file;
}

Descriptor open_own_file(const std::filesystem::path& path, int flags, Owner owner) {
    const int careful = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    const mode_t mode = owner == Owner::ours ? 0644 : 0666;
    // What was made just now is nobody else's, whatever a network file system calls its owner.
    if ((flags & O_CREAT) != 0) {
        Descriptor made(::open(path.c_str(), flags | O_EXCL | careful, mode));
        if (made.open() || errno != EEXIST) return made;
    }
    Descriptor file(::open(path.c_str(), flags | careful, mode));
    struct stat status{};
    if (!file.open()) {
        const int reason = errno;
        // A link is ELOOP, a FIFO that nobody reads or a socket ENXIO, a folder that is to be written EISDIR.
        if ((reason == ELOOP || reason == ENXIO || reason == EISDIR) && ::lstat(path.c_str(), &status) == 0 &&
            !S_ISREG(status.st_mode))
            refuse_planted(path, cat("is ", kind_of(status.st_mode)));
        errno = reason;
        return file;
    }
    if (::fstat(file.get(), &status) != 0) return Descriptor();
    if (const std::string what = objection(path, status, owner); !what.empty()) refuse_planted(path, what);
    return file;
}

}  // namespace unsloth
