// A file that is written piece by piece and appears under its name only when it is complete.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace unsloth {

/// Until finish() the file is PATH.tmp-PID, which the destructor removes. Runtime Error, naming path and reason, on any
/// failure. Not safe for use from several threads at once.
class AtomicFile {
  public:
    /// Creates the temporary file and reserves `size` bytes where the file system can: a full disk then shows now and
    /// not after an hour of work.
    AtomicFile(std::filesystem::path path, std::size_t size);
    ~AtomicFile();
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    void write_at(std::span<const std::byte> bytes, std::size_t offset) const;
    /// fsync, rename (over a file of that name), fsync of the folder. Only once.
    void finish();
    bool finished() const { return fd_ < 0; }
    const std::filesystem::path& path() const { return path_; }

  private:
    void reserve(std::size_t size) const;

    std::filesystem::path path_, temporary_;
    int fd_ = -1;
};

}  // namespace unsloth
