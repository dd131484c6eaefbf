// One run an output folder.
#pragma once

#include <filesystem>

#include "unsloth/core/open_file.h"

namespace unsloth {

/// Holds a folder for this process as long as the object lives, by a lock on the file `run.lock` in it (flock: the
/// system gives it up when the process ends, however that happens, so that a lock is never stale, whatever a killed run
/// left of the file). usage Error naming the other's host and process when the folder is taken; see open_own_file for a
/// `run.lock` that somebody planted. Where the file system
/// has no locks there is a warning, and no lock.
class FolderLock {
  public:
    explicit FolderLock(const std::filesystem::path& folder);
    ~FolderLock();
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;

  private:
    std::filesystem::path path_;
    Descriptor file_;
};

}  // namespace unsloth
