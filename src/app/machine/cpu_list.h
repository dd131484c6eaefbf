// Sets of CPUs as Linux writes them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unsloth::app {

/// CPU numbers, ascending, each once.
using CpuList = std::vector<int>;

/// "0-3,8,10-11\n" as in /sys/…/local_cpulist; "" is the empty set; nullopt for anything else.
std::optional<CpuList> parse_cpu_list(std::string_view text);
/// The shortest such text.
std::string format_cpu_list(const CpuList& cpus);
/// What is in both.
CpuList common_cpus(const CpuList& a, const CpuList& b);

}  // namespace unsloth::app
