#include "comm/sockets.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "unsloth/core/error.h"

namespace unsloth::comm {
namespace {

sockaddr* generic(Address& address) {
    return reinterpret_cast<sockaddr*>(&address.bytes);
}
const sockaddr* generic(const Address& address) {
    return reinterpret_cast<const sockaddr*>(&address.bytes);
}

Address ipv4(in_addr_t host, int port) {
    Address address;
    auto& four = reinterpret_cast<sockaddr_in&>(address.bytes);
    four.sin_family = AF_INET;
    four.sin_addr.s_addr = htonl(host);
    four.sin_port = htons(static_cast<uint16_t>(port));
    address.size = sizeof four;
    return address;
}

Address every_address(int family, int port) {
    if (family != AF_INET6) return ipv4(INADDR_ANY, port);
    Address address;
    auto& six = reinterpret_cast<sockaddr_in6&>(address.bytes);
    six.sin6_family = AF_INET6;
    six.sin6_addr = in6addr_any;
    six.sin6_port = htons(static_cast<uint16_t>(port));
    address.size = sizeof six;
    return address;
}

/// errno is set where it is not open.
Socket listen_at(const Address& address) {
    constexpr int waiting = 1024;  // many ranks come at once
    Socket socket(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int yes = 1, no = 0;
    if (!socket.open()) return socket;
    ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);  // a restart needs not wait for TIME_WAIT
    if (address.bytes.ss_family == AF_INET6) ::setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    if (::bind(socket.fd(), generic(address), address.size) != 0 || ::listen(socket.fd(), waiting) != 0) {
        const int failure = errno;
        socket = Socket();
        errno = failure;
    }
    return socket;
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
    if (this != &other) {
        if (fd_ >= 0) ::close(fd_);
        fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
}

Socket::~Socket() {
    if (fd_ >= 0) ::close(fd_);
}

Address loopback(int port) {
    return ipv4(INADDR_LOOPBACK, port);
}

std::string host_of(const Address& address) {
    char text[INET6_ADDRSTRLEN] = "";
    const void* const number =
        address.bytes.ss_family == AF_INET6
            ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(address.bytes).sin6_addr)
            : &reinterpret_cast<const sockaddr_in&>(address.bytes).sin_addr;
    ::inet_ntop(address.bytes.ss_family, number, text, sizeof text);
    return text;
}

Address own_address(const Socket& socket) {
    Address address;
    address.size = sizeof address.bytes;
    if (::getsockname(socket.fd(), generic(address), &address.size) != 0) address.size = 0;
    return address;
}

int port_of(const Address& address) {
    return ntohs(address.bytes.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address.bytes).sin6_port
                                                     : reinterpret_cast<const sockaddr_in&>(address.bytes).sin_port);
}

bool is_loopback(const Address& address) {
    if (address.bytes.ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address.bytes).sin6_addr);
    return ntohl(reinterpret_cast<const sockaddr_in&>(address.bytes).sin_addr.s_addr) >> 24 == 127;
}

Socket listen_at(int port, bool anywhere) {
    Socket socket = anywhere ? listen_at(every_address(AF_INET6, port)) : listen_at(loopback(port));
    if (!socket.open() && anywhere && errno != EADDRINUSE) socket = listen_at(every_address(AF_INET, port));
    if (!socket.open()) throw Error("process.system-call", std::strerror(errno));
    return socket;
}

Socket connect_to(const Address& address, milliseconds patience) {
    Socket socket(::socket(address.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket.open()) return socket;
    int error = ::connect(socket.fd(), generic(address), address.size) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
        pollfd waits{socket.fd(), POLLOUT, 0};
        socklen_t size = sizeof error;
        if (::poll(&waits, 1, static_cast<int>(patience.count())) != 1 ||
            ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0)
            error = ETIMEDOUT;
    }
    if (error != 0) return Socket();
    const int yes = 1;
    ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return socket;
}

std::pair<Socket, Address> connect_to(const std::string& host, int port, milliseconds patience) {
    std::pair<Socket, Address> found;
    addrinfo hints{}, *all = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &all) != 0) return found;
    for (const addrinfo* one = all; one != nullptr && !found.first.open(); one = one->ai_next) {
        std::memcpy(&found.second.bytes, one->ai_addr, one->ai_addrlen);
        found.second.size = one->ai_addrlen;
        found.first = connect_to(found.second, patience);
    }
    ::freeaddrinfo(all);
    return found;
}

}  // namespace unsloth::comm
