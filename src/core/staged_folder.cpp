#include "unsloth/core/staged_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/path_advice.h"

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

StagedFolder::StagedFolder(const fs::path& target, Existing existing) : target_(plain(target)), existing_(existing) {
    if (existing_ == Existing::refuse) refuse_existing(target_);
    std::error_code failure;
    fs::create_directories(target_.parent_path(), failure);
    if (failure)
        throw runtime_failure(cat("cannot create ", target_.parent_path().string(), ": ", failure.message()),
                              advice_on_creating(target_.parent_path(), failure.value()));
    temporary_.emplace(target_, Temporary::Kind::folder);
}

fs::path StagedFolder::keep_as(const std::string& word) {
    const fs::path place = target_.string() + cat(".", word, "-", ::getpid());
    std::error_code failure;
    fs::remove_all(place, failure);  // of an earlier process with this number
    temporary_->keep();
    temporary_->close();
    fs::rename(path(), place, failure);
    return failure ? path() : place;
}

void StagedFolder::commit() {
    for (const auto& entry : fs::recursive_directory_iterator(path()))
        if (entry.is_directory()) sync_path(entry.path());
    sync_path(path());
    rename_into_place();
}

void StagedFolder::rename_into_place() {
    const fs::path old = name_beside(target_, "old");
    const bool replaces = existing_ == Existing::replace && fs::exists(target_);
    if (replaces)
        rename_folder(target_, old);
    else
        refuse_existing(
            target_);  // something may have appeared meanwhile; the system itself replaces an empty folder alone
    try {
        temporary_->rename_to(target_);
    } catch (...) {
        std::error_code ignored;
        if (replaces) fs::rename(old, target_, ignored);
        throw;
    }
    temporary_->close();
    sync_path(target_.parent_path());
    if (replaces) remove_or_warn(old);
}

}  // namespace unsloth
