// One process at a time, as huggingface_hub's locks have it.
#pragma once

#include <filesystem>
#include <functional>

namespace unsloth::hub {

/// Holds a lock (flock, as huggingface_hub) on a file, which it makes and leaves. Where the file system has no locks
/// there is none: contents are checked by their hashes, so that two downloads at once cost time only.
class FileLock {
  public:
    /// Waits until it is had; `waiting` is called once when another process has it. Runtime Error when the file cannot
    /// be made; Interrupted when the process was asked to stop.
    FileLock(const std::filesystem::path& path, const std::function<void()>& waiting);
    ~FileLock();
    FileLock(const FileLock&) = delete;
    FileLock& operator=(const FileLock&) = delete;

  private:
    int fd_ = -1;
};

}  // namespace unsloth::hub
