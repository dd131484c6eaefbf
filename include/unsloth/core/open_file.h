// Opening files in folders where other users may write too: nothing is waited for, and nothing is followed unseen.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

namespace unsloth {

class Folder;

/// Owns an open file; -1: none.
class Descriptor {
  public:
    explicit Descriptor(int fd = -1) noexcept : fd_(fd) {}
    Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        if (this != &other) {
            close();
            fd_ = other.release();
        }
        return *this;
    }
    ~Descriptor() { close(); }
    int get() const { return fd_; }
    bool open() const { return fd_ >= 0; }
    int release() noexcept { return std::exchange(fd_, -1); }
    void close() noexcept;

  private:
    int fd_;
};

/// A file of the user's, opened for reading; links are followed. Never waits: a FIFO, a socket or a device is an input
/// Error that names it, as is what cannot be opened.
Descriptor open_to_read(const std::filesystem::path& path);

/// To whom a file may belong that this program keeps. ours: this user, root, or the folder's owner, who could have
/// replaced it anyway. anyone: in a cache that users share.
enum class Owner { ours, anyone };

/// A file that this program keeps for itself (a lock, a file of the cache, a log), opened, or made where `flags`
/// (open(2)) say O_CREAT; the umask decides whether others of a shared cache may write it. Runtime Error that names it
/// when it is a link, no regular file, has other names than this one, or belongs to somebody else: somebody put it
/// there. Not open, with errno set, when the system refuses.
Descriptor open_own_file(const Folder& folder, const std::string& name, int flags, Owner owner = Owner::ours);
/// The same in the folder of that path (Folder::named).
Descriptor open_own_file(const std::filesystem::path& path, int flags, Owner owner = Owner::ours);

}  // namespace unsloth
