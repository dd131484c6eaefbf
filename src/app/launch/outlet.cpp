#include "app/launch/outlet.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace unsloth::app {

void Outlet::put(std::string_view bytes) {
    if (!lost_) queue_ += bytes;
}

void Outlet::write_some() {
    // A descriptor that poll() calls writable takes a page without blocking. (O_NONBLOCK would change it for everyone
    // who shares it.)
    constexpr std::size_t page = 4096;
    std::size_t sent = 0;
    pollfd ready{fd_, POLLOUT, 0};
    while (sent < queue_.size() && ::poll(&ready, 1, 0) == 1) {
        const ssize_t written = ::write(fd_, queue_.data() + sent, std::min(page, queue_.size() - sent));
        if (written < 0 && (errno == EINTR || errno == EAGAIN)) break;
        if (written < 0) {
            lost_ = true;
            sent = queue_.size();
            break;
        }
        sent += static_cast<std::size_t>(written);
    }
    queue_.erase(0, sent);
}

void Outlet::drain(AwakeClock::time_point give_up) {
    while (waiting()) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(give_up - AwakeClock::now()).count();
        if (left <= 0) return;
        pollfd ready{fd_, POLLOUT, 0};
        if (::poll(&ready, 1, static_cast<int>(left)) == 1) write_some();
    }
}

bool same_file(int a, int b) {
    struct stat first{}, second{};
    return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

}  // namespace unsloth::app
