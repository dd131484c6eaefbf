// The variables by which a rank knows its place: torchrun's names (src/comm/launch.cpp reads them).
#pragma once

#include <string>
#include <vector>

#include "app/launch/process.h"

namespace unsloth::app {

struct Place {
    int local_rank = 0, ranks_here = 1;  ///< on this machine
    int node = 0, nodes = 1;             ///< machines, all with as many ranks
    std::string master_address = "127.0.0.1";
    int master_port = 0;
    int restarts = 0, max_restarts = 0;
    int threads = 1;  ///< for OMP_NUM_THREADS, unless the user set it
    // For this program's own ranks (src/comm/launch.cpp):
    std::string secret;    ///< that the launcher made; empty: none, or the user's is inherited
    int store_fd = -1;     ///< rank 0's listening socket, at master_port of 127.0.0.1
    int launcher_fd = -1;  ///< where ranks tell the launcher of their first step, and of ranks that are lost
    int rank() const { return node * ranks_here + local_rank; }
    int world_size() const { return nodes * ranks_here; }
};

/// "NAME=value" each: what is inherited, with the rank's variables in place of any that another launcher set.
std::vector<std::string> rank_environment(const std::vector<std::string>& inherited, const Place& place);

/// This process' environment.
std::vector<std::string> own_environment();

/// A socket that listens at some port of 127.0.0.1 and keeps that port from then on; non-blocking. runtime Error
/// when there is none.
Descriptor listen_on_loopback();
int port_of(const Descriptor& listening);
/// A port of 127.0.0.1 that was free a moment ago, for programs that listen themselves.
int free_port();

/// 64 random hexadecimal digits. runtime Error where the kernel gives none.
std::string make_secret();
/// Whether the user gave the ranks a secret.
bool has_secret(const std::vector<std::string>& environment);

}  // namespace unsloth::app
