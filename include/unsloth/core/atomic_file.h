// A file that is written piece by piece and appears under its name only when it is complete.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "unsloth/core/temporary.h"

namespace unsloth {

/// Until finish() the file is a Temporary, which the destructor removes. Runtime Error, naming path and reason, on any
/// failure. Several threads may call write_at() at once, and nothing else.
class AtomicFile {
  public:
    /// Creates the temporary file and reserves `size` bytes where the file system can: a full disk then shows now and
    /// not after an hour of work. `advice` is what an Error says to do about a full disk.
    AtomicFile(Place target, std::size_t size, std::string advice = "Free some space, or choose another folder.");
    AtomicFile(const std::filesystem::path& path, std::size_t size) : AtomicFile(place_of(path), size) {}
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    void write_at(std::span<const std::byte> bytes, std::size_t offset) const;
    /// fsync, rename (over a file of that name), fsync of the folder. Only once.
    void finish();
    bool finished() const { return temporary_.renamed(); }
    /// Open until finish(), and locked by Temporary.
    int fd() const { return temporary_.fd(); }
    std::filesystem::path path() const { return temporary_.target().path(); }

  private:
    void reserve(std::size_t size) const;
    [[noreturn]] void fail(const char* action) const;

    std::string advice_;
    Temporary temporary_;
};

}  // namespace unsloth
