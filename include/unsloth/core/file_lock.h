// A lock that processes wait for.
#pragma once

#include <string>

#include "unsloth/core/folder.h"

namespace unsloth {

/// Locks an open file (flock's LOCK_SH or LOCK_EX). While another process holds it, says once (then `logged` is true)
/// that it waits for that process, "which WHAT"; Interrupted when a signal asks the program to stop. False where the
/// file system has no locks.
bool wait_for_lock(int fd, int kind, const std::string& what, bool& logged);

/// An exclusive lock on a file of its own, held as long as the object lives. Where the file system has no locks, or the
/// file cannot be opened, there is none: what it guards is written under another name and renamed, or checked by its
/// hash, so that only work is done twice.
class FileLock {
  public:
    enum class After { removed, stays };  ///< stays: as huggingface_hub leaves its lock files

    /// Opens or makes the file (see open_own_file) and waits for its current holder, as wait_for_lock.
    FileLock(Folder folder, std::string name, Owner owner, After after, const std::string& what);
    FileLock(const FileLock&) = delete;
    FileLock& operator=(const FileLock&) = delete;
    ~FileLock();

    /// Why the file could not be opened (errno); 0: it could.
    int failure() const { return failure_; }

  private:
    Folder folder_;
    std::string name_;
    After after_;
    int failure_ = 0;
    Descriptor file_;  ///< only while it is locked
};

}  // namespace unsloth
