#include "unsloth/comm/launch.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "unsloth/core/error.h"
#include "unsloth/core/files.h"

namespace unsloth::comm {
namespace {

/// The variables of one launcher.
struct Names {
    const char *launcher, *rank, *world_size, *local_rank, *local_world_size;
};
constexpr Names torchrun{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names mpirun{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                       "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names srun{"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"};

class Reader {
  public:
    explicit Reader(const GetEnvironment& get) : get_(get) {}

    std::optional<int> number(const char* name, int least) const {
        const std::optional<std::string> text = get_(name);
        if (!text || text->empty()) return std::nullopt;
        int value = 0;
        const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
        if (error != std::errc() || end != text->data() + text->size() || value < least)
            throw Error("rank.environment",
                        cat("the environment variable ", name, " is \"", *text, "\", expected a number from ", least),
                        "It is the launcher's to set.");
        return value;
    }
    int needed(const char* name, int least, const char* because) const {
        if (const std::optional<int> value = number(name, least)) return *value;
        throw Error("rank.environment", cat("the environment variable ", because, " is set, ", name, " is not"),
                    "Start several processes with unsloth-train launch, torchrun, srun or mpirun, or unset it "
                    "for a single one.");
    }
    std::string text(const char* name) const { return get_(name).value_or(""); }
    bool set(const char* name) const { return !text(name).empty(); }

  private:
    const GetEnvironment& get_;
};

LaunchEnvironment read(const Reader& env, const Names& names) {
    LaunchEnvironment e;
    e.launcher = names.launcher;
    e.world_size = env.needed(names.world_size, 1, names.rank);
    e.rank = env.needed(names.rank, 0, names.world_size);
    if (e.rank >= e.world_size)
        throw Error("rank.environment", cat("the environment says rank ", e.rank, " of ", e.world_size, " (",
                                            names.rank, ", ", names.world_size, ")"));
    e.local_rank = env.number(names.local_rank, 0).value_or(e.rank);
    const std::optional<int> here = env.number(names.local_world_size, 1);
    e.local_world_size = here.value_or(std::max(e.local_rank + 1, 1));
    e.one_machine = here == e.world_size;
    return e;
}

/// Without the line's end: editors and `echo` leave one.
std::string read_secret(const Reader& env) {
    constexpr std::size_t least = 16;  // who sees a proof can try short ones
    const std::string path = env.text("UNSLOTH_SECRET_FILE");
    std::string secret = env.text("UNSLOTH_SECRET");
    const std::string where = secret.empty() ? path : "the environment variable UNSLOTH_SECRET";
    if (secret.empty() && !path.empty()) {
        try {
            secret = read_file(path);
        } catch (const Error& error) {
            throw Error("rank.secret", cat("UNSLOTH_SECRET_FILE: ", error.what()));
        }
        while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
    } else if (secret.empty()) {
        return secret;
    }
    if (secret.size() < least)
        throw Error("rank.secret", cat(where, " holds ", secret.size(), " characters, a run's secret needs ", least),
                    "Make one with: openssl rand -hex 32");
    return secret;
}

/// The descriptor that a variable names, if it is one of the kind; others may have inherited the variable alone.
int inherited(const Reader& env, const char* name, mode_t kind) {
    const int fd = env.number(name, 0).value_or(-1);
    struct stat status{};
    return fd > STDERR_FILENO && ::fstat(fd, &status) == 0 && (status.st_mode & S_IFMT) == kind ? fd : -1;
}

void read_meeting_place(const Reader& env, const Names* launcher, LaunchEnvironment& e) {
    if (e.alone()) return;
    e.master_address = env.text("MASTER_ADDR");
    const bool one_machine = e.local_world_size == e.world_size;
    if (e.master_address.empty() && launcher == &srun) {
        const std::string nodes =
            env.set("SLURM_STEP_NODELIST") ? env.text("SLURM_STEP_NODELIST") : env.text("SLURM_JOB_NODELIST");
        e.master_address = first_slurm_host(nodes);
    }
    if (e.master_address.empty() && launcher == &mpirun && one_machine) e.master_address = "127.0.0.1";
    if (e.master_address.empty())
        throw Error(
            "rank.environment",
            cat(e.world_size, " processes, and the environment variable MASTER_ADDR does not say where they meet"),
            "Set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port there.");
    const std::optional<int> port = env.number("MASTER_PORT", 1);
    const std::optional<int> job = env.number("SLURM_JOB_ID", 0);
    if (port)
        e.master_port = *port;
    else if (launcher == &srun && job)
        e.master_port = 20000 + *job % 20000;  // below the ports that the kernel hands out
    else
        throw Error("rank.environment", "the environment variable MASTER_PORT is not set",
                    "Set it to a port that is free on rank 0's host.");
    if (e.master_port > 65535)
        throw Error("rank.environment",
                    cat("the environment variable MASTER_PORT is ", e.master_port, ", ports end at 65535"));
}

}  // namespace

std::string first_slurm_host(const std::string& node_list) {
    const std::size_t end = node_list.find_first_of(",[");
    if (end == std::string::npos || node_list[end] == ',') return node_list.substr(0, end);
    const std::size_t stop = node_list.find_first_of(",-]", end + 1);
    return node_list.substr(0, end) + node_list.substr(end + 1, stop - end - 1);
}

LaunchEnvironment read_launch_environment(const GetEnvironment& get) {
    const Reader env(get);
    const bool several_tasks = env.set(srun.rank) && env.number(srun.world_size, 1).value_or(1) > 1;
    const Names* launcher = nullptr;
    if (env.set(torchrun.rank) || env.set(torchrun.world_size))
        launcher = &torchrun;
    else if (env.set(mpirun.rank))
        launcher = &mpirun;
    else if (several_tasks)
        launcher = &srun;
    if (launcher == nullptr) return {};
    LaunchEnvironment e = read(env, *launcher);
    if (launcher == &torchrun) {
        if (!env.set("TORCHELASTIC_RUN_ID")) e.launcher = "RANK and WORLD_SIZE";
        e.agent_hosts_store = env.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
        e.restarts = env.number("TORCHELASTIC_RESTART_COUNT", 0).value_or(0);
    }
    if (launcher == &srun && env.number("SLURM_STEP_NUM_NODES", 1) == 1) e.one_machine = true;
    read_meeting_place(env, launcher, e);
    if (e.alone()) return e;
    e.owns_process = true;
    e.secret = read_secret(env);
    e.store_fd = e.rank == 0 ? inherited(env, "UNSLOTH_STORE_FD", S_IFSOCK) : -1;
    e.launcher_fd = inherited(env, "UNSLOTH_LAUNCHER_FD", S_IFIFO);
    return e;
}

std::vector<std::string> set_nccl_environment(const std::vector<std::pair<std::string, std::string>>& settings) {
    constexpr std::string_view prefix = "NCCL_";
    for (const auto& [given, value] : settings) {
        std::string name = given;
        for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
        if (!name.starts_with(prefix)) name.insert(0, prefix);
        if (name.size() == prefix.size() ||
            name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != std::string::npos)
            throw Error("option.unknown-key", cat("distributed.nccl: '", given, "' is no name of a setting"),
                        "Names are those of NCCL's environment variables, such as SOCKET_IFNAME.");
        ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
    }
    std::vector<std::string> all;
    for (char** variable = environ; *variable != nullptr; ++variable)
        if (std::string_view(*variable).starts_with(prefix)) all.emplace_back(*variable);
    std::sort(all.begin(), all.end());
    return all;
}

void tell_launcher(const LaunchEnvironment& environment, const std::string& line) noexcept {
    if (environment.launcher_fd < 0) return;
    const std::string whole = line + "\n";  // short enough for the pipe to take it whole
    [[maybe_unused]] const auto written = ::write(environment.launcher_fd, whole.data(), whole.size());
}

LaunchEnvironment read_launch_environment() {
    return read_launch_environment([](const char* name) -> std::optional<std::string> {
        const char* value = std::getenv(name);
        return value == nullptr ? std::nullopt : std::optional<std::string>(value);
    });
}

}  // namespace unsloth::comm
