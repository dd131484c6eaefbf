#include "unsloth/core/path_advice.h"

#include <cerrno>
#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/core/suggest.h"

namespace unsloth {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& folder) {
    constexpr std::size_t most = 10'000;  // a larger folder takes too long to list
    std::vector<std::string> names;
    std::error_code failure;
    for (fs::directory_iterator entry(folder.empty() ? "." : folder, failure), end;
         !failure && entry != end && names.size() < most; entry.increment(failure))
        names.push_back(entry->path().filename().string());
    return names;
}

/// The first folder on the way to `path` that is not there.
fs::path first_missing(const fs::path& path) {
    fs::path place;
    std::error_code ignored;
    for (const fs::path& part : path) {
        place /= part;
        if (!fs::exists(place, ignored)) return place;
    }
    return place;
}

}  // namespace

std::string nearest_path(const fs::path& missing) {
    const fs::path place = first_missing(missing), folder = place.parent_path();
    const fs::path rest = missing.lexically_relative(place);
    constexpr std::size_t longest = 255;  // of what file systems hold
    if (place.filename().native().size() > longest) return {};
    std::vector<std::string> found;
    for (const std::string& name : nearest(place.filename().string(), names_in(folder))) {
        const fs::path meant = rest == "." ? folder / name : folder / name / rest;
        std::error_code ignored;
        if (fs::exists(meant, ignored)) found.push_back(meant.string());
    }
    return did_you_mean(found);
}

std::string advice_on_missing(const fs::path& missing) {
    std::error_code failure;
    if (fs::is_symlink(missing, failure))
        return cat("It is a link to ", fs::read_symlink(missing, failure).string(), ", which is not there.");
    if (const std::string meant = nearest_path(missing); !meant.empty() || missing.is_absolute()) return meant;
    const fs::path here = fs::current_path(failure);
    return failure || missing.empty() ? "" : cat("It was looked for from the current folder, ", here.string(), ".");
}

std::string advice_on_creating(const fs::path& path, int code) {
    switch (code) {
        case ENOENT: {
            std::error_code ignored;
            if (fs::exists(path.parent_path(), ignored)) return "Choose a folder that you may write into.";  // as /proc
            const std::string folder = first_missing(path.parent_path()).string();
            return cat("There is no folder ", folder, ". Create it (mkdir -p ", path.parent_path().string(),
                       "), or choose another.");
        }
        case ENOTDIR:
        case EEXIST:
            return "A file of that name is in the way: choose another name.";
        case EACCES:
        case EPERM:
        case EROFS:
            return "Choose a folder that you may write into.";
        case ENOSPC:
        case EDQUOT:
            return "Free some space, or choose another folder.";
        default:
            return {};
    }
}

ErrorId write_failure(int code) {
    const bool full = code == ENOSPC || code == EDQUOT || code == EFBIG;
    return full ? ErrorId("disk.full") : ErrorId("disk.cannot-write");
}

}  // namespace unsloth
