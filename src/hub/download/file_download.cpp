#include "hub/download/file_download.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "hub/download/digest.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"
#include "unsloth/core/open_file.h"
#include "unsloth/core/path_advice.h"

namespace unsloth::hub {
namespace {

namespace fs = std::filesystem;

std::string incomplete(const RemoteFile& file) {
    return file.hash() + ".incomplete";
}

/// A blob that grows: BLOB.incomplete, hashed as it is written.
class Blob final : public Sink {
  public:
    Blob(const Folder& blobs, const RemoteFile& remote, std::atomic<int64_t>& arrived)
        : blobs_(blobs),
          remote_(remote),
          digest_(fresh()),
          arrived_(arrived),
          file_(open_own_file(blobs_, incomplete(remote), O_RDWR | O_CREAT, Owner::anyone)) {
        if (!file_.open()) fail("open");
        read_what_is_there();
    }

    int64_t size() const { return size_; }
    bool too_long() const { return too_long_; }

    void begin(bool resumed) override {
        if (!resumed && size_ > 0) start_again();
    }
    bool take(std::string_view bytes) override {
        if (size_ + static_cast<int64_t>(bytes.size()) > remote_.size) return too_long_ = true, false;
        digest_.add(bytes);
        while (!bytes.empty()) {
            const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
            if (written < 0 && errno == EINTR) continue;
            if (written < 0) {
                problem_ = errno;  // thrown outside of libcurl
                return false;
            }
            bytes.remove_prefix(static_cast<std::size_t>(written));
            size_ += written;
            arrived_ += written;
        }
        return true;
    }
    void start_again() {
        if (::ftruncate(file_.get(), 0) != 0 || ::lseek(file_.get(), 0, SEEK_SET) < 0) fail("empty");
        arrived_ -= size_;
        size_ = 0;
        too_long_ = false;
        digest_ = fresh();
    }
    void raise() const {
        if (problem_ == 0) return;
        errno = problem_;
        fail("write");
    }
    /// The hash of all bytes. Only once, or before start_again().
    std::string hash() { return digest_.hex(); }
    void finish() {
        if (::fsync(file_.get()) != 0 || !blobs_.rename(incomplete(remote_), remote_.hash())) fail("finish");
    }

  private:
    [[noreturn]] void fail(const char* what) const {
        const int reason = errno;
        throw Error(write_failure(reason),
                    cat("cannot ", what, " ", (blobs_ / incomplete(remote_)).string(), ": ", std::strerror(reason)),
                    reason == ENOSPC || reason == EDQUOT || reason == EFBIG
                        ? "Make room, or set HF_HOME to a folder on a larger disk; what was downloaded is kept."
                        : "HF_HOME names the folder of the cache.");
    }
    Digest fresh() const {
        return {remote_.sha256.empty() ? Digest::Kind::git_sha1 : Digest::Kind::sha256, remote_.size};
    }
    void read_what_is_there() {
        std::array<char, 1 << 16> part;
        while (true) {
            const ssize_t bytes = ::read(file_.get(), part.data(), part.size());
            if (bytes < 0 && errno == EINTR) continue;
            if (bytes < 0) fail("read");
            if (bytes == 0) break;
            digest_.add({part.data(), static_cast<std::size_t>(bytes)});
            size_ += bytes;
        }
        arrived_ += size_;
        if (size_ > remote_.size) start_again();
    }

    Folder blobs_;
    const RemoteFile& remote_;
    Digest digest_;
    std::atomic<int64_t>& arrived_;
    Descriptor file_;
    int problem_ = 0;
    int64_t size_ = 0;
    bool too_long_ = false;
};

std::string address(const Job& job, const std::string& name) {
    std::string path;
    for (const fs::path& part : fs::path(name)) path += "/" + Http::escaped(part.string());
    return cat(job.access.endpoint, job.repository.kind == Kind::dataset ? "/datasets/" : "/", job.repository.id,
               "/resolve/", job.commit, path);
}

/// Until the blob has all its bytes; false when stopped.
bool fill(Http& http, const Job& job, const std::string& name, const RemoteFile& file, Blob& blob) {
    const std::string url = address(job, name), what = cat("downloading ", job.repository.id, "/", name);
    Patience patience;
    while (blob.size() < file.size && !blob.too_long()) {
        const int64_t before = blob.size();
        Reply reply = http.get_into(url, before, blob);
        blob.raise();
        if (job.stopped()) return false;
        if (blob.size() == file.size || blob.too_long()) break;
        if (blob.size() > before) patience.renew();
        if (reply.status == 416) blob.start_again();  // what is there is of another file
        if (reply.ok()) reply.failure = cat("the connection ended after ", blob.size(), " of ", file.size, " bytes");
        if ((is_passing(reply) || reply.status == 416) && patience.wait(reply, what, job.stopped)) continue;
        if (job.stopped()) return false;
        refuse(reply, job.repository, job.access, what);
    }
    return true;
}

/// Gives a blob its name in the snapshot.
void link(const Job& job, const fs::path& name, const RemoteFile& file) {
    const fs::path place = fs::path("snapshots") / job.commit / name, blob = fs::path("blobs") / file.hash();
    const Folder folder = job.cached.made(place.parent_path());
    const std::string own = name.filename();
    (void)folder.remove(own);  // a link to nowhere
    if (::symlinkat(blob.lexically_relative(place.parent_path()).c_str(), folder.fd(), own.c_str()) == 0 ||
        errno == EEXIST)
        return;
    const MappedFile bytes(job.cached.blob(file));  // a file system without links
    AtomicFile copy(Place{folder, own}, bytes.bytes().size());
    copy.write_at(bytes.bytes(), 0);
    copy.finish();
}

/// Whether the blob is there. Runtime Error where something else has its name.
bool has_blob(const Folder& blobs, const RemoteFile& file) {
    const auto entry = blobs.look(file.hash());
    if (entry && !S_ISREG(entry->st_mode))
        throw Error("disk.foreign-file", cat((blobs / file.hash()).string(), " is no regular file"),
                    "Somebody else may have put it there. Look at it and remove it.");
    return entry.has_value();
}

}  // namespace

int64_t left_of(const CachedRepository& cached, const RemoteFile& file) {
    std::error_code none;
    const auto size = fs::file_size(cached.folder() / "blobs" / incomplete(file), none);
    return none ? 0 : static_cast<int64_t>(size);
}

void download_file(Http& http, const Job& job, const std::string& name, const RemoteFile& file) {
    const FileLock lock = job.cached.lock(file.hash(), cat("downloads ", job.repository.id, "/", name));
    const Folder blobs = job.cached.made("blobs");
    if (has_blob(blobs, file)) {
        job.arrived += file.size;
    } else {
        Blob growing(blobs, file, job.arrived);
        for (bool again = false;; again = true) {
            if (!fill(http, job, name, file, growing)) return;
            const std::string hash = growing.too_long() ? "" : growing.hash();
            if (hash == file.hash()) break;
            growing.start_again();
            const std::string what =
                cat(job.repository.id, "/", name,
                    hash.empty() ? cat(" has more bytes than the ", file.size, " that the hub lists")
                                 : cat(" has the hash ", hash, ", and the hub lists ", file.hash()));
            if (again) {
                (void)blobs.remove(incomplete(file));
                throw Error("hub.altered-file", what,
                            "What was sent is not the file: a proxy, or a mirror (HF_ENDPOINT), alters it.");
            }
            log::warning(what, "; downloading it from the beginning");
        }
        growing.finish();
    }
    link(job, name, file);
}

}  // namespace unsloth::hub
