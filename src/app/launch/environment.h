// The variables by which a rank knows its place: torchrun's names (src/comm/launch.cpp reads them).
#pragma once

#include <string>
#include <vector>

namespace unsloth::app {

struct Place {
    int local_rank = 0, ranks_here = 1;  ///< on this machine
    int node = 0, nodes = 1;             ///< machines, all with as many ranks
    std::string master_address = "127.0.0.1";
    int master_port = 0;
    int restarts = 0, max_restarts = 0;
    int threads = 1;  ///< for OMP_NUM_THREADS, unless the user set it
    int rank() const { return node * ranks_here + local_rank; }
    int world_size() const { return nodes * ranks_here; }
};

/// "NAME=value" each: what is inherited, with the rank's variables in place of any that another launcher set.
std::vector<std::string> rank_environment(const std::vector<std::string>& inherited, const Place& place);

/// This process' environment.
std::vector<std::string> own_environment();

/// A port of 127.0.0.1 that was free a moment ago. runtime Error when there is none.
int free_port();

}  // namespace unsloth::app
