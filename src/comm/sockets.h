// TCP without names: sockets that close themselves, addresses, listening.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <utility>

#include "unsloth/core/awake_clock.h"

namespace unsloth::comm {

/// What was suspended blames no other for the time in which it did not run.
using Clock = AwakeClock;
using std::chrono::milliseconds;

class Socket {
  public:
    explicit Socket(int fd = -1) : fd_(fd) {}
    Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Socket& operator=(Socket&& other) noexcept;
    ~Socket();
    int fd() const { return fd_; }
    bool open() const { return fd_ >= 0; }

  private:
    int fd_;
};

struct Address {
    sockaddr_storage bytes{};
    socklen_t size = 0;
};

Address loopback(int port);
/// The numbers, without a look-up: "10.0.0.7".
std::string host_of(const Address& address);
/// This end's address of a connection, or of a listening socket.
Address own_address(const Socket& socket);
int port_of(const Address& address);
bool is_loopback(const Address& address);

/// A socket that listens there, non-blocking; with `anywhere` on every address of this machine. runtime Error.
Socket listen_at(int port, bool anywhere);

/// Connected, non-blocking; not open where no peer answers within `patience`.
Socket connect_to(const Address& address, milliseconds patience);

/// Connects to the first address of `host` that answers. Names are looked up, numbers are not.
std::pair<Socket, Address> connect_to(const std::string& host, int port, milliseconds patience);

}  // namespace unsloth::comm
