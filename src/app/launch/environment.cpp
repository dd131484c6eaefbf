#include "app/launch/environment.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "unsloth/core/error.h"
#include "unsloth/core/hex.h"

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
    if (!place.secret.empty()) set("UNSLOTH_SECRET", place.secret);
    if (place.store_fd >= 0) set("UNSLOTH_STORE_FD", place.store_fd);
    if (place.launcher_fd >= 0) set("UNSLOTH_LAUNCHER_FD", place.launcher_fd);
    const bool threads_set = std::any_of(inherited.begin(), inherited.end(),
                                         [](const std::string& v) { return name_of(v) == "OMP_NUM_THREADS"; });
    if (!threads_set) set("OMP_NUM_THREADS", place.threads);

    // An agent of torchrun's above this launcher: the ranks meet at rank 0's own store, not at the agent's. Nor are
    // another launcher's descriptors ours.
    constexpr std::string_view foreign[] = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
                                            "TORCHELASTIC_ERROR_FILE", "UNSLOTH_STORE_FD", "UNSLOTH_LAUNCHER_FD"};
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

Descriptor listen_on_loopback() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    constexpr int waiting = 1024;
    Descriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.open() || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(fd.get(), waiting) != 0)
        throw Error("network.port", cat("cannot find a free port: ", std::strerror(errno)),
                    "Name one with --master_port.");
    return fd;
}

int port_of(const Descriptor& listening) {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    if (::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
        throw Error("network.port", cat("cannot find a free port: ", std::strerror(errno)),
                    "Name one with --master_port.");
    return ntohs(address.sin_port);
}

int free_port() {
    return port_of(listen_on_loopback());
}

std::string make_secret() {
    std::array<uint8_t, 32> bytes;
    ssize_t got;
    while ((got = ::getrandom(bytes.data(), bytes.size(), 0)) < 0 && errno == EINTR) {
    }
    if (got != static_cast<ssize_t>(bytes.size()))
        throw Error("process.system-call", cat("the kernel gives no random numbers: ", std::strerror(errno)));
    return hex(std::as_bytes(std::span(bytes)));
}

bool has_secret(const std::vector<std::string>& environment) {
    return std::any_of(environment.begin(), environment.end(), [](const std::string& variable) {
        const std::string_view name = name_of(variable);
        return (name == "UNSLOTH_SECRET" || name == "UNSLOTH_SECRET_FILE") && variable.size() > name.size() + 1;
    });
}

}  // namespace unsloth::app
