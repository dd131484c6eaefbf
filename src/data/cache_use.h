// Which files of the cache are in use, and the removal of those that are not when the cache grows too large.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "unsloth/core/open_file.h"

namespace unsloth::data {

/// A file that this process reads: as long as the object lives, no process removes it from the cache (a shared lock
/// says so).
class CacheFileUse {
  public:
    /// Marks the file as used, and as used now. Nothing when there is no such file; see open_own_file for one that
    /// somebody planted. Where the file system has no locks the file is used without one; there nothing is ever
    /// removed.
    static std::optional<CacheFileUse> begin(const std::filesystem::path& path);
    int fd() const { return file_.get(); }

  private:
    Descriptor file_;
};

/// What the system says about a file that changes with its content; empty: there is no such file.
std::string file_identity(const std::filesystem::path& file);

/// A remembered content hash (hash-*): "HASH\nIDENTITY\nFILE".
struct HashMemo {
    std::string hash, identity, file;
};
/// Nothing when there is none, or it is not of this form.
std::optional<HashMemo> read_memo(const std::filesystem::path& memo);

/// Removes from a cache's folder what killed processes left: locks and partly written files that no process holds. Also
/// removes hashes of files that are gone or have changed.
void remove_leftovers(const std::filesystem::path& folder);

/// Removes files of rows and of values kept of them (*.rows, *.values) from a cache's folder, those that were used
/// longest ago first, until they take no more than `max_bytes` together. Files in use stay, whatever they take. Logs
/// what was removed; what cannot be removed stays.
void prune_cache(const std::filesystem::path& folder, int64_t max_bytes);

}  // namespace unsloth::data
