#include "unsloth/core/staged_folder.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/path_advice.h"

namespace unsloth {
namespace {

namespace fs = std::filesystem;

/// Where a folder that the user named is to be: with links resolved, and absolute. No slash is at the end, since that
/// would leave no name to add to. The folders above it are made.
Place made_place(const fs::path& path) {
    constexpr int most_links = 40;  // as Linux
    fs::path whole = fs::absolute(path);
    for (int links = 0;; ++links) {
        if (!whole.has_filename()) whole = whole.parent_path();
        const Folder folder = Folder::made(whole.parent_path());
        if (!folder.open())
            throw Error("disk.cannot-write",
                        cat("cannot create ", folder.path().string(), ": ", std::strerror(folder.failure())),
                        advice_on_creating(folder.path(), folder.failure()));
        const std::string name = whole.filename().string();
        const auto target = links < most_links ? folder.link_target(name) : std::nullopt;
        if (!target) return {folder, name};
        whole = whole.parent_path() / *target;
    }
}

void refuse_existing(const Place& place) {
    const auto entry = place.folder.look(place.name);
    if (!entry) return;
    const fs::path target = place.path();
    if (!S_ISDIR(entry->st_mode))
        throw Error("output.exists", cat(target.string(), " exists and is not a folder"),
                    "Name another folder for the output.");
    std::error_code failure;
    if (!fs::is_empty(target, failure))
        throw Error("output.exists", cat(target.string(), " exists and is not empty"),
                    "Name another folder for the output, or remove this one first.");
}

}  // namespace

StagedFolder::StagedFolder(const fs::path& target) : target_(made_place(target)), replaces_(false) {
    refuse_existing(target_);
    temporary_.emplace(target_, Temporary::Kind::folder);
}

StagedFolder::StagedFolder(Folder folder, const std::string& name) : target_{std::move(folder), name}, replaces_(true) {
    temporary_.emplace(target_, Temporary::Kind::folder);
}

fs::path StagedFolder::keep_as(const std::string& word) {
    const std::string name = cat(target_.name, ".", word, "-", ::getpid());
    const fs::path filled = path();
    target_.folder.remove_or_warn(name);  // of an earlier process with this number
    temporary_->keep();
    temporary_->close();
    return target_.folder.rename(filled.filename(), name) ? target_.folder / name : filled;
}

void StagedFolder::commit() {
    for (const auto& entry : fs::recursive_directory_iterator(path()))
        if (entry.is_directory()) sync_path(entry.path());
    sync_path(path());
    rename_into_place();
}

void StagedFolder::rename_into_place() {
    const Folder& folder = target_.folder;
    const std::string old = sibling_name(target_.name, "old");
    const auto there = replaces_ ? folder.look(target_.name) : std::nullopt;
    if (there && !folder.owns(*there))
        throw Error(
            "disk.foreign-file",
            cat("cannot replace ", target().string(), ": it belongs to another user (number ", there->st_uid, ")"),
            "Somebody else put it there. Look at it, or choose another folder.");
    if (there && !folder.rename(target_.name, old))
        throw Error("disk.cannot-write",
                    cat("cannot rename ", target().string(), " to ", old, ": ", std::strerror(errno)));
    // Something may have appeared meanwhile; the system itself replaces an empty folder alone.
    if (!there) refuse_existing(target_);
    try {
        temporary_->rename_to_target();
    } catch (...) {
        if (there) (void)folder.rename(old, target_.name);
        throw;
    }
    temporary_->close();
    folder.sync();
    if (there) folder.remove_or_warn(old);
}

}  // namespace unsloth
