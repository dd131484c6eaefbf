#include "unsloth/core/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "unsloth/core/error.h"

namespace unsloth {
namespace {

struct Descriptor {
    int fd = -1;
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
};

std::string reason() { return std::strerror(errno); }

void write_all(int fd, std::string_view content, const std::filesystem::path& path) {
    while (!content.empty()) {
        const ssize_t written = ::write(fd, content.data(), content.size());
        if (written < 0) {
            if (errno == EINTR) continue;
            throw runtime_failure(cat("cannot write ", path.string(), ": ", reason()),
                                  errno == ENOSPC ? "Free some space, or choose another training.output_dir." : "");
        }
        content.remove_prefix(static_cast<std::size_t>(written));
    }
}

}  // namespace

std::string read_file(const std::filesystem::path& path) {
    const MappedFile map(path);
    const auto bytes = map.bytes();
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void sync_path(const std::filesystem::path& path) {
    const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (file.fd < 0 || ::fsync(file.fd) != 0) throw runtime_failure(cat("cannot flush ", path.string(), ": ", reason()));
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
    AtomicFile file(path);
    file.write(content);
    file.finish();
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)), temporary_(path_.string() + ".tmp-" + std::to_string(::getpid())) {
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) throw runtime_failure(cat("cannot create ", temporary_.string(), ": ", reason()));
}

AtomicFile::~AtomicFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::string_view content) {
    constexpr std::size_t worth_a_call = std::size_t{1} << 16;
    if (content.size() >= worth_a_call) {
        flush();
        write_all(fd_, content, path_);
        return;
    }
    waiting_ += content;
    if (waiting_.size() >= worth_a_call) flush();
}

void AtomicFile::flush() {
    write_all(fd_, waiting_, path_);
    waiting_.clear();
}

void AtomicFile::finish() {
    flush();
    if (::fsync(fd_) != 0) throw runtime_failure(cat("cannot flush ", path_.string(), ": ", reason()));
    if (::rename(temporary_.c_str(), path_.c_str()) != 0)
        throw runtime_failure(cat("cannot rename ", temporary_.string(), " to ", path_.string(), ": ", reason()));
    ::close(std::exchange(fd_, -1));
    const auto parent = path_.parent_path();
    sync_path(parent.empty() ? std::filesystem::path(".") : parent);
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
    const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    struct stat status {};
    if (file.fd < 0 || ::fstat(file.fd, &status) != 0)
        throw input_error(cat("cannot open ", path.string(), ": ", reason()));
    if (!S_ISREG(status.st_mode)) throw input_error(cat("cannot open ", path.string(), ": not a regular file"));
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ == 0) return;
    void* const mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (mapped == MAP_FAILED) throw input_error(cat("cannot map ", path.string(), ": ", reason()));
    data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

MappedFile::~MappedFile() {
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
