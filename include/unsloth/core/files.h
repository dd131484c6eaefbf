// Files: whole reads, read-only maps, and writes that are either complete or absent.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unsloth/core/atomic_file.h"
#include "unsloth/core/error.h"
#include "unsloth/core/lost_map.h"

namespace unsloth {

/// The whole file, of up to 1 GiB; of what this process was started with (/dev/stdin, /dev/fd/N) also what a pipe or a
/// terminal yields to its end. Input Error that names the path and the system's reason; Interrupted when a signal asks
/// to stop while a pipe is waited for.
std::string read_file(const std::filesystem::path& path);

/// How the text begins that Git LFS leaves in a file's place, and the input Error for such a file. MappedFile and
/// read_file throw it.
inline constexpr std::string_view git_lfs_mark = "version https://git-lfs.github.com/spec/v1";
Error git_lfs_pointer(const std::filesystem::path& path);

/// Writes to a file next to `path` (AtomicFile), fsyncs, renames over `path` and fsyncs the parent folder. On failure
/// (no space, read-only, I/O) removes the temporary file and throws a runtime Error that names the path and reason.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);
void write_file_atomically(const Folder& folder, const std::string& name, std::string_view content);

/// A text written from its beginning to its end, in the same way: under another name until it is finished.
class AtomicText {
  public:
    /// Runtime Error, as for the others, when it cannot be created. Without finish(), nothing of the file stays.
    explicit AtomicText(const std::filesystem::path& path) : file_(path, 0) {}

    void write(std::string_view content);
    /// Fsyncs and renames.
    void finish();

  private:
    void flush();

    AtomicFile file_;
    std::string waiting_;
    std::size_t written_ = 0;
};

/// Copies `files`, which are below the folder `from`, to the same places below `to`: atomically each, skipping those
/// that are there already under the same path.
void copy_files(const std::vector<std::filesystem::path>& files, const std::filesystem::path& from,
                const std::filesystem::path& to);

/// Removes a file, or a folder with all that is in it, a link itself; what cannot be removed is a warning.
void remove_or_warn(const std::filesystem::path& path);

/// Flushes a written file (or a folder's entries) to the medium; runtime Error on failure.
void sync_path(const std::filesystem::path& path);

/// A whole file mapped read-only. Movable; the map lives as long as the object. An empty file maps to an empty span.
/// What happens when it loses its bytes meanwhile: lost_map.h.
class MappedFile {
  public:
    MappedFile() = default;
    /// Input Error when the file cannot be opened or mapped, and for a Git LFS pointer.
    explicit MappedFile(const std::filesystem::path& path);
    /// Of a file that is open already; `path` is for messages.
    MappedFile(std::filesystem::path path, int fd);
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;
    ~MappedFile();

    std::span<const std::byte> bytes() const { return {data_, size_}; }
    const std::filesystem::path& path() const { return path_; }
    /// What the system knew of the file when it was mapped: device, inode, size, and when its content and its inode
    /// were last changed, in nanoseconds.
    const std::string& stamp() const { return stamp_; }
    /// Tells the kernel that a range was consumed, so that a map read once does not stay in this process.
    void drop(std::size_t offset, std::size_t length) const noexcept;

  private:
    std::filesystem::path path_;
    std::string stamp_;
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    Watched watched_;
};

}  // namespace unsloth
