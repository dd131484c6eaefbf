// Memory that processes of one machine share. It has no name: the others reach it through the descriptor of the process
// that made it, and it is gone with the last of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace unsloth {

class SharedSegment {
  public:
    /// Zeros. Pages are taken when they are first written. runtime Error when the system gives none.
    static std::unique_ptr<SharedSegment> make(std::size_t bytes);
    /// What address() of another process says; nullptr where that cannot be reached or is not it: another namespace of
    /// processes under the same host name, another user.
    static std::unique_ptr<SharedSegment> open(const std::string& address, std::size_t bytes);
    ~SharedSegment();
    SharedSegment(const SharedSegment&) = delete;
    SharedSegment& operator=(const SharedSegment&) = delete;

    /// For open(), until close().
    std::string address() const;
    /// Nobody else is to open it.
    void close();
    std::byte* data() const { return data_ + header_bytes; }

  private:
    static constexpr std::size_t header_bytes = 4096;  ///< the random number by which it is known, on a page of its own
    SharedSegment(int fd, std::byte* data, std::size_t bytes) : fd_(fd), data_(data), bytes_(bytes) {}
    static std::byte* map(int fd, std::size_t bytes);

    int fd_;
    std::byte* data_;
    std::size_t bytes_;
};

}  // namespace unsloth
