// A mapped file that loses its pages while it is used: somebody made it shorter, or its disk cannot be read any more.
//
// The system says so by SIGBUS at whatever instruction looks there. The process then ends like one that failed: it
// removes what was temporary, names the file and leaves with exit code 4, without a core dump. What was saved before is
// whole, because nothing is ever written into a file that is complete.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace unsloth {

/// Process-wide, for the whole life of the process; any other SIGBUS ends it as before.
void end_cleanly_on_lost_maps();

/// A range of memory that is a file's map, or (without bytes) a file or folder that is to be removed in that case.
/// Known to the handler as long as the object lives.
class Watched {
  public:
    struct Entry;
    Watched() = default;
    explicit Watched(const std::filesystem::path& path, std::span<const std::byte> map = {});
    Watched(Watched&& other) noexcept;
    Watched& operator=(Watched&& other) noexcept;
    ~Watched();

  private:
    Entry* entry_ = nullptr;
};

/// For a system call that was given `data` and answered EFAULT: a runtime Error that names the mapped file when it is
/// of one; returns otherwise.
void refuse_lost_map(const void* data);

}  // namespace unsloth
