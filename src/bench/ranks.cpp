#include "bench/ranks.h"

#include <algorithm>
#include <sstream>

#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/ops/device.h"

namespace unsloth::bench {

RankGroup meet_ranks(const config::LoadedConfig& loaded, const std::string& bench) {
    RankGroup ranks{comm::read_launch_environment()};
    if (ranks.environment.alone())
        throw Error(
            "rank.needs-several", cat(bench, " compares several processes, and this one is alone"),
            cat("Start it with unsloth-train launch --nproc_per_node N ", bench, " …, or with torchrun --no-python."));
    comm::set_nccl_environment(loaded.config.distributed.nccl);
    ranks.device = ops::choose_device(loaded.config.hardware.device, ranks.environment.local_rank);
    ranks.group =
        comm::make_group(ranks.environment, ranks.device, std::chrono::seconds(loaded.config.distributed.ddp_timeout));
    if (ranks.group->rank() != 0) log::set_level(std::max(log::level(), log::Level::warning));
    return ranks;
}

std::vector<double> gather_numbers(comm::Group& group, double own, const std::string& what) {
    std::ostringstream text;
    text.precision(17);
    text << own;
    std::vector<double> numbers;
    for (const std::string& number : group.gather(text.str(), what)) numbers.push_back(std::stod(number));
    return numbers;
}

double slowest(const std::vector<double>& numbers) {
    return *std::max_element(numbers.begin(), numbers.end());
}

}  // namespace unsloth::bench
