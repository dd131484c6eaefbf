#include "unsloth/core/temporary.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "unsloth/core/error.h"
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
[[noreturn]] void refuse_to_create(const fs::path& target, const std::string& reason, int code = 0) {
    throw Error(write_failure(code), cat("cannot create ", target.string(), ": ", reason),
                advice_on_creating(target, code));
}

void require_replaceable(const fs::path& target) {
    if (struct stat status{}; ::stat(target.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
        refuse_to_create(target,
                         S_ISDIR(status.st_mode) ? "it is a folder" : "it is a FIFO or a device, not a regular file");
}

}  // namespace

std::string sibling_name(const std::string& target, const char* word) {
    uint64_t number = 0;
    UNSLOTH_CHECK(::getrandom(&number, sizeof number, 0) == sizeof number, "getrandom: ", std::strerror(errno));
    char digits[17];
    std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(number));
    return cat(target, ".", word, "-", digits);
}

/// Names the target: the temporary one is no concern of the user's.
void Temporary::refuse(const std::string& reason, int code) const {
    refuse_to_create(target_.path(), reason, code);
}

Temporary::Temporary(Place target, Kind kind) : kind_(kind), target_(std::move(target)) {
    if (!folder().open()) refuse(std::strerror(folder().failure()), folder().failure());
    remove_abandoned(target_);
    if (kind == Kind::file)
        make_file();
    else
        make_folder();
    watched_ = Watched(path());
}

Temporary::~Temporary() {
    if (stays_) return;
    if (kind_ == Kind::file)
        ::unlinkat(folder().fd(), name_.c_str(), 0);
    else
        folder().remove_or_warn(name_);
}

void Temporary::make_file() {
    if (struct stat status{};
        ::fstatat(folder().fd(), target_.name.c_str(), &status, 0) == 0 && !S_ISREG(status.st_mode))
        refuse(S_ISDIR(status.st_mode) ? "it is a folder" : "it is a FIFO or a device, not a regular file");
    for (int attempt = 0; attempt < most_attempts; ++attempt) {
        name_ = sibling_name(target_.name, mark);
        const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
        file_ = Descriptor(::openat(folder().fd(), name_.c_str(), flags, 0644));
        if (!file_.open() && errno != EEXIST) refuse(std::strerror(errno), errno);
        if (file_.open() && claim()) return;
    }
    refuse("something removes it again and again");
}

void Temporary::make_folder() {
    for (int attempt = 0; attempt < most_attempts; ++attempt) {
        name_ = sibling_name(target_.name, mark);
        if (::mkdirat(folder().fd(), name_.c_str(), 0777) != 0) {
            if (errno == EEXIST) continue;
            refuse(std::strerror(errno), errno);
        }
        file_ = Descriptor(::openat(folder().fd(), name_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        if (file_.open() && claim()) return;
    }
    refuse("something removes it again and again");
}

/// False when another process took it for abandoned before it was marked: that one has it, or has removed it. Where the
/// file system has no locks, no process can take it for abandoned either.
bool Temporary::claim() {
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
    return folder().has(name_, file_.get());
}

void Temporary::rename_to_target() {
    if (!folder().rename(name_, target_.name))
        throw Error("disk.cannot-write", cat("cannot rename ", path().string(), " to ", target_.path().string(), ": ",
                                             std::strerror(errno)));
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
        refuse_to_create(target, std::strerror(ENOTDIR), ENOTDIR);
    if (::access(folder.c_str(), W_OK | X_OK) != 0) refuse_to_create(target, std::strerror(errno), errno);
}

bool remove_unless_held(const Folder& folder, const std::string& name) {
    const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
    const Descriptor file(::openat(folder.fd(), name.c_str(), flags));
    struct stat status{};
    if (!file.open() || ::fstat(file.get(), &status) != 0 || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return false;
    errno = EINVAL;  // this program made no such thing
    const bool possible = S_ISREG(status.st_mode) || S_ISDIR(status.st_mode);
    if (!possible || !folder.owns(status) || !folder.has(name, file.get())) return false;
    return folder.remove(name);
}

void remove_abandoned(const Place& target) {
    for (const std::string& name : target.folder.names()) {
        if (!is_temporary_of(name, target.name)) continue;
        if (remove_unless_held(target.folder, name))
            log::info("removed ", (target.folder / name).string(), ", which a killed process left");
        else
            log::debug((target.folder / name).string(), " stays: ", std::strerror(errno));
    }
}

}  // namespace unsloth
