#include "comm/interfaces.h"

#include <ifaddrs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string_view>

#include "comm/monitor.h"
#include "unsloth/core/error.h"

namespace unsloth::comm {
namespace {

constexpr const char* setting = "NCCL_SOCKET_IFNAME";

std::vector<std::string> own_interfaces() {
    std::vector<std::string> names;
    ifaddrs* all = nullptr;
    if (::getifaddrs(&all) != 0) return names;
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) names.emplace_back(one->ifa_name);
    ::freeifaddrs(all);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
}

}  // namespace

bool leaves_an_interface(const std::string& value, const std::vector<std::string>& names) {
    std::string_view rest = value;
    const bool excludes = rest.starts_with('^');
    if (excludes) rest.remove_prefix(1);
    const bool exact = rest.starts_with('=');
    if (exact) rest.remove_prefix(1);
    std::vector<std::string> asked;
    std::istringstream list{std::string(rest)};
    for (std::string one; std::getline(list, one, ',');) asked.push_back(one.substr(0, one.find(':')));
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
        const bool listed = std::any_of(asked.begin(), asked.end(), [&](const std::string& one) {
            return exact ? name == one : name.starts_with(one);
        });
        return listed != excludes;
    });
}

void require_interfaces() {
    const char* const value = std::getenv(setting);
    if (value == nullptr || *value == '\0') return;
    const std::vector<std::string> names = own_interfaces();
    if (names.empty() || leaves_an_interface(value, names)) return;
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
    throw Error(
        "network.no-interface",
        cat(setting, " is \"", one_line(value), "\", which leaves none of this machine's interfaces (", all, ")"),
        "It is set in the environment, or by distributed.nccl as SOCKET_IFNAME; without it NCCL chooses.");
}

std::string nccl_reason(const std::string& message) {
    // "NCCL error in: FILE:LINE, unhandled system error …\nncclSystemError: …\nLast error:\nBootstrap : no socket …"
    constexpr std::string_view last = "Last error:\n";
    const std::size_t at = message.find(last);
    const std::string reason = at == std::string::npos ? message : message.substr(at + last.size());
    const std::string line = reason.substr(0, reason.find('\n'));
    return one_line(line.empty() ? message.substr(0, message.find('\n')) : line);
}

std::string nccl_advice() {
    std::string set;
    for (char** variable = environ; *variable != nullptr; ++variable)
        if (std::string_view(*variable).starts_with("NCCL_")) set += cat(set.empty() ? "" : ", ", one_line(*variable));
    return cat("Settings of NCCL that are set: ", set.empty() ? "none" : set,
               ". NCCL_SOCKET_IFNAME chooses the interface, NCCL_DEBUG=INFO shows what NCCL does; unsloth-train doctor "
               "looks at the machine.");
}

}  // namespace unsloth::comm
