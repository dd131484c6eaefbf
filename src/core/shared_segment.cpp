#include "unsloth/core/shared_segment.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>

#include "unsloth/core/error.h"
#include "unsloth/core/hex.h"

namespace unsloth {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t mark_bytes = 16;
constexpr const char* program = "unsloth-train ";  // begins all names

Descriptor open_link(const fs::path& link) {
    return Descriptor(::open(link.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
}

/// Memory that this user's process made, and that no process can shrink.
bool is_own_segment(int fd, struct stat& found) {
    return ::fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == ::geteuid() &&
           (::fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) != 0;
}

}  // namespace

struct SharedSegment::Header {
    std::array<std::byte, mark_bytes> mark;
    uint32_t complete = 0;
};

SharedSegment::Header& SharedSegment::header() const {
    return *reinterpret_cast<Header*>(data_);
}

bool SharedSegment::map() {
    void* const data = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
    data_ = data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
    return data_ != nullptr;
}

std::unique_ptr<SharedSegment> SharedSegment::make(std::size_t bytes, const std::string& name) {
    const auto refuse = [&](const char* call) {
        throw Error("memory.not-shared",
                    cat("no ", bytes, " bytes of memory that processes share: ", call, ": ", std::strerror(errno)));
    };
    std::array<std::byte, mark_bytes> mark;
    if (::getrandom(mark.data(), mark.size(), 0) != static_cast<ssize_t>(mark.size())) refuse("getrandom");
    Descriptor fd(::memfd_create((program + name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd.open()) refuse("memfd_create");
    std::unique_ptr<SharedSegment> segment(new SharedSegment(std::move(fd), bytes + header_bytes));
    const int number = segment->fd_.get();
    if (::fchmod(number, S_IRUSR | S_IWUSR) != 0) refuse("fchmod");
    if (::ftruncate(number, static_cast<off_t>(segment->bytes_)) != 0) refuse("ftruncate");
    // No process can shrink it under the others.
    if (::fcntl(number, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) refuse("F_ADD_SEALS");
    if (!segment->map()) refuse("mmap");
    segment->header().mark = mark;
    return segment;
}

std::string SharedSegment::address() const {
    return cat(::getpid(), " ", fd_.get(), " ", hex(header().mark));
}

std::unique_ptr<SharedSegment> SharedSegment::open(const std::string& address, std::size_t bytes) {
    std::istringstream words(address);
    int64_t process = 0, number = 0;
    std::string mark;
    if (!(words >> process >> number >> mark) || process <= 0 || number < 0) return nullptr;
    Descriptor fd = open_link(cat("/proc/", process, "/fd/", number));
    struct stat found{};
    if (!fd.open() || !is_own_segment(fd.get(), found)) return nullptr;
    auto segment = open(std::move(fd), bytes);
    if (segment == nullptr || hex(segment->header().mark) != mark) return nullptr;
    segment->close();
    return segment;
}

std::unique_ptr<SharedSegment> SharedSegment::open(Descriptor held, std::size_t bytes) {
    struct stat found{};
    if (::fstat(held.get(), &found) != 0 || found.st_size != static_cast<off_t>(bytes + header_bytes)) return nullptr;
    std::unique_ptr<SharedSegment> segment(new SharedSegment(std::move(held), bytes + header_bytes));
    return segment->map() ? std::move(segment) : nullptr;
}

std::map<std::string, Descriptor> SharedSegment::held(const std::function<bool(const std::string& name)>& wanted) {
    // What a descriptor's link says of memory without a file.
    const std::string begin = cat("/memfd:", program), end = " (deleted)";
    std::map<std::string, Descriptor> segments;
    std::error_code over;
    for (fs::directory_iterator process("/proc", over), none; !over && process != none; process.increment(over)) {
        struct stat status{};
        if (process->path().filename().string().find_first_not_of("0123456789") != std::string::npos ||
            ::stat(process->path().c_str(), &status) != 0 || status.st_uid != ::geteuid())
            continue;
        std::error_code gone;  // the process has ended, or is not for others to look into
        for (fs::directory_iterator entry(process->path() / "fd", gone); !gone && entry != none;
             entry.increment(gone)) {
            std::error_code closed;
            const std::string link = fs::read_symlink(entry->path(), closed).string();
            if (closed || !link.starts_with(begin) || !link.ends_with(end)) continue;
            const std::string name = link.substr(begin.size(), link.size() - begin.size() - end.size());
            if (segments.contains(name) || !wanted(name)) continue;
            Descriptor fd = open_link(entry->path());
            if (fd.open() && is_own_segment(fd.get(), status)) segments.emplace(name, std::move(fd));
        }
    }
    return segments;
}

int64_t SharedSegment::bytes_taken(const Descriptor& held) {
    struct stat found{};
    return ::fstat(held.get(), &found) == 0 ? static_cast<int64_t>(found.st_blocks) * 512 : 0;
}

void SharedSegment::close() {
    fd_.close();
}

bool SharedSegment::try_lock() {
    if (::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0) return true;
    if (errno == EWOULDBLOCK) return false;
    throw Error("memory.not-shared", cat("no lock of memory that processes share: flock: ", std::strerror(errno)));
}

void SharedSegment::unlock() {
    ::flock(fd_.get(), LOCK_UN);
}

bool SharedSegment::complete() const {
    return std::atomic_ref(header().complete).load(std::memory_order_acquire) != 0;
}

void SharedSegment::set_complete() {
    std::atomic_ref(header().complete).store(1, std::memory_order_release);
}

bool SharedSegment::protect(bool read_only) {
    return ::mprotect(data_, bytes_, read_only ? PROT_READ : PROT_READ | PROT_WRITE) == 0;
}

SharedSegment::~SharedSegment() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
}

MachineLock::MachineLock(const std::string& name, double seconds)
    : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    // A name that begins with a zero is in no folder, and is free again when its owner ends.
    const std::string path = cat('\0', program, ::geteuid(), " ", name);
    UNSLOTH_CHECK(path.size() <= sizeof address.sun_path, name);
    std::memcpy(address.sun_path, path.data(), path.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
        if (errno != EADDRINUSE || std::chrono::steady_clock::now() > end) {
            why_ = std::strerror(errno);
            return;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
}

}  // namespace unsloth
