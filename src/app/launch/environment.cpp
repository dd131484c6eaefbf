#include "app/launch/environment.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "unsloth/core/error.h"

namespace unsloth::app {
namespace {

std::string_view name_of(std::string_view variable) {
    return variable.substr(0, variable.find('='));
}

}  // namespace

std::vector<std::string> rank_environment(const std::vector<std::string>& inherited, const Place& place) {
    std::vector<std::string> own;
    const auto set = [&](const char* name, const auto& value) { own.push_back(cat(name, "=", value)); };
    set("RANK", place.rank());
    set("LOCAL_RANK", place.local_rank);
    set("WORLD_SIZE", place.world_size());
    set("LOCAL_WORLD_SIZE", place.ranks_here);
    set("GROUP_RANK", place.node);
    set("GROUP_WORLD_SIZE", place.nodes);
    set("ROLE_NAME", "default");
    set("ROLE_RANK", place.rank());
    set("ROLE_WORLD_SIZE", place.world_size());
    set("MASTER_ADDR", place.master_address);
    set("MASTER_PORT", place.master_port);
    set("TORCHELASTIC_RESTART_COUNT", place.restarts);
    set("TORCHELASTIC_MAX_RESTARTS", place.max_restarts);
    const bool threads_set = std::any_of(inherited.begin(), inherited.end(),
                                         [](const std::string& v) { return name_of(v) == "OMP_NUM_THREADS"; });
    if (!threads_set) set("OMP_NUM_THREADS", place.threads);

    // An agent of torchrun's above this launcher: the ranks meet at rank 0's own store, not at the agent's.
    constexpr std::string_view foreign[] = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
                                            "TORCHELASTIC_ERROR_FILE"};
    std::vector<std::string> all;
    for (const std::string& variable : inherited) {
        const std::string_view name = name_of(variable);
        const bool replaced =
            std::any_of(own.begin(), own.end(), [&](const std::string& v) { return name_of(v) == name; });
        if (!replaced && std::find(std::begin(foreign), std::end(foreign), name) == std::end(foreign))
            all.push_back(variable);
    }
    all.insert(all.end(), own.begin(), own.end());
    return all;
}

std::vector<std::string> own_environment() {
    std::vector<std::string> all;
    for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable)
        all.emplace_back(*variable);
    return all;
}

int free_port() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool found = fd >= 0 && ::bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
                       ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
    const int failure = errno;
    if (fd >= 0) ::close(fd);
    if (!found)
        throw runtime_failure(cat("cannot find a free port: ", std::strerror(failure)), "Name one with --master_port.");
    return ntohs(address.sin_port);
}

}  // namespace unsloth::app
