#include "bench/comm.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>

#include <nlohmann/json.hpp>

#include "bench/ops.h"
#include "bench/ranks.h"
#include "unsloth/comm/group.h"
#include "unsloth/core/error.h"
#include "unsloth/memory/plan.h"

namespace unsloth::bench {
namespace {

/// Every element must be the sum of the ranks' numbers from 1.
void require_sum(const at::Tensor& sum, const comm::Group& group) {
    const double expected = group.size() * (group.size() + 1) / 2.0;
    const double least = sum.min().item<double>(), most = sum.max().item<double>();
    if (least == expected && most == expected) return;
    throw Error("rank.wrong-sum",
                cat("a sum over ", group.size(), " ranks is wrong: ", least, " to ", most, " instead of ", expected,
                    " (rank ", group.rank(), ")"),
                "The GPUs' peer access does not work: IOMMU or ACS on the PCIe bridges spoils it; "
                "NCCL_P2P_DISABLE=1 goes around it.");
}

double sum_ms(comm::Group& group, ops::Context& ctx, int64_t elements) {
    constexpr int warmup = 3, least_rounds = 5, most_rounds = 20;
    const int rounds = elements > (1 << 22) ? least_rounds : most_rounds;
    at::Tensor values = at::empty({elements}, at::TensorOptions(at::kFloat).device(ctx.device()));
    std::vector<double> times;
    for (int i = 0; i < rounds + warmup; ++i) {
        values.fill_(static_cast<float>(group.rank() + 1));
        synchronize(ctx);
        group.barrier("a timed sum");
        const auto start = std::chrono::steady_clock::now();
        group.all_reduce(values, cat("a sum of ", elements * 4, " bytes"));
        synchronize(ctx);
        if (i >= warmup)
            times.push_back(
                std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
        group.check();
    }
    require_sum(values, group);
    return slowest(gather_numbers(group, median(times), "the times of a sum"));
}

}  // namespace

void bench_comm(const config::LoadedConfig& loaded, const engine_api::BenchRequest& request) {
    const RankGroup ranks = meet_ranks(loaded, "bench comm");
    ops::Context ctx(ranks.device);
    const double link_factor = 2.0 * (ranks.group->size() - 1) / ranks.group->size();
    // The store, which sums on the CPU, is not made for megabytes.
    const std::vector<int64_t> sizes = ctx.is_cuda() ? std::vector<int64_t>{1 << 10, 1 << 20, 16 << 20, 256 << 20}
                                                     : std::vector<int64_t>{1 << 10, 1 << 16, 1 << 20};
    if (ranks.group->rank() == 0 && !request.json)
        std::printf("%d ranks, %s\n%12s %12s %12s\n", ranks.group->size(),
                    memory::describe_device(ranks.device).c_str(), "bytes", "ms", "bus GB/s");
    for (const int64_t bytes : sizes) {
        const double ms = sum_ms(*ranks.group, ctx, bytes / 4),
                     bus = link_factor * static_cast<double>(bytes) / ms / 1e6;
        if (ranks.group->rank() != 0) continue;
        if (request.json) {
            std::cout << nlohmann::ordered_json{{"bench", "comm"},
                                                {"device", memory::describe_device(ranks.device)},
                                                {"ranks", ranks.group->size()},
                                                {"bytes", bytes},
                                                {"ms", ms},
                                                {"bus_gb_per_second", bus}}
                             .dump()
                      << std::endl;
        } else {
            std::printf("%12lld %12.4f %12.2f\n", static_cast<long long>(bytes), ms, bus);
        }
    }
}

}  // namespace unsloth::bench
