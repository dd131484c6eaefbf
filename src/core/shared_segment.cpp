#include "unsloth/core/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "unsloth/core/error.h"
#include "unsloth/core/hex.h"

namespace unsloth {
namespace {

constexpr std::size_t mark_bytes = 16;

}  // namespace

std::byte* SharedSegment::map(int fd, std::size_t bytes) {
    void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

std::unique_ptr<SharedSegment> SharedSegment::make(std::size_t bytes) {
    const auto refuse = [&](const char* call) {
        throw runtime_failure(
            cat("no ", bytes, " bytes of memory that ranks share: ", call, ": ", std::strerror(errno)));
    };
    bytes += header_bytes;
    std::array<std::byte, mark_bytes> mark;
    if (::getrandom(mark.data(), mark.size(), 0) != static_cast<ssize_t>(mark.size())) refuse("getrandom");
    const int fd = ::memfd_create("unsloth-train ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) refuse("memfd_create");
    std::unique_ptr<SharedSegment> segment(new SharedSegment(fd, nullptr, bytes));
    if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) refuse("ftruncate");
    // Nobody can cut it short under the others.
    if (::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) refuse("F_ADD_SEALS");
    segment->data_ = map(fd, bytes);
    if (segment->data_ == nullptr) refuse("mmap");
    std::memcpy(segment->data_, mark.data(), mark.size());
    return segment;
}

std::string SharedSegment::address() const {
    return cat(::getpid(), " ", fd_, " ", hex({data_, mark_bytes}));
}

std::unique_ptr<SharedSegment> SharedSegment::open(const std::string& address, std::size_t bytes) {
    bytes += header_bytes;
    std::istringstream words(address);
    int64_t process = 0, number = 0;
    std::string mark;
    if (!(words >> process >> number >> mark) || process <= 0 || number < 0) return nullptr;
    const int fd = ::open(cat("/proc/", process, "/fd/", number).c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return nullptr;
    std::unique_ptr<SharedSegment> segment(new SharedSegment(fd, nullptr, bytes));
    struct stat found{};
    const bool ours = ::fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == ::geteuid() &&
                      found.st_size == static_cast<off_t>(bytes) && (::fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) != 0;
    if (!ours) return nullptr;
    segment->data_ = map(fd, bytes);
    if (segment->data_ == nullptr || hex({segment->data_, mark_bytes}) != mark) return nullptr;
    segment->close();
    return segment;
}

void SharedSegment::close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
}

SharedSegment::~SharedSegment() {
    close();
    if (data_ != nullptr) ::munmap(data_, bytes_);
}

}  // namespace unsloth
