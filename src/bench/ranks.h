// What the benches of several processes share.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "unsloth/comm/group.h"
#include "unsloth/session/session.h"

namespace unsloth::bench {

struct RankGroup {
    comm::LaunchEnvironment environment;
    at::Device device = at::kCPU;
    std::unique_ptr<comm::Group> group;
};

/// Meets the other ranks; those but the first print warnings alone from then on. usage Error for `bench` when this
/// process is alone.
RankGroup meet_ranks(const config::LoadedConfig& loaded, const std::string& bench);

/// Every rank's number, by rank.
std::vector<double> gather_numbers(comm::Group& group, double own, const std::string& what);
double slowest(const std::vector<double>& numbers);

}  // namespace unsloth::bench
