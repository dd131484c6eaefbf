// This process' rank among those that train together, as launchers set it in the environment.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unsloth::comm {

struct LaunchEnvironment {
    int rank = 0, world_size = 1;
    int local_rank = 0, local_world_size = 1;  ///< on this machine
    std::string master_address;                ///< of the store that all meet at; empty when alone
    int master_port = 0;
    bool agent_hosts_store = false;  ///< torchrun's agent hosts the store, rank 0 is a client like the others
    std::string launcher = "none";   ///< "torchrun", "srun", "mpirun", "RANK and WORLD_SIZE": for the log
    int restarts = 0;                ///< torchrun's count of elastic restarts
    bool one_machine = false;        ///< all ranks are on this one, as the launcher says
    std::string secret;              ///< of the run, known to its ranks alone; empty: none
    int store_fd = -1;     ///< unsloth-train launch gives rank 0 the socket to serve the store at; -1: it makes one
    int launcher_fd = -1;  ///< where tell_launcher() writes; -1: there is no listener
    bool owns_process = false;  ///< the process is this rank's alone: it ends when the rank cannot continue
    bool alone() const { return world_size == 1; }
};

/// An environment variable's value; nullopt: not set.
using GetEnvironment = std::function<std::optional<std::string>(const char* name)>;

/// Reads, in this order: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT (torchrun,
/// accelerate, unsloth-train launch); OMPI_COMM_WORLD_* (Open MPI); SLURM_PROCID, SLURM_NTASKS, … (srun). Slurm's tasks
/// meet at the first host of the step's node list, at a port made from the job's number, unless MASTER_ADDR and
/// MASTER_PORT say otherwise. Nothing of these: alone. UNSLOTH_SECRET, or the file that UNSLOTH_SECRET_FILE names, has
/// the run's secret. A rank that is found so owns its process. usage Error where some variables are set and others that
/// they need are not, a number is none, or the secret cannot be read or is shorter than 16 characters.
LaunchEnvironment read_launch_environment(const GetEnvironment& get);
LaunchEnvironment read_launch_environment();

/// A line for unsloth-train launch, where it started this rank: "step" once the first step is done, "lost N" when rank
/// N sends no heartbeat. Never fails.
void tell_launcher(const LaunchEnvironment& environment, const std::string& line) noexcept;

/// Sets NCCL's environment variables for this process, before the group is made: {"SOCKET_IFNAME", "eth0"} and
/// {"NCCL_SOCKET_IFNAME", "eth0"} are the same. Returns all NCCL_* variables that then are set, as "NAME=VALUE" by
/// name, for the log. usage Error for a name that can be none.
std::vector<std::string> set_nccl_environment(const std::vector<std::pair<std::string, std::string>>& settings);

/// The first host of a Slurm node list: "gpu[003-004,7],login1" gives "gpu003".
std::string first_slurm_host(const std::string& node_list);

}  // namespace unsloth::comm
