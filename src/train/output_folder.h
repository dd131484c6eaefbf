// What a run's output folder must be before the run takes it, and what a new run removes there.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "unsloth/config/config.h"

namespace unsloth::train {

/// usage Error when the run would write over what it reads: `model` is the base's folder. Folders and files are
/// compared as the system sees them, whatever links lead there.
void require_own_output(const config::Config& config, const std::filesystem::path& model);

/// What FolderLock and the first file of a run would find wrong with the folder, without making anything. runtime Error
/// where nothing can be written, usage Error while another run has it.
void require_usable(const std::filesystem::path& output_dir);

/// Whether the folder holds a result that the new run is to replace, or the beginning of one, which a killed run left.
/// usage Error where it may not (training.overwrite_output_dir), and for a file that the run would write over and that
/// is no result.
bool require_replaceable(const config::Config& config);

/// What a new run removes before it begins: the checkpoints that are there, and the records of their run. Weights stay
/// until it has its own.
void remove_state(const std::filesystem::path& output_dir);
/// The bytes that this frees.
int64_t state_bytes(const std::filesystem::path& output_dir);

/// Files of a result: weights, their configurations and the tokenizer's, by what the system calls them.
struct ResultFile {
    std::filesystem::path name;
    ino_t inode = 0;
};
std::vector<ResultFile> result_files(const std::filesystem::path& output_dir);
/// Removes those of `before` that a new result, which was written since, did not replace.
void remove_stale(const std::filesystem::path& output_dir, const std::vector<ResultFile>& before);

}  // namespace unsloth::train
