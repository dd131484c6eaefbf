#include "unsloth/core/staged_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"

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
    if (!fs::is_directory(target, failure)) throw usage_error(cat(target.string(), " exists and is not a folder"), "Name another folder for the output.");
    if (!fs::is_empty(target, failure)) throw usage_error(cat(target.string(), " exists and is not empty"), "Name another folder for the output, or remove this one first.");
}

}  // namespace

StagedFolder::StagedFolder(const fs::path& target) : target_(plain(target)), temporary_(target_.string() + ".tmp-" + std::to_string(::getpid())) {
    refuse_existing(target_);
    std::error_code failure;
    fs::create_directories(target_.parent_path(), failure);
    if (failure) throw runtime_failure(cat("cannot create ", target_.parent_path().string(), ": ", failure.message()));
    fs::remove_all(temporary_, failure);  // of an earlier process with this number
    if (!fs::create_directory(temporary_, failure)) throw runtime_failure(cat("cannot create ", temporary_.string(), ": ", failure.message()));
}

StagedFolder::~StagedFolder() {
    std::error_code ignored;
    if (!done_) fs::remove_all(temporary_, ignored);
}

void StagedFolder::commit() {
    for (const auto& entry : fs::recursive_directory_iterator(temporary_)) sync_path(entry.path());
    sync_path(temporary_);
    refuse_existing(target_);  // something may have appeared meanwhile; the system itself replaces an empty folder alone
    if (::rename(temporary_.c_str(), target_.c_str()) != 0)
        throw runtime_failure(cat("cannot rename ", temporary_.string(), " to ", target_.string(), ": ", std::strerror(errno)));
    done_ = true;
    sync_path(target_.parent_path());
}

}  // namespace unsloth
