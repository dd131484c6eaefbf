#include "data/byte_stream.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/open_file.h"

namespace unsloth::data {
namespace {

constexpr std::size_t block_bytes = std::size_t{1} << 20;

class PlainStream : public ByteStream {
  public:
    explicit PlainStream(const std::filesystem::path& path) : path_(path), file_(open_to_read(path)) {
        (void)::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    }

    std::size_t read(std::span<char> to) override {
        std::size_t filled = 0;
        while (filled < to.size()) {
            const ssize_t count = ::read(file_.get(), to.data() + filled, to.size() - filled);
            if (count == 0) break;
            if (count < 0 && errno == EINTR) continue;
            if (count < 0)
                throw Error("disk.cannot-read", cat("cannot read ", path_.string(), ": ", std::strerror(errno)));
            filled += static_cast<std::size_t>(count);
        }
        return filled;
    }
    void rewind() { ::lseek(file_.get(), 0, SEEK_SET); }
    std::string name() const { return path_.string(); }

  private:
    std::filesystem::path path_;
    Descriptor file_;
};

[[noreturn]] void damaged(const PlainStream& file, const char* kind, const std::string& reason) {
    throw Error("data.damaged-file", cat(file.name(), ": the ", kind, " data is damaged: ", reason),
                "Fetch or compress the file again.");
}

/// What the two decompressors share: a block of compressed bytes that is refilled when it is used up.
class Compressed : public ByteStream {
  protected:
    explicit Compressed(std::unique_ptr<PlainStream> file) : file_(std::move(file)), block_(block_bytes) {}
    /// Bytes in block_ from at_ on; 0 at the end of the file.
    std::size_t available() {
        if (at_ == end_) at_ = 0, end_ = file_->read(block_);
        return end_ - at_;
    }

    std::unique_ptr<PlainStream> file_;
    std::vector<char> block_;
    std::size_t at_ = 0, end_ = 0;
    bool inside_ = false;  ///< within a member or frame: the file must not end here
};

class GzipStream : public Compressed {
  public:
    explicit GzipStream(std::unique_ptr<PlainStream> file) : Compressed(std::move(file)) {
        constexpr int gzip_window = 15 + 16;  // the largest window, in gzip's framing (zlib.h: inflateInit2)
        UNSLOTH_CHECK(inflateInit2(&state_, gzip_window) == Z_OK, "zlib");
    }
    GzipStream(const GzipStream&) = delete;
    GzipStream& operator=(const GzipStream&) = delete;
    ~GzipStream() override { inflateEnd(&state_); }

    std::size_t read(std::span<char> to) override {
        state_.next_out = reinterpret_cast<Bytef*>(to.data());
        state_.avail_out = static_cast<uInt>(to.size());
        while (state_.avail_out > 0) {
            const std::size_t bytes = available();
            if (bytes == 0) {
                if (inside_) damaged(*file_, "gzip", "it ends too early");
                break;
            }
            state_.next_in = reinterpret_cast<Bytef*>(block_.data() + at_);
            state_.avail_in = static_cast<uInt>(bytes);
            const int status = inflate(&state_, Z_NO_FLUSH);
            at_ = end_ - state_.avail_in;
            if (status == Z_STREAM_END) {
                inflateReset(&state_);  // another member may follow
            } else if (status != Z_OK) {
                damaged(*file_, "gzip", state_.msg != nullptr ? state_.msg : cat("zlib's error ", status));
            }
            inside_ = status != Z_STREAM_END;
        }
        return to.size() - state_.avail_out;
    }

  private:
    z_stream state_{};
};

class ZstdStream : public Compressed {
  public:
    explicit ZstdStream(std::unique_ptr<PlainStream> file) : Compressed(std::move(file)), state_(ZSTD_createDStream()) {
        UNSLOTH_CHECK(state_ != nullptr, "zstd");
        constexpr int window_log = 31;  // files made with --ultra --long=31 too
        ZSTD_DCtx_setParameter(state_, ZSTD_d_windowLogMax, window_log);
    }
    ZstdStream(const ZstdStream&) = delete;
    ZstdStream& operator=(const ZstdStream&) = delete;
    ~ZstdStream() override { ZSTD_freeDStream(state_); }

    std::size_t read(std::span<char> to) override {
        ZSTD_outBuffer out{to.data(), to.size(), 0};
        while (out.pos < out.size) {
            const std::size_t bytes = available();
            ZSTD_inBuffer in{block_.data() + at_, bytes, 0};
            const std::size_t before = out.pos;
            const std::size_t status = bytes > 0 || inside_ ? ZSTD_decompressStream(state_, &out, &in) : 0;
            if (ZSTD_isError(status)) damaged(*file_, "zstd", ZSTD_getErrorName(status));
            at_ += in.pos;
            inside_ = status != 0;
            if (bytes > 0 || out.pos > before) continue;
            if (inside_) damaged(*file_, "zstd", "it ends too early");
            break;
        }
        return out.pos;
    }

  private:
    ZSTD_DStream* state_;
};

}  // namespace

std::unique_ptr<ByteStream> open_byte_stream(const std::filesystem::path& path) {
    auto file = std::make_unique<PlainStream>(path);
    char head[4] = {};
    const std::string_view mark(head, file->read(head));
    file->rewind();
    if (mark.starts_with("\x1F\x8B")) return std::make_unique<GzipStream>(std::move(file));
    if (mark.starts_with("\x28\xB5\x2F\xFD")) return std::make_unique<ZstdStream>(std::move(file));
    return file;
}

bool TextWindow::grow() {
    if (ended_) return false;
    stop_if_interrupted("stopped while the data was read; nothing was written");
    if (begin_ > 0) {
        buffer_.erase(0, begin_);
        begin_ = 0;
    }
    const std::size_t kept = buffer_.size();
    // By its own size at least, so that a long record is not moved once for each block.
    const std::size_t wanted = kept + std::max(block_bytes, kept);
    buffer_.resize(wanted);
    const std::size_t count = stream_->read({buffer_.data() + kept, wanted - kept});
    buffer_.resize(kept + count);
    ended_ = kept + count < wanted;
    return count > 0;
}

}  // namespace unsloth::data
