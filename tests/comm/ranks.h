// Ranks as threads of the test program that meet at a real store.
#pragma once

#include <ATen/ATen.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "unsloth/comm/group.h"

namespace unsloth::comm {

inline int free_port() {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
    ::close(fd);
    return ntohs(address.sin_port);
}

inline LaunchEnvironment rank_of(int rank, int size, int port) {
    LaunchEnvironment e;
    e.rank = e.local_rank = rank;
    e.world_size = e.local_world_size = size;
    e.one_machine = true;
    e.master_address = "127.0.0.1";
    e.master_port = port;
    return e;
}

/// body(group) on every rank; rank 0's store outlives the others' use of it. `device_of` is asked on the rank's thread.
inline void on_ranks(
    int size, const std::function<void(Group&)>& body, std::chrono::seconds timeout = std::chrono::seconds(20),
    const std::function<at::Device(int rank)>& device_of = [](int) { return at::Device(at::kCPU); }) {
    const int port = free_port();
    std::vector<std::unique_ptr<Group>> groups(static_cast<std::size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank)
        threads.emplace_back([&, rank] {
            auto& group = groups[static_cast<std::size_t>(rank)];
            group = make_group(rank_of(rank, size, port), device_of(rank), timeout);
            body(*group);
        });
    for (std::thread& thread : threads) thread.join();
    for (std::size_t rank = groups.size(); rank-- > 0;) groups[rank].reset();
}

}  // namespace unsloth::comm
