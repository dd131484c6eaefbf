#include "unsloth/weights/packed_layers_on_disk.h"

#include <c10/core/DeviceGuard.h>
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"

namespace unsloth::weights {
namespace {

constexpr int64_t floor_to(int64_t value, int64_t step) {
    return value / step * step;
}
constexpr int64_t ceil_to(int64_t value, int64_t step) {
    return floor_to(value + step - 1, step);
}

/// As much as the file has of [offset, offset + bytes); -1, with errno.
int64_t read_fully(int fd, std::byte* to, int64_t bytes, int64_t offset) {
    int64_t done = 0;
    while (done < bytes) {
        const ssize_t got = ::pread(fd, to + done, static_cast<std::size_t>(bytes - done), offset + done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += got;
    }
    return done;
}

/// As much as the page cache has of it, without a read of the disk; -1, with errno.
ssize_t read_cached(int fd, std::byte* to, int64_t bytes, int64_t offset) {
    const iovec part{to, static_cast<std::size_t>(bytes)};
    return ::preadv2(fd, &part, 1, offset, RWF_NOWAIT);
}

}  // namespace

int DiskFiles::add(const std::filesystem::path& path) {
    for (std::size_t i = 0; i < files_.size(); ++i)
        if (files_[i].path == path) return static_cast<int>(i);
    files_.push_back(
        {path, Descriptor(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC | O_NONBLOCK)), open_to_read(path)});
    File& file = files_.back();
    std::byte first{};
    file.asks_cache = read_cached(file.buffered.get(), &first, 1, 0) >= 0 || errno == EAGAIN;
    return static_cast<int>(files_.size()) - 1;
}

std::byte* DiskFiles::read(int number, int64_t offset, int64_t bytes, std::byte* buffer, bool& cached) {
    File& file = files_.at(static_cast<std::size_t>(number));
    cached = file.asks_cache && read_cached(file.buffered.get(), buffer, bytes, offset) == bytes;
    if (cached) return buffer;
    const auto require = [&](int64_t got, int64_t wanted) {
        if (got < 0)
            throw Error("disk.file-lost", cat(file.path.string(), " cannot be read any more: ", std::strerror(errno)),
                        "It holds weights that model.device_map left on the disk.");
        if (got < wanted)
            throw Error("disk.file-lost", cat(file.path.string(), " has become shorter while it was read"));
    };
    if (file.direct.open()) {
        const int64_t begin = floor_to(offset, alignment), end = ceil_to(offset + bytes, alignment);
        const int64_t got = read_fully(file.direct.get(), buffer, end - begin, begin);
        // Past a file's end that is no multiple of the block, or where the medium has larger blocks: EINVAL.
        if (got >= offset + bytes - begin) return buffer + (offset - begin);
        if (got < 0 && errno != EINVAL) require(got, 0);
    }
    require(read_fully(file.buffered.get(), buffer, bytes, offset), bytes);
    return buffer;
}

DiskStream::DiskStream(DiskFiles files, at::Tensor memory, ops::CopyStream& copies, int first_mark, at::Device device,
                       std::chrono::milliseconds patience)
    : files_(std::move(files)),
      memory_(std::move(memory)),
      copies_(copies),
      first_mark_(first_mark),
      device_(device),
      patience_(patience) {
    UNSLOTH_CHECK(memory_.nbytes() >= static_cast<std::size_t>(memory_bytes), memory_.nbytes(), " bytes for buffers");
    for (int buffer = 0; buffer < buffers; ++buffer) threads_.emplace_back([this, buffer] { work(buffer); });
}

DiskStream::~DiskStream() {
    {
        const std::lock_guard lock(guard_);
        ends_ = true;
    }
    changed_.notify_all();
}

std::shared_ptr<DiskStream::Job> DiskStream::job_of(const DiskImage& image, const at::Tensor& slot_memory,
                                                    int mark) const {
    const auto job = std::make_shared<Job>(Job{&image, slot_memory, mark});
    for (const FileRange& range : image.ranges) job->left += ceil_to(range.bytes, buffer_bytes) / buffer_bytes;
    return job;
}

void DiskStream::fetch(const DiskImage& image, const at::Tensor& slot_memory, int mark) {
    const auto job = job_of(image, slot_memory, mark);
    const std::lock_guard lock(guard_);
    if (image.rest.numel() > 0) copies_.copy(image.rest, slot_memory.narrow(0, image.rest_to, image.rest.numel()));
    if (job->left == 0) {
        copies_.mark(mark);
    } else {
        jobs_.push_back(job);
    }
    latest_[mark] = job;
    changed_.notify_all();
}

void DiskStream::wait(int mark) {
    std::shared_ptr<Job> job;
    {
        const std::lock_guard lock(guard_);
        job = latest_.at(mark);
    }
    wait_for(*job);
}

DiskStream::Counts DiskStream::counts() const {
    const std::lock_guard lock(guard_);
    return counts_;
}

DiskStream::Counts DiskStream::read_alone(const std::vector<const DiskImage*>& images,
                                          std::chrono::duration<double> time) {
    const Counts before = counts();
    std::deque<std::shared_ptr<Job>> in_flight;
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; std::chrono::steady_clock::now() - begin < time; ++i) {
        const DiskImage& image = *images[i % images.size()];
        if (image.ranges.empty()) break;
        in_flight.push_back(job_of(image, {}, -1));
        {
            const std::lock_guard lock(guard_);
            jobs_.push_back(in_flight.back());
        }
        changed_.notify_all();
        if (in_flight.size() < 3) continue;  // the threads never run out
        wait_for(*in_flight.front());
        in_flight.pop_front();
    }
    for (const std::shared_ptr<Job>& job : in_flight) wait_for(*job);
    const Counts after = counts();
    return {after.bytes - before.bytes, after.cached - before.cached};
}

void DiskStream::wait_for(const Job& job) {
    using Clock = std::chrono::steady_clock;
    std::unique_lock lock(guard_);
    const auto ready = [&] { return job.left == 0 || failure_ != nullptr; };
    const Clock::time_point begin = Clock::now();
    while (!changed_.wait_for(lock, patience_, ready))
        log::warning("waiting for the disk: a layer's weights in ",
                     files_.path(job.image->ranges.front().file).string(), " have not come for ",
                     std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begin).count(), " s");
    if (failure_) std::rethrow_exception(failure_);
}

/// The next one in the order of jobs; nullopt at the end.
std::optional<DiskStream::Piece> DiskStream::next_piece() {
    std::unique_lock lock(guard_);
    changed_.wait(lock, [&] { return ends_ || failure_ || !jobs_.empty(); });
    if (ends_ || failure_) return std::nullopt;
    const std::shared_ptr<Job> job = jobs_.front();
    const FileRange& range = job->image->ranges[job->range];
    const int64_t bytes = std::min(buffer_bytes, range.bytes - job->in_range);
    Piece piece{job, {range.file, range.offset + job->in_range, bytes, range.to + job->in_range}};
    job->in_range += bytes;
    if (job->in_range == range.bytes) {
        job->in_range = 0;
        if (++job->range == job->image->ranges.size()) jobs_.pop_front();
    }
    return piece;
}

void DiskStream::work(int buffer) {
    const auto base =
        ceil_to(static_cast<int64_t>(reinterpret_cast<std::intptr_t>(memory_.data_ptr())), DiskFiles::alignment);
    auto* const own = reinterpret_cast<std::byte*>(base + buffer * (buffer_bytes + 2 * DiskFiles::alignment));
    try {
        const c10::DeviceGuard on_device(device_);
        while (const std::optional<Piece> piece = next_piece()) {
            const auto& [job, range] = *piece;
            copies_.host_waits(first_mark_ + buffer);
            bool cached = false;
            std::byte* const bytes = files_.read(range.file, range.offset, range.bytes, own, cached);
            const std::lock_guard lock(guard_);
            counts_.bytes += range.bytes;
            if (cached) counts_.cached += range.bytes;
            if (job->slot_memory.defined()) {
                copies_.copy(at::from_blob(bytes, {range.bytes}, at::kByte),
                             job->slot_memory.narrow(0, range.to, range.bytes));
                copies_.mark(first_mark_ + buffer);
            }
            if (--job->left > 0) continue;
            if (job->mark >= 0) copies_.mark(job->mark);
            changed_.notify_all();
        }
    } catch (...) {
        const std::lock_guard lock(guard_);
        if (!failure_) failure_ = std::current_exception();
        changed_.notify_all();
    }
}

}  // namespace unsloth::weights
