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

namespace unsloth::hub {
namespace {

namespace fs = std::filesystem;

fs::path incomplete(const CachedRepository& cached, const RemoteFile& file) {
    return cached.blob(file).string() + ".incomplete";
}

/// A blob that grows: BLOB.incomplete, hashed as it is written.
class Blob final : public Sink {
  public:
    Blob(fs::path path, const RemoteFile& remote, std::atomic<int64_t>& arrived)
        : path_(std::move(path)),
          remote_(remote),
          digest_(fresh()),
          arrived_(arrived),
          file_(open_own_file(path_, O_RDWR | O_CREAT, Owner::anyone)) {
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
    void finish(const fs::path& blob) {
        if (::fsync(file_.get()) != 0 || ::rename(path_.c_str(), blob.c_str()) != 0) fail("finish");
    }

  private:
    [[noreturn]] void fail(const char* what) const {
        const int reason = errno;
        throw runtime_failure(
            cat("cannot ", what, " ", path_.string(), ": ", std::strerror(reason)),
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

    fs::path path_;
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

void link(const fs::path& blob, const fs::path& name) {
    fs::create_directories(name.parent_path());
    std::error_code failure;
    fs::remove(name, failure);  // a link to nowhere
    fs::create_symlink(blob.lexically_relative(name.parent_path()), name, failure);
    if (failure == std::errc::file_exists) return;
    if (failure) fs::copy_file(blob, name, fs::copy_options::overwrite_existing);  // a file system without links
}

}  // namespace

int64_t left_of(const CachedRepository& cached, const RemoteFile& file) {
    std::error_code none;
    const auto size = fs::file_size(incomplete(cached, file), none);
    return none ? 0 : static_cast<int64_t>(size);
}

void download_file(Http& http, const Job& job, const std::string& name, const RemoteFile& file) {
    const fs::path blob = job.cached.blob(file);
    const FileLock lock = job.cached.lock(file.hash(), cat("downloads ", job.repository.id, "/", name));
    if (fs::exists(blob)) {
        job.arrived += file.size;
    } else {
        Blob growing(incomplete(job.cached, file), file, job.arrived);
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
                std::error_code ignored;
                fs::remove(incomplete(job.cached, file), ignored);
                throw input_error(what,
                                  "What was sent is not the file: a proxy, or a mirror (HF_ENDPOINT), alters it.");
            }
            log::warning(what, "; downloading it from the beginning");
        }
        growing.finish(blob);
    }
    link(blob, job.cached.snapshot(job.commit) / name);
}

}  // namespace unsloth::hub
