// A folder of results that appears whole or not at all.
#pragma once

#include <filesystem>
#include <string>

namespace unsloth {

/// Filled under another name beside its own, TARGET.tmp-PID, and renamed at the end. Without commit() or keep_as() nothing
/// of it stays; when the process is killed, until the next StagedFolder of that target.
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
    /// The folder stays, for someone to look at, as TARGET.WORD-PID, which is returned; under its temporary name where it
    /// cannot be renamed.
    std::filesystem::path keep_as(const std::string& word);
    /// Flushes every file and folder to the medium, renames, and flushes the parent. Runtime Error on failure; then nothing
    /// has the target's name.
    void commit();

  private:
    void create();
    void let_go() noexcept;  ///< of the claim

    std::filesystem::path target_, temporary_;
    int fd_ = -1;  ///< of the temporary folder, claimed; -1: not there any more
};

}  // namespace unsloth
