#include "unsloth/core/temporary.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"
#include "unsloth/core/path_advice.h"

namespace unsloth {
namespace {

namespace fs = std::filesystem;

constexpr const char* mark = "tmp";
constexpr int most_attempts = 100;

bool is_temporary_of(const std::string& name, const std::string& target) {
    const std::string begin = target + "." + mark + "-";
    return name.starts_with(begin) && name.size() > begin.size() &&
           name.find_first_not_of("0123456789abcdef", begin.size()) == std::string::npos;
}

/// `target`: what the user named, of which the temporary one is no concern of his.
[[noreturn]] void refuse(const fs::path& target, const std::string& reason, int code = 0) {
    throw runtime_failure(cat("cannot create ", target.string(), ": ", reason), advice_on_creating(target, code));
}

void require_replaceable(const fs::path& target) {
    if (struct stat status{}; ::stat(target.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
        refuse(target, S_ISDIR(status.st_mode) ? "it is a folder" : "it is a FIFO or a device, not a regular file");
}

}  // namespace

fs::path name_beside(const fs::path& target, const char* word) {
    uint64_t number = 0;
    UNSLOTH_CHECK(::getrandom(&number, sizeof number, 0) == sizeof number, "getrandom: ", std::strerror(errno));
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(number));
    return target.string() + cat(".", word, "-", digits);
}

Temporary::Temporary(const fs::path& target, Kind kind) : kind_(kind) {
    remove_abandoned(target);
    if (kind == Kind::file)
        make_file(target);
    else
        make_folder(target);
    watched_ = Watched(path_);
}

Temporary::~Temporary() {
    if (stays_) return;
    if (kind_ == Kind::file)
        ::unlink(path_.c_str());
    else
        remove_or_warn(path_);
}

void Temporary::make_file(const fs::path& target) {
    require_replaceable(target);
    for (int attempt = 0; attempt < most_attempts; ++attempt) {
        path_ = name_beside(target, mark);
        file_ = Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
        if (!file_.open() && errno != EEXIST) refuse(target, std::strerror(errno), errno);
        if (file_.open() && claim(path_)) return;
    }
    refuse(target, "something removes it again and again");
}

void Temporary::make_folder(const fs::path& target) {
    for (int attempt = 0; attempt < most_attempts; ++attempt) {
        path_ = name_beside(target, mark);
        if (::mkdir(path_.c_str(), 0777) != 0) {
            if (errno == EEXIST) continue;
            refuse(target, std::strerror(errno), errno);
        }
        file_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        if (file_.open() && claim(path_)) return;
    }
    refuse(target, "something removes it again and again");
}

/// False when somebody took it for abandoned before it was marked: he has it, or has removed it. Where the file system
/// has no locks nobody can take it for abandoned either.
bool Temporary::claim(const fs::path& path) {
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
    return is_at(file_.get(), path);
}

void Temporary::rename_to(const fs::path& place) {
    if (::rename(path_.c_str(), place.c_str()) != 0)
        throw runtime_failure(
            cat("cannot rename ", path_.string(), " to ", place.string(), ": ", std::strerror(errno)));
    keep();
}

void Temporary::keep() noexcept {
    stays_ = true;
    watched_ = Watched();
}

bool Temporary::close() noexcept {
    return ::close(file_.release()) == 0;
}

void require_creatable(const fs::path& target) {
    require_replaceable(target);
    const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
    if (struct stat status{}; ::stat(folder.c_str(), &status) == 0 && !S_ISDIR(status.st_mode))
        refuse(target, std::strerror(ENOTDIR), ENOTDIR);
    if (::access(folder.c_str(), W_OK | X_OK) != 0) refuse(target, std::strerror(errno), errno);
}

bool is_at(int fd, const fs::path& path) {
    struct stat opened{}, named{};
    return ::fstat(fd, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

bool remove_unless_held(const fs::path& path) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
    struct stat status{};
    if (!file.open() || ::fstat(file.get(), &status) != 0 || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return false;
    errno = EINVAL;  // this program made no such thing
    if ((!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) || !is_at(file.get(), path)) return false;
    std::error_code failure;
    fs::remove_all(path, failure);
    errno = failure.value();
    return !failure;
}

void remove_abandoned(const fs::path& target) {
    const fs::path folder = target.has_parent_path() ? target.parent_path() : fs::path(".");
    std::vector<fs::path> found;
    std::error_code failure;
    for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end; entry.increment(failure))
        if (is_temporary_of(entry->path().filename().string(), target.filename().string()))
            found.push_back(entry->path());
    for (const fs::path& path : found) {
        if (remove_unless_held(path))
            log::info("removed ", path.string(), ", which a killed process left");
        else
            log::debug(path.string(), " stays: ", std::strerror(errno));
    }
}

}  // namespace unsloth
