// A folder of results that appears whole or not at all.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "unsloth/core/temporary.h"

namespace unsloth {

/// Filled under another name next to its own (Temporary), and renamed at the end. Without commit() or keep_as()
/// nothing of it stays; when the process is killed, until the next StagedFolder of that target.
class StagedFolder {
  public:
    /// Makes the folder to fill, and the parents of `target`, which the user named. Usage Error when `target` exists;
    /// but an empty folder makes way. Runtime Error, with the system's reason, when the folder cannot be made.
    explicit StagedFolder(const std::filesystem::path& target);
    /// One of this program's own, which takes the place of what has its name. Runtime Error at commit() where that
    /// belongs to another user.
    StagedFolder(Folder folder, const std::string& name);
    StagedFolder(const StagedFolder&) = delete;
    StagedFolder& operator=(const StagedFolder&) = delete;

    /// Where to write; files are to be flushed by those who write them (AtomicFile, write_file_atomically).
    std::filesystem::path path() const { return temporary_->path(); }
    std::filesystem::path target() const { return target_.path(); }
    /// The folder stays, for someone to look at, as TARGET.WORD-PID, which is returned; under its temporary name where
    /// it cannot be renamed.
    std::filesystem::path keep_as(const std::string& word);
    /// Flushes the folders, renames, and flushes the parent. One that is replaced is TARGET.old-RANDOM until then.
    /// Runtime Error on failure; then the target is what it was, and the destructor removes the new folder.
    void commit();

  private:
    void rename_into_place();

    Place target_;
    bool replaces_;
    std::optional<Temporary> temporary_;  ///< from the constructor on: made when the target was looked at
};

}  // namespace unsloth
