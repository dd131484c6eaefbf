// A folder of results that appears whole or not at all.
#pragma once

#include <filesystem>

namespace unsloth {

/// Filled under another name beside its own, TARGET.tmp-PID, and renamed at the end. Without commit() or keep() nothing
/// of it stays.
class StagedFolder {
  public:
    /// Makes the folder to fill, and the parents of `target`. Usage Error when `target` exists and is not an empty
    /// folder; runtime Error, with the system's reason, when the folder cannot be made.
    explicit StagedFolder(const std::filesystem::path& target);
    StagedFolder(const StagedFolder&) = delete;
    StagedFolder& operator=(const StagedFolder&) = delete;
    ~StagedFolder();

    const std::filesystem::path& path() const { return temporary_; }  ///< where to write
    const std::filesystem::path& target() const { return target_; }
    /// The folder stays under its temporary name, for someone to look at.
    void keep() noexcept { done_ = true; }
    /// Flushes every file and folder to the medium, renames, and flushes the parent. Runtime Error on failure; then nothing
    /// has the target's name.
    void commit();

  private:
    std::filesystem::path target_, temporary_;
    bool done_ = false;
};

}  // namespace unsloth
