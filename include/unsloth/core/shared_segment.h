// Memory that processes of one machine share. It has no file: the others reach it through the descriptor of a process
// that has it, and it is gone with the last of them, however they end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "unsloth/core/open_file.h"

namespace unsloth {

class SharedSegment {
  public:
    /// Zeros, that this user alone may open. Pages are taken when they are first written. `name`: up to 200 characters,
    /// for held(). runtime Error when the system gives none.
    static std::unique_ptr<SharedSegment> make(std::size_t bytes, const std::string& name = "ranks");
    /// What address() of another process says; nullptr where that cannot be reached or is not it: another namespace of
    /// processes under the same host name, another user.
    static std::unique_ptr<SharedSegment> open(const std::string& address, std::size_t bytes);
    /// One of held(); nullptr where it has another size.
    static std::unique_ptr<SharedSegment> open(Descriptor held, std::size_t bytes);
    /// Segments of this user that some process here has, this one too, by their names; of equal names one. They stay as
    /// long as they are open here.
    static std::map<std::string, Descriptor> held(const std::function<bool(const std::string& name)>& wanted);
    /// Of one of held(): the bytes that its pages take.
    static int64_t bytes_taken(const Descriptor& held);
    ~SharedSegment();
    SharedSegment(const SharedSegment&) = delete;
    SharedSegment& operator=(const SharedSegment&) = delete;

    /// For open(), until close().
    std::string address() const;
    /// No other process is to open it through this process any more.
    void close();
    std::byte* data() const { return data_ + header_bytes; }

    /// Who holds the lock fills the segment. It is free again with unlock(), and when the segment or its process ends;
    /// not with close(), after which there is no lock to ask for. false: another has it, in this process or elsewhere;
    /// runtime Error where the system gives none.
    bool try_lock();
    void unlock();
    /// Whether it holds all that it is to hold: said once, by who filled it, and for good.
    bool complete() const;
    void set_complete();
    /// This process may no longer write into it.
    bool protect(bool read_only = true);

  private:
    static constexpr std::size_t header_bytes = 4096;  ///< a page of its own
    /// The random number by which the segment is known, and complete().
    struct Header;
    SharedSegment(Descriptor fd, std::size_t bytes) : fd_(std::move(fd)), bytes_(bytes) {}
    bool map();
    Header& header() const;

    Descriptor fd_;
    std::byte* data_ = nullptr;
    std::size_t bytes_;  ///< the header's, too
};

/// Held by one process of this user and machine at a time, and free when that ends; others wait for it, up to
/// `seconds`. It has no file. Not held where the system has no such thing, or another user keeps it: why() says so.
class MachineLock {
  public:
    explicit MachineLock(const std::string& name, double seconds = 10);
    const std::string& why() const { return why_; }

  private:
    Descriptor socket_;
    std::string why_;
};

}  // namespace unsloth
