#include "comm/interfaces.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace unsloth::comm {
namespace {

TEST(Interfaces, WhatNcclWouldTake) {
    const std::vector<std::string> names{"lo", "eth0", "eth1", "ib0"};
    for (const char* fine : {"eth", "eth1", "=ib0", "docker,ib", "^lo", "^=lo", "lo:1", "^eth,ib"})
        EXPECT_TRUE(leaves_an_interface(fine, names)) << fine;
    for (const char* wrong : {"eth7", "=eth", "enp3s0", "^lo,eth,ib", "^=lo,eth0,eth1,ib0"})
        EXPECT_FALSE(leaves_an_interface(wrong, names)) << wrong;
    ::setenv("NCCL_SOCKET_IFNAME", "nosuch7", 1);
    try {
        require_interfaces();
        ADD_FAILURE();
    } catch (const std::exception& error) {
        EXPECT_NE(std::string(error.what()).find("NCCL_SOCKET_IFNAME is \"nosuch7\""), std::string::npos)
            << error.what();
    }
    EXPECT_NE(nccl_advice().find("NCCL_SOCKET_IFNAME=nosuch7"), std::string::npos);
    ::unsetenv("NCCL_SOCKET_IFNAME");
    EXPECT_EQ(nccl_reason("NCCL error in: x.cpp:3, unhandled system error\nLast error:\nBootstrap : no socket\nframe"),
              "Bootstrap : no socket");
    EXPECT_EQ(nccl_reason("DistBackendError: it broke\nframe #0"), "DistBackendError: it broke");
}

}  // namespace
}  // namespace unsloth::comm
