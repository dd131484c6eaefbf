#include "unsloth/core/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "unsloth/core/error.h"
#include "unsloth/core/folder.h"
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
    throw Error("disk.foreign-file", cat(path.string(), " ", what, ": this program keeps a file of its own there"),
                "Somebody else may have put it there. Look at it and remove it, or choose another folder.");
}

/// Why a file that is open is none of this program's own, or an empty text.
std::string objection(const Folder& folder, const struct stat& status, Owner allowed) {
    if (!S_ISREG(status.st_mode)) return cat("is ", kind_of(status.st_mode));
    if (status.st_nlink > 1) return "has another name too (a hard link)";
    if (allowed == Owner::anyone || folder.owns(status)) return {};
    return cat("belongs to another user (number ", status.st_uid, ")");
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
        throw Error("disk.cannot-read",
                    cat("cannot open ", path.string(), ": ",
                        reason == ENXIO ? "not a regular file, but a socket or a device" : std::strerror(reason)),
                    reason == ENOENT ? advice_on_missing(path) : "");
    }
    if (!S_ISREG(status.st_mode))
        throw Error("disk.not-a-file",
                    cat("cannot open ", path.string(), ": not a regular file, but ", kind_of(status.st_mode)));
    return file;
}

Descriptor open_own_file(const Folder& folder, const std::string& name, int flags, Owner owner) {
    const int careful = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    const mode_t mode = owner == Owner::ours ? 0644 : 0666;
    // What was made just now is this user's, whatever owner a network file system reports.
    if ((flags & O_CREAT) != 0) {
        Descriptor made(::openat(folder.fd(), name.c_str(), flags | O_EXCL | careful, mode));
        if (made.open() || errno != EEXIST) return made;
    }
    Descriptor file(::openat(folder.fd(), name.c_str(), flags | careful, mode));
    struct stat status{};
    if (!file.open()) {
        const int reason = errno;
        // A link is ELOOP, a FIFO without a reader or a socket ENXIO, a folder that is to be written EISDIR.
        const bool in_the_way = reason == ELOOP || reason == ENXIO || reason == EISDIR;
        if (const auto entry = in_the_way ? folder.look(name) : std::nullopt; entry && !S_ISREG(entry->st_mode))
            refuse_planted(folder / name, cat("is ", kind_of(entry->st_mode)));
        errno = reason;
        return file;
    }
    if (::fstat(file.get(), &status) != 0) return Descriptor();
    if (const std::string what = objection(folder, status, owner); !what.empty()) refuse_planted(folder / name, what);
    return file;
}

Descriptor open_own_file(const std::filesystem::path& path, int flags, Owner owner) {
    const Place place = place_of(path);
    if (place.folder.open()) return open_own_file(place.folder, place.name, flags, owner);
    errno = place.folder.failure();
    return Descriptor();
}

}  // namespace unsloth
