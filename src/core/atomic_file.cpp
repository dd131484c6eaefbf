#include "unsloth/core/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/core/lost_map.h"
#include "unsloth/core/path_advice.h"

namespace unsloth {

AtomicFile::AtomicFile(Place target, std::size_t size, std::string advice)
    : advice_(std::move(advice)), temporary_(std::move(target), Temporary::Kind::file) {
    reserve(size);
}

void AtomicFile::fail(const char* action) const {
    const int code = errno;
    throw Error(write_failure(code), cat("cannot ", action, " ", path().string(), ": ", std::strerror(code)),
                code == ENOSPC || code == EDQUOT || code == EFBIG ? advice_ : "");
}

void AtomicFile::reserve(std::size_t size) const {
    if (size == 0 || ::fallocate(fd(), 0, 0, static_cast<off_t>(size)) == 0) return;
    // Others answer ENOTSUP: then the writes themselves will tell.
    if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) fail("reserve space for");
}

void AtomicFile::write_at(std::span<const std::byte> bytes, std::size_t offset) const {
    UNSLOTH_CHECK(!finished(), "the file is finished");
    while (!bytes.empty()) {
        const ssize_t written = ::pwrite(fd(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (written < 0) {
            if (errno == EINTR) continue;
            if (errno == EFAULT) refuse_lost_map(bytes.data());
            fail("write");
        }
        bytes = bytes.subspan(static_cast<std::size_t>(written));
        offset += static_cast<std::size_t>(written);
    }
}

void AtomicFile::finish() {
    UNSLOTH_CHECK(!finished(), "the file is finished");
    if (::fsync(fd()) != 0) fail("flush");
    temporary_.rename_to_target();
    // Some file systems report a late write error only here.
    if (!temporary_.close()) fail("close");
    temporary_.folder().sync();
}

}  // namespace unsloth
