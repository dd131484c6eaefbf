#include "unsloth/core/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/temporary.h"

namespace unsloth {
namespace {

Error write_error(const std::filesystem::path& path, const char* action) {
    const int code = errno;
    return runtime_failure(cat("cannot ", action, " ", path.string(), ": ", std::strerror(code)),
                           code == ENOSPC || code == EDQUOT ? "Free some space, or choose another folder." : "");
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path, std::size_t size)
    : path_(std::move(path)), temporary_(temporary_name(path_)) {
    // Another process may take it for abandoned before it is claimed: then it is gone at once, and made again.
    for (int attempt = 0; fd_ < 0; ++attempt) {
        fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (fd_ < 0) throw write_error(temporary_, "create");
        constexpr int most_attempts = 100;
        if (attempt == most_attempts || claim_temporary(fd_, temporary_)) break;
        ::close(std::exchange(fd_, -1));
        ::usleep(1000);
    }
    try {
        reserve(size);
    } catch (...) {  // the destructor does not run for an object that was never made
        ::close(fd_);
        ::unlink(temporary_.c_str());
        throw;
    }
}

AtomicFile::~AtomicFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(temporary_.c_str());
}

void AtomicFile::reserve(std::size_t size) const {
    if (size == 0 || ::fallocate(fd_, 0, 0, static_cast<off_t>(size)) == 0) return;
    // Others answer ENOTSUP: then the writes themselves will tell.
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) throw write_error(path_, "reserve space for");
}

void AtomicFile::write_at(std::span<const std::byte> bytes, std::size_t offset) const {
    UNSLOTH_CHECK(fd_ >= 0, "the file is finished");
    while (!bytes.empty()) {
        const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (written < 0) {
            if (errno == EINTR) continue;
            throw write_error(path_, "write");
        }
        bytes = bytes.subspan(static_cast<std::size_t>(written));
        offset += static_cast<std::size_t>(written);
    }
}

void AtomicFile::finish() {
    UNSLOTH_CHECK(fd_ >= 0, "the file is finished");
    if (::fsync(fd_) != 0) throw write_error(path_, "flush");
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) throw write_error(path_, "rename to");
    const int fd = std::exchange(fd_, -1);
    // Some file systems report a late write error only here.
    if (::close(fd) != 0) throw write_error(path_, "close");
    const auto parent = path_.parent_path();
    sync_path(parent.empty() ? std::filesystem::path(".") : parent);
}

}  // namespace unsloth
