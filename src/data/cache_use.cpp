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
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/temporary.h"

namespace unsloth::data {
namespace {

namespace fs = std::filesystem;

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
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
    return file.open() && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0 && is_at(file.get(), path) &&
           ::unlink(path.c_str()) == 0;
}

/// Locks an open file (flock: LOCK_SH, LOCK_EX), and says `what` once when that means waiting for another process;
/// Interrupted when a signal asks the program to stop. False where the file system has no locks.
bool wait_for_lock(int fd, int kind, const std::string& what, bool& told) {
    while (::flock(fd, kind | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) return false;
        if (!std::exchange(told, true)) log::info("waiting for another process, which ", what);
        stop_if_interrupted("stopped while waiting for another process");
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return true;
}

}  // namespace

std::optional<CacheFileUse> CacheFileUse::begin(const fs::path& path) {
    Descriptor file = open_own_file(path, O_RDONLY);
    if (!file.open()) return std::nullopt;
    // Whoever removes a file holds it for a moment only, and for a file that was removed the inode tells.
    bool told = false;
    wait_for_lock(file.get(), LOCK_SH, cat("holds ", path.string()), told);
    if (!is_at(file.get(), path)) return std::nullopt;
    (void)::futimens(file.get(), nullptr);  // not ours to change in a cache of somebody else: then its age counts
    CacheFileUse use;
    use.file_ = std::move(file);
    return use;
}

CacheLock::CacheLock(const fs::path& path) : path_(path.string() + ".lock") {
    for (bool told = false;;) {
        Descriptor file = open_own_file(path_, O_RDWR | O_CREAT);
        if (!file.open() ||
            !wait_for_lock(file.get(), LOCK_EX, cat("encodes the same rows (", path_.string(), ")"), told))
            return;
        if (!is_at(file.get(), path_)) continue;  // whoever held it removed it: the next one is another file
        file_ = std::move(file);
        return;
    }
}

CacheLock::~CacheLock() {
    if (file_.open()) ::unlink(path_.c_str());
}

std::string file_identity(const fs::path& file) {
    struct stat status{};
    if (::stat(file.c_str(), &status) != 0) return {};
    return cat(status.st_dev, " ", status.st_ino, " ", status.st_size, " ", status.st_mtim.tv_sec, " ",
               status.st_mtim.tv_nsec, " ", status.st_ctim.tv_sec, " ", status.st_ctim.tv_nsec);
}

std::optional<HashMemo> read_memo(const fs::path& memo) {
    constexpr std::size_t digits = 32;
    const Descriptor file = open_own_file(memo, O_RDONLY);
    if (!file.open()) return std::nullopt;
    std::string text(std::size_t{16} << 10, '\0');  // a path is shorter
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::pread(file.get(), text.data(), text.size(), 0))));
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
            if (!memo || memo->identity != file_identity(memo->file)) remove_unused(file);  // unless being written
        }
    }
}

void prune_cache(const fs::path& folder, int64_t max_bytes) {
    std::vector<Candidate> files;
    int64_t bytes = 0;
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder, none)) {
        struct stat status{};
        if (entry.path().extension() != ".rows" || ::lstat(entry.path().c_str(), &status) != 0) continue;
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
