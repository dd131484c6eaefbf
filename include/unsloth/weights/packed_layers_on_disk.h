// Packed layers on the disk: read by several threads, from the page cache what it has as it is, the rest past it where
// the file system allows that, through a ring of pinned buffers into slots on the device.
//
// Threads that each wait in a read are as fast here as io_uring: a request is as large as a buffer, and the kernel cuts
// it into as many as the disk takes at a time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <filesystem>
#include <mutex>
#include <thread>
#include <vector>

#include "unsloth/core/open_file.h"
#include "unsloth/ops/copy_stream.h"

namespace unsloth::weights {

/// The position of a packed layer's bytes in a file.
struct FileRange {
    int file = 0;  ///< number of the file
    int64_t offset = 0, bytes = 0;
    int64_t to = 0;  ///< in the image
};

/// A packed layer: ranges of files, and its small tensors, in pinned memory.
struct DiskImage {
    std::vector<FileRange> ranges;
    at::Tensor rest;  ///< uint8; may be empty
    int64_t rest_to = 0;
};

/// Files that images are read from, which leaves the page cache as it is where that can be; input Error as
/// open_to_read.
class DiskFiles {
  public:
    /// The file's number; the same for the same path.
    int add(const std::filesystem::path& path);
    /// Fills `buffer` (aligned to `alignment`, with `alignment` bytes more on either side of `bytes`) and returns where
    /// the bytes at `offset` begin in it. Runtime Error, with the name, for a file that has become shorter or
    /// cannot be read. Several threads may call it.
    /// `cached` says whether the page cache had them all.
    std::byte* read(int file, int64_t offset, int64_t bytes, std::byte* buffer, bool& cached);
    const std::filesystem::path& path(int file) const { return files_.at(static_cast<std::size_t>(file)).path; }
    static constexpr int64_t alignment = 4096;

  private:
    struct File {
        std::filesystem::path path;
        Descriptor direct;  ///< not open: the file system has no direct reads
        Descriptor buffered;
        bool asks_cache = false;  ///< the file system can tell what the page cache has
    };
    std::deque<File> files_;
};

class DiskStream {
  public:
    static constexpr int buffers = 16;
    static constexpr int64_t buffer_bytes = int64_t{4} << 20;  ///< of a file, at a time
    /// Of the pinned memory that it takes.
    static constexpr int64_t memory_bytes = buffers * (buffer_bytes + 2 * DiskFiles::alignment) + DiskFiles::alignment;

    /// `memory`: uint8 [memory_bytes]. `copies` has marks [first_mark, first_mark + buffers) for it; both must outlive
    /// it and its copies in flight: the destructor waits for its threads alone. `patience`: how long wait() waits
    /// before it says so.
    DiskStream(DiskFiles files, at::Tensor memory, ops::CopyStream& copies, int first_mark, at::Device device,
               std::chrono::milliseconds patience = std::chrono::seconds(10));
    ~DiskStream();
    DiskStream(const DiskStream&) = delete;
    DiskStream& operator=(const DiskStream&) = delete;

    /// Reads the packed layer into `slot_memory`, after what the copies wait for so far, and then sets `mark`. One at a
    /// time for a mark; packed layers are read in the order of the calls.
    void fetch(const DiskImage& image, const at::Tensor& slot_memory, int mark);
    /// Returns when all copies of the image that was fetched with this mark, and the mark, are issued. Says from time
    /// to time that it waits. Throws what reading threw.
    void wait(int mark);

    /// Bytes so far, and how many of them the page cache had.
    struct Counts {
        int64_t bytes = 0, cached = 0;
    };
    Counts counts() const;
    /// Reads the packed layers repeatedly for about this time, as fetch() does but for the copies: the speed of reading
    /// alone. No read may be in flight.
    Counts read_alone(const std::vector<const DiskImage*>& images, std::chrono::duration<double> time);

  private:
    struct Job {
        const DiskImage* image;
        at::Tensor slot_memory;  ///< undefined: what is read is not copied
        int mark = -1;           ///< -1: none
        std::size_t range = 0;   ///< what is to be read next
        int64_t in_range = 0;
        int64_t left = 0;  ///< pieces that are not copied yet
    };
    struct Piece {
        std::shared_ptr<Job> job;
        FileRange range;
    };
    std::shared_ptr<Job> job_of(const DiskImage& image, const at::Tensor& slot_memory, int mark) const;
    void wait_for(const Job& job);
    std::optional<Piece> next_piece();
    void work(int buffer);

    DiskFiles files_;
    at::Tensor memory_;
    ops::CopyStream& copies_;
    int first_mark_;
    at::Device device_;
    std::chrono::milliseconds patience_;
    mutable std::mutex guard_;
    Counts counts_;
    std::condition_variable changed_;
    std::deque<std::shared_ptr<Job>> jobs_;                 ///< with something to read
    std::unordered_map<int, std::shared_ptr<Job>> latest_;  ///< by mark
    std::exception_ptr failure_;
    bool ends_ = false;
    std::vector<std::jthread> threads_;  ///< one a buffer
};

}  // namespace unsloth::weights
