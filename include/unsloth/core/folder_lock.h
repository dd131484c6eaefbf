// One run an output folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "unsloth/core/folder.h"

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
    Folder folder_;
    Descriptor file_;
};

/// Whether a run has the folder, as its lock says.
struct FolderUse {
    enum class State : uint8_t {
        free,    ///< no process has it
        held,    ///< a run has it
        left,    ///< a run was killed that had it
        unknown  ///< the file system has no locks
    };
    State state = State::free;
    std::string holder;  ///< "process PID on HOST", as the run wrote it
    bool here = false;   ///< that is this machine: of another one the file system may not know the locks
};
FolderUse folder_use(const std::filesystem::path& folder);

/// The usage Error of FolderLock when a run has the folder. Writes nothing.
void require_unused(const std::filesystem::path& folder);

}  // namespace unsloth
