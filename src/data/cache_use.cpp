#include "data/cache_use.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <tuple>
#include <utility>
#include <vector>

#include "unsloth/core/log.h"

namespace unsloth {
namespace {

namespace fs = std::filesystem;

class Descriptor {
  public:
    explicit Descriptor(const fs::path& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    int get() const { return fd_; }
    int release() { return std::exchange(fd_, -1); }

  private:
    int fd_;
};

/// Whether `path` still names the file that is open: it may have been removed, or replaced, before it was locked.
bool names_file(const fs::path& path, int fd) {
    struct stat opened{}, named{};
    return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

struct Candidate {
    timespec used{};
    fs::path path;
    int64_t bytes = 0;

    bool operator<(const Candidate& other) const {
        return std::tie(used.tv_sec, used.tv_nsec, path) < std::tie(other.used.tv_sec, other.used.tv_nsec, other.path);
    }
};

/// Only a file that nobody holds can be locked exclusively; a lock that fails for any reason leaves the file.
bool remove_unused(const fs::path& path) {
    const Descriptor file(path);
    return file.get() >= 0 && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0 && names_file(path, file.get()) &&
           ::unlink(path.c_str()) == 0;
}

}  // namespace

CacheFileUse::CacheFileUse(CacheFileUse&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

CacheFileUse& CacheFileUse::operator=(CacheFileUse&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
}

CacheFileUse::~CacheFileUse() {
    if (fd_ >= 0) ::close(fd_);
}

std::optional<CacheFileUse> CacheFileUse::begin(const fs::path& path) {
    Descriptor file(path);
    if (file.get() < 0) return std::nullopt;
    // Whoever removes a file holds it for a moment only, and for a file that was removed the inode tells.
    while (::flock(file.get(), LOCK_SH) != 0 && errno == EINTR) {
    }
    if (!names_file(path, file.get())) return std::nullopt;
    (void)::futimens(file.get(), nullptr);  // not ours to change in a cache of somebody else: then its age counts
    CacheFileUse use;
    use.fd_ = file.release();
    return use;
}

void prune_cache(const fs::path& folder, int64_t max_bytes) {
    std::vector<Candidate> files;
    int64_t bytes = 0;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder, none)) {
        struct stat status{};
        if (entry.path().extension() != ".rows" || ::stat(entry.path().c_str(), &status) != 0) continue;
        files.push_back({status.st_mtim, entry.path(), status.st_size});
        bytes += status.st_size;
    }
    std::sort(files.begin(), files.end());
    int64_t removed = 0, removed_bytes = 0;
    for (const Candidate& file : files) {
        if (bytes - removed_bytes <= max_bytes) break;
        if (!remove_unused(file.path)) continue;
        ++removed;
        removed_bytes += file.bytes;
    }
    if (removed > 0)
        log::info("removed ", removed, " files of encoded rows (", removed_bytes >> 20,
                  " MiB), those not used for longest, from the cache ", folder.string(), " (data.cache_max_gib)");
}

}  // namespace unsloth
