// Which files of the cache are in use, and the removal of those that are not when the cache grows too large.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace unsloth {

/// A file that this process reads: as long as the object lives, no process removes it from the cache (a shared lock
/// says so).
class CacheFileUse {
  public:
    CacheFileUse() = default;
    CacheFileUse(CacheFileUse&& other) noexcept;
    CacheFileUse& operator=(CacheFileUse&& other) noexcept;
    CacheFileUse(const CacheFileUse&) = delete;
    CacheFileUse& operator=(const CacheFileUse&) = delete;
    ~CacheFileUse();

    /// Marks the file as used, and as used now. Nothing when there is no such file. Where the file system has no locks
    /// the file is used without one; there nothing is ever removed.
    static std::optional<CacheFileUse> begin(const std::filesystem::path& path);

  private:
    int fd_ = -1;
};

/// Removes files of rows (*.rows) from a cache's folder, those that were used longest ago first, until they take no
/// more than `max_bytes` together. Files in use stay, whatever they take. Logs what was removed; what cannot be removed
/// stays.
void prune_cache(const std::filesystem::path& folder, int64_t max_bytes);

}  // namespace unsloth
