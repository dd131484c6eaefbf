// Folders checkpoint-N of a run: written completely or not at all, and checked before anything is read from them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "unsloth/core/staged_folder.h"

namespace unsloth::formats {

struct CheckpointFolder {
    std::filesystem::path path;
    int64_t step = 0;
};

/// The folders checkpoint-N of an output folder, by falling step; whether they are whole is not looked at. Those of
/// another user (Folder::owns) are none of this run's: they are not among them.
std::vector<CheckpointFolder> list_checkpoints(const std::filesystem::path& output_dir);
/// Those of another user.
std::vector<CheckpointFolder> foreign_checkpoints(const std::filesystem::path& output_dir);

/// A checkpoint while it is written: a folder under a name of its own next to the final one (StagedFolder).
class CheckpointWriter {
  public:
    /// Makes output_dir/checkpoint-N.tmp-RANDOM, empty. runtime Error when the system refuses. Without commit(),
    /// nothing of it stays.
    CheckpointWriter(const std::filesystem::path& output_dir, int64_t step);

    /// To be filled with files that are flushed (write_file_atomically, SafetensorsWriter), also below folders.
    std::filesystem::path folder() const { return staged_.path(); }
    /// Writes manifest.json (every file's size and hash), flushes, and renames the folder to checkpoint-N; an older one
    /// of that name makes way only then. runtime Error, after which nothing of the new one is left.
    void commit();
    const std::filesystem::path& path() const { return path_; }  ///< of the finished checkpoint

  private:
    std::filesystem::path path_;
    StagedFolder staged_;
};

/// What is wrong with a checkpoint: a file is missing, or its size or content is not what the manifest says; nothing
/// when it is whole. Reads every byte.
std::optional<std::string> find_damage(const std::filesystem::path& checkpoint);
/// The same, and whether the checkpoint belongs to another user.
std::optional<std::string> find_damage_of_own(const std::filesystem::path& checkpoint);

/// Keeps the newest `limit` (0: all) checkpoints, among them in any case the newest and that of step `best`. To be
/// called when the newest is complete. What cannot be removed is a warning.
void remove_old_checkpoints(const std::filesystem::path& output_dir, int64_t limit, std::optional<int64_t> best);

/// Removes what runs that were killed left of checkpoints (checkpoint-N.tmp-RANDOM, checkpoint-N.old-RANDOM). Only for
/// a run that holds the output folder's lock.
void remove_unfinished_checkpoints(const std::filesystem::path& output_dir);

}  // namespace unsloth::formats
