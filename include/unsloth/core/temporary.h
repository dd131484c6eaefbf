// The temporary names under which files and folders are filled, TARGET.tmp-PID, and what killed processes leave of
// them.
#pragma once

#include <filesystem>

namespace unsloth {

/// TARGET.tmp-PID: beside the target, so that a rename can put it there.
std::filesystem::path temporary_name(const std::filesystem::path& target);

/// Whether an open file still has this name: somebody may have removed or replaced it since.
bool is_at(int fd, const std::filesystem::path& path);

/// Marks an open temporary file or folder as one that is being filled, until `fd` is closed or the process ends,
/// however that happens (flock). False when somebody who took it for abandoned has it, or has removed it: then it must
/// be made again. Where the file system has no such locks, true: nobody can take it for abandoned either.
bool claim_temporary(int fd, const std::filesystem::path& path);

/// Removes every TARGET.tmp-N that nobody fills: a process that was killed left it. What cannot be opened, locked or
/// removed stays (a debug line says why): names differ by process, so that it is in nobody's way.
void remove_abandoned(const std::filesystem::path& target);

}  // namespace unsloth
