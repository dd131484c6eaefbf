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

#include "unsloth/core/error.h"
#include "unsloth/core/file_lock.h"
#include "unsloth/core/log.h"
#include "unsloth/core/temporary.h"
#include "unsloth/core/text.h"

namespace unsloth::data {
namespace {

namespace fs = std::filesystem;

struct Candidate {
    timespec used{};
    std::string name;
    int64_t bytes = 0;

    bool operator<(const Candidate& other) const {
        return std::tie(used.tv_sec, used.tv_nsec, name) < std::tie(other.used.tv_sec, other.used.tv_nsec, other.name);
    }
};

}  // namespace

std::optional<CacheFileUse> CacheFileUse::begin(const fs::path& path) {
    const Place place = place_of(path);
    Descriptor file = open_own_file(place.folder, place.name, O_RDONLY);
    if (!file.open()) return std::nullopt;
    // A process that removes a file holds it for a moment only. The inode shows whether the file was removed.
    bool logged = false;
    wait_for_lock(file.get(), LOCK_SH, cat("holds ", path.string()), logged);
    if (!place.folder.has(place.name, file.get())) return std::nullopt;
    (void)::futimens(file.get(), nullptr);  // not ours to change in a cache of somebody else: then its age counts
    CacheFileUse use;
    use.file_ = std::move(file);
    return use;
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

void remove_leftovers(const fs::path& path) {
    const Folder folder = Folder::named(path);
    for (const std::string& name : folder.names()) {
        bool left = name.ends_with(".rows.lock") || name.find(".rows.tmp-") != std::string::npos ||
                    name.find(".values.tmp-") != std::string::npos;
        if (name.starts_with("hash-")) {
            const auto memo = read_memo(folder / name);
            left = !memo || memo->identity != file_identity(memo->file);
        }
        if (left) remove_unless_held(folder, name);
    }
}

void prune_cache(const fs::path& path, int64_t max_bytes) {
    const Folder folder = Folder::named(path);
    std::vector<Candidate> files;
    int64_t bytes = 0;
    for (const std::string& name : folder.names()) {
        const auto status = name.ends_with(".rows") || name.ends_with(".values") ? folder.look(name) : std::nullopt;
        if (!status) continue;
        files.push_back({status->st_mtim, name, status->st_size});
        bytes += status->st_size;
    }
    std::sort(files.begin(), files.end());
    int64_t removed = 0, removed_bytes = 0;
    for (const Candidate& file : files) {
        if (bytes - removed_bytes <= max_bytes) break;
        if (!remove_unless_held(folder, file.name)) continue;
        ++removed;
        removed_bytes += file.bytes;
    }
    if (removed > 0)
        log::info("removed ", removed, " files of rows (", human_size(removed_bytes),
                  "), those not used for longest, from the cache ", path.string(), " (data.cache_max_gib)");
}

}  // namespace unsloth::data
