// The bytes of a file in order, decompressed on the way: memory does not grow with the file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace unsloth::data {

/// Read once, from front to end, by one thread at a time.
class ByteStream {
  public:
    virtual ~ByteStream() = default;
    /// Fills `to` as far as the stream reaches; fewer bytes only at its end. Input Error when the file cannot be read,
    /// or its compressed data is damaged or ends too early.
    virtual std::size_t read(std::span<char> to) = 0;
};

/// A file as it is, or what it contains when its first bytes are gzip's or zstd's (several members or frames in a row
/// count as one content). Input Error when it cannot be opened or is no regular file.
std::unique_ptr<ByteStream> open_byte_stream(const std::filesystem::path& path);

/// The part of a stream that was read and not yet consumed, contiguous in memory.
class TextWindow {
  public:
    explicit TextWindow(std::unique_ptr<ByteStream> stream) : stream_(std::move(stream)) {}

    /// Valid until the next call of grow().
    std::string_view rest() const { return std::string_view(buffer_).substr(begin_); }
    void skip(std::size_t count) { begin_ += count; }
    /// Reads another block and appends it to the rest; false at the end of the stream.
    bool grow();

  private:
    std::unique_ptr<ByteStream> stream_;
    std::string buffer_;
    std::size_t begin_ = 0;
    bool ended_ = false;
};

}  // namespace unsloth::data
