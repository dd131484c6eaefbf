#include "unsloth/core/files.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/open_file.h"
#include "unsloth/core/path_advice.h"

namespace unsloth {
namespace {

constexpr std::size_t most_bytes = std::size_t{1} << 30;  // of a text that is read as a whole

std::string reason() {
    return std::strerror(errno);
}

[[noreturn]] void refuse_size(const std::filesystem::path& path, const std::string& size) {
    throw Error("disk.file-too-large",
                cat(path.string(), " has ", size, " bytes; a text of up to 1 GiB is read as a whole"),
                "Is this the right file?");
}

/// Whether the path is a descriptor that this process was started with: its caller wished to wait for that. A FIFO in
/// somebody's folder is another matter.
bool is_inherited(const std::filesystem::path& path) {
    const std::string text = path.string();
    return text == "/dev/stdin" || text.starts_with("/dev/fd/") || text.starts_with("/proc/self/fd/");
}

/// What a pipe or a terminal yields up to its end.
std::string read_stream(const std::filesystem::path& path) {
    const Descriptor stream(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
    if (!stream.open()) throw Error("disk.cannot-read", cat("cannot open ", path.string(), ": ", reason()));
    std::string content;
    char part[1 << 16];
    while (true) {
        stop_if_interrupted();
        constexpr int patience_ms = 100;
        pollfd ready{stream.get(), POLLIN, 0};
        if (::poll(&ready, 1, patience_ms) < 1) continue;
        const ssize_t bytes = ::read(stream.get(), part, sizeof part);
        if (bytes < 0 && errno == EINTR) continue;
        if (bytes < 0) throw Error("disk.cannot-read", cat("cannot read ", path.string(), ": ", reason()));
        if (bytes == 0) return content;
        content.append(part, static_cast<std::size_t>(bytes));
        if (content.size() > most_bytes) refuse_size(path, cat("more than ", most_bytes));
    }
}

}  // namespace

Error git_lfs_pointer(const std::filesystem::path& path) {
    return Error("disk.git-lfs-pointer", cat(path.string(), ": is a Git LFS pointer, not the file itself"),
                 "The repository was cloned without its large files: git lfs pull in its folder gets them; hf "
                 "download needs no Git LFS.");
}

std::string read_file(const std::filesystem::path& path) {
    std::error_code ignored;
    const auto type = std::filesystem::status(path, ignored).type();
    const bool stream = type == std::filesystem::file_type::fifo || type == std::filesystem::file_type::character;
    if (stream && is_inherited(path)) return read_stream(path);
    const MappedFile map(path);
    const auto bytes = map.bytes();
    if (bytes.size() > most_bytes) refuse_size(path, cat(bytes.size()));
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void sync_path(const std::filesystem::path& path) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.open() || ::fsync(file.get()) != 0)
        throw Error(write_failure(errno), cat("cannot flush ", path.string(), ": ", reason()));
}

void remove_or_warn(const std::filesystem::path& path) {
    const Place place = place_of(path);
    if (place.folder.open()) place.folder.remove_or_warn(place.name);
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
    const Place place = place_of(path);
    write_file_atomically(place.folder, place.name, content);
}

void write_file_atomically(const Folder& folder, const std::string& name, std::string_view content) {
    AtomicFile file(Place{folder, name}, content.size());
    file.write_at(std::as_bytes(std::span(content)), 0);
    file.finish();
}

void copy_files(const std::vector<std::filesystem::path>& files, const std::filesystem::path& from,
                const std::filesystem::path& to) {
    const Folder folder = Folder::made(to).require();
    for (const auto& file : files) {
        const auto name = file.lexically_relative(from);
        std::error_code ignored;
        if (std::filesystem::equivalent(file, to / name, ignored)) continue;
        write_file_atomically(folder.made_below(name.parent_path()).require(), name.filename(), read_file(file));
    }
}

void AtomicText::write(std::string_view content) {
    constexpr std::size_t worth_a_call = std::size_t{1} << 16;
    waiting_ += content;
    if (waiting_.size() >= worth_a_call) flush();
}

void AtomicText::flush() {
    file_.write_at(std::as_bytes(std::span(waiting_)), written_);
    written_ += waiting_.size();
    waiting_.clear();
}

void AtomicText::finish() {
    flush();
    file_.finish();
}

MappedFile::MappedFile(const std::filesystem::path& path) : MappedFile(path, open_to_read(path).get()) {}

MappedFile::MappedFile(std::filesystem::path path, int fd) : path_(std::move(path)) {
    struct stat status{};
    if (::fstat(fd, &status) != 0) throw Error("disk.cannot-read", cat("cannot open ", path_.string(), ": ", reason()));
    size_ = static_cast<std::size_t>(status.st_size);
    const auto time = [](const timespec& at) { return cat(" ", at.tv_sec, ".", at.tv_nsec); };
    stamp_ = cat(status.st_dev, " ", status.st_ino, " ", size_, time(status.st_mtim), time(status.st_ctim));
    if (size_ == 0) return;
    void* const mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (mapped == MAP_FAILED) throw Error("disk.cannot-read", cat("cannot map ", path_.string(), ": ", reason()));
    data_ = static_cast<const std::byte*>(mapped);
    if (std::string_view(static_cast<const char*>(mapped), size_).starts_with(git_lfs_mark)) {
        ::munmap(mapped, size_);
        throw git_lfs_pointer(path_);
    }
    watched_ = Watched(path_, bytes());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      stamp_(std::move(other.stamp_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      watched_(std::move(other.watched_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(stamp_, other.stamp_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(watched_, other.watched_);
    return *this;
}

MappedFile::~MappedFile() {
    watched_ = Watched();
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::drop(std::size_t offset, std::size_t length) const noexcept {
    if (data_ == nullptr) return;
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    const std::size_t first = (offset + page - 1) / page * page;
    const std::size_t last = (offset + length) / page * page;
    if (last > first) ::madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

}  // namespace unsloth
