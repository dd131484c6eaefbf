#include "unsloth/core/staged_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/temporary.h"

namespace unsloth {
namespace {

namespace fs = std::filesystem;

/// Absolute and without a slash at the end, which would have no name to add to.
fs::path plain(const fs::path& path) {
    std::error_code failure;
    fs::path result = fs::weakly_canonical(fs::absolute(path), failure);
    if (failure) result = fs::absolute(path).lexically_normal();
    return result.has_filename() ? result : result.parent_path();
}

void refuse_existing(const fs::path& target) {
    std::error_code failure;
    if (!fs::exists(fs::symlink_status(target, failure))) return;
    if (!fs::is_directory(target, failure))
        throw usage_error(cat(target.string(), " exists and is not a folder"), "Name another folder for the output.");
    if (!fs::is_empty(target, failure))
        throw usage_error(cat(target.string(), " exists and is not empty"),
                          "Name another folder for the output, or remove this one first.");
}

void rename_folder(const fs::path& from, const fs::path& to) {
    if (::rename(from.c_str(), to.c_str()) != 0)
        throw runtime_failure(cat("cannot rename ", from.string(), " to ", to.string(), ": ", std::strerror(errno)));
}

}  // namespace

StagedFolder::StagedFolder(const fs::path& target, Existing existing)
    : target_(plain(target)), temporary_(temporary_name(target_)), existing_(existing) {
    if (existing_ == Existing::refuse) refuse_existing(target_);
    std::error_code failure;
    fs::create_directories(target_.parent_path(), failure);
    if (failure) throw runtime_failure(cat("cannot create ", target_.parent_path().string(), ": ", failure.message()));
    remove_abandoned(target_);
    create();
}

void StagedFolder::create() {
    constexpr int most_attempts = 100;
    for (int attempt = 0; attempt < most_attempts; ++attempt) {
        std::error_code failure;
        fs::remove_all(temporary_, failure);  // of an earlier process with this number, where there are no locks
        if (!fs::create_directory(temporary_, failure))
            throw runtime_failure(cat("cannot create ", temporary_.string(), ": ", failure.message()));
        fd_ = ::open(temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd_ >= 0 && claim_temporary(fd_, temporary_)) return;
        let_go();  // another process has just taken it for abandoned, and removes it
        ::usleep(1000);
    }
    throw runtime_failure(cat("cannot create ", temporary_.string(), ": something removes it again and again"));
}

void StagedFolder::let_go() noexcept {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

StagedFolder::~StagedFolder() {
    if (fd_ < 0) return;
    remove_or_warn(temporary_);
    let_go();
}

fs::path StagedFolder::keep_as(const std::string& word) {
    const fs::path place = target_.string() + cat(".", word, "-", ::getpid());
    let_go();
    std::error_code failure;
    fs::remove_all(place, failure);  // of an earlier process with this number
    fs::rename(temporary_, place, failure);
    return failure ? temporary_ : place;
}

void StagedFolder::commit() {
    for (const auto& entry : fs::recursive_directory_iterator(temporary_))
        if (entry.is_directory()) sync_path(entry.path());
    sync_path(temporary_);
    rename_into_place();
}

void StagedFolder::rename_into_place() {
    const fs::path old = target_.string() + cat(".old-", ::getpid());
    const bool replaces = existing_ == Existing::replace && fs::exists(target_);
    if (replaces)
        rename_folder(target_, old);
    else
        refuse_existing(
            target_);  // something may have appeared meanwhile; the system itself replaces an empty folder alone
    try {
        rename_folder(temporary_, target_);
    } catch (...) {
        std::error_code ignored;
        if (replaces) fs::rename(old, target_, ignored);
        throw;
    }
    let_go();
    sync_path(target_.parent_path());
    if (replaces) remove_or_warn(old);
}

}  // namespace unsloth
