#include "data/cache_use.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"

namespace unsloth::data {
namespace {

namespace fs = std::filesystem;

class Descriptor {
  public:
    explicit Descriptor(const fs::path& path, int flags = O_RDONLY)
        : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
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

CacheLock::CacheLock(const fs::path& path) : file_(path.string() + ".lock") {
    bool told = false;
    for (;;) {
        Descriptor file(file_, O_RDWR | O_CREAT);
        if (file.get() < 0) return;
        while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
            if (errno != EWOULDBLOCK && errno != EINTR) return;
            if (!std::exchange(told, true))
                log::info("waiting for another process, which encodes the same rows (", file_.string(), ")");
            if (const int signal = interrupt_requested(); signal != 0)
                throw Interrupted(signal, "stopped while waiting for another process");
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
        if (!names_file(file_, file.get())) continue;  // whoever held it removed it: the next one is another file
        fd_ = file.release();
        return;
    }
}

CacheLock::~CacheLock() {
    if (fd_ < 0) return;
    ::unlink(file_.c_str());
    ::close(fd_);
}

std::string file_identity(const fs::path& file) {
    struct stat status{};
    if (::stat(file.c_str(), &status) != 0) return {};
    return cat(status.st_dev, " ", status.st_ino, " ", status.st_size, " ", status.st_mtim.tv_sec, " ",
               status.st_mtim.tv_nsec, " ", status.st_ctim.tv_sec, " ", status.st_ctim.tv_nsec);
}

std::optional<HashMemo> read_memo(const fs::path& memo) {
    constexpr std::size_t digits = 32;
    std::error_code none;
    if (!fs::is_regular_file(memo, none)) return std::nullopt;
    const std::string text = read_file(memo);
    const std::size_t first = text.find('\n'), second = first == std::string::npos ? first : text.find('\n', first + 1);
    if (first != digits || second == std::string::npos) return std::nullopt;
    return HashMemo{text.substr(0, first), text.substr(first + 1, second - first - 1), text.substr(second + 1)};
}

void remove_leftovers(const fs::path& own) {
    const fs::path folder = own.parent_path();
    std::vector<fs::path> files;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder, none)) files.push_back(entry.path());
    for (const fs::path& file : files)
        if (file.string().ends_with(".rows.lock")) remove_unused(file);
    for (const fs::path& file : files) {
        const std::string name = file.filename().string();
        if (const std::size_t mark = name.find(".rows.tmp-"); mark != std::string::npos) {
            // Whoever is at work on it holds the lock.
            const fs::path made = folder / (name.substr(0, mark) + ".rows");
            if (made == own || !fs::exists(made.string() + ".lock", none)) fs::remove(file, none);
        } else if (name.starts_with("hash-")) {
            const auto memo = read_memo(file);
            if (!memo || memo->identity != file_identity(memo->file)) fs::remove(file, none);
        }
    }
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

}  // namespace unsloth::data
