#include "bench/scaling.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <numeric>

#include <nlohmann/json.hpp>

#include "bench/model.h"
#include "bench/ops.h"
#include "bench/ranks.h"
#include "unsloth/comm/group.h"
#include "unsloth/memory/plan.h"
#include "unsloth/placement/parallel.h"
#include "unsloth/placement/stages.h"

namespace unsloth::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// Milliseconds of the gradients' all-reduce over their replicas, with nothing else in flight: the median
/// of single calls, of the slowest rank. Called by all ranks; `alike` may be nullptr.
double all_reduce_ms(comm::Group& group, comm::Communicator* alike, BenchedModel& benched) {
    const at::Tensor gradients = at::zeros_like(benched.model().parameters()->state().grads_P);
    std::vector<double> times;
    constexpr int rounds = 20, warmup = 3;
    for (int i = 0; i < rounds + warmup; ++i) {
        synchronize(benched.ctx());
        group.barrier("a timed all-reduce");
        const auto start = Clock::now();
        if (alike != nullptr) alike->all_reduce(gradients, "a timed all-reduce");
        synchronize(benched.ctx());
        if (i >= warmup) times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
    }
    return slowest(gather_numbers(group, median(times), "the times of the all-reduce"));
}

/// Steps of a round, in ms, of the slowest rank; all begin together.
struct Phase {
    std::vector<double> ms;
    std::vector<double> of_ranks;  ///< of the last round

    void add(comm::Group& group, StepTimer& timer, int64_t steps) {
        timer.run(2);  // the first steps after the other way find clocks and graphs changed
        group.barrier("a round of steps");
        of_ranks = gather_numbers(group, timer.run(steps).ms, "the times of a round");
        ms.push_back(slowest(of_ranks));
    }
};

}  // namespace

void bench_scaling(const config::LoadedConfig& loaded, const engine_api::BenchRequest& request) {
    const config::DistributedOptions& distributed = loaded.config.distributed;
    if (distributed.zero_stage > 0 || distributed.offload_optimizer == config::OptimizerPlace::cpu)
        throw Error("option.unsupported",
                    "bench scaling compares ranks alone with ranks together, each of which holds all of its states",
                    "Leave distributed.zero_stage and offload_optimizer out, or read the times of a train run.");
    const RankGroup ranks = meet_ranks(loaded, "bench scaling");
    const at::Device device = ranks.device;
    const std::unique_ptr<comm::Group>& group = ranks.group;
    const comm::Mesh mesh(*group, placement::choose_mesh(loaded.config.distributed, group->size()),
                          placement::several_chunks(loaded.config.distributed));
    const std::vector<int64_t> lengths = row_lengths(request.batch, request.seq, request.min_seq);
    const auto loading = Clock::now();
    BenchedModel benched(loaded, device, lengths, group.get(), request.accumulate, &mesh);
    synchronize(benched.ctx());
    const std::vector<double> load_seconds =
        gather_numbers(*group, std::chrono::duration<double>(Clock::now() - loading).count(), "the times of loading");

    StepTimer timer(benched, loaded.config, lengths, group.get(), request.accumulate, &mesh);
    timer.run(request.warmup_of());
    Phase alone, together;
    constexpr int rounds = 3;
    for (int round = 0; round < rounds; ++round) {
        timer.set_sharing(false);
        alone.add(*group, timer, request.steps);
        timer.set_sharing(true);
        together.add(*group, timer, request.steps);
    }
    const double reduce_ms = all_reduce_ms(*group, mesh.stage(), benched);
    const int alike = mesh.stage() == nullptr ? 1 : mesh.stage()->size();
    const double bytes = 4.0 * static_cast<double>(benched.model().parameters()->table().flat_elements());
    const double tokens =
        static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) * request.accumulate) *
        mesh.shape().dp;
    const double alone_ms = median(alone.ms), together_ms = median(together.ms);
    if (group->rank() != 0) return;
    nlohmann::ordered_json result{{"bench", "scaling"},
                                  {"device", memory::describe_device(device)},
                                  {"model", loaded.config.model.path},
                                  {"ranks", group->size()},
                                  {"tp_size", mesh.shape().tp},
                                  {"pp_size", mesh.shape().pp},
                                  {"cp_size", mesh.shape().cp},
                                  {"accumulate", request.accumulate},
                                  {"ranks_of_machine", ranks.environment.local_world_size},
                                  {"batch", request.batch},
                                  {"seq", request.seq},
                                  {"tokens", tokens},
                                  {"steps", request.steps},
                                  {"alone_ms", alone_ms},
                                  {"alone_ms_of_rounds", alone.ms},
                                  {"alone_ms_of_ranks", alone.of_ranks},
                                  {"together_ms", together_ms},
                                  {"together_ms_of_rounds", together.ms},
                                  {"alone_tokens_per_second", 1000 * tokens / alone_ms},
                                  {"together_tokens_per_second", 1000 * tokens / together_ms},
                                  {"efficiency", alone_ms / together_ms},
                                  {"exposed_ms", together_ms - alone_ms},
                                  {"gradient_bytes", bytes},
                                  {"load_seconds", load_seconds}};
    if (alike > 1) {
        result["all_reduce_ms"] = reduce_ms;
        result["bus_gb_per_second"] = 2.0 * (alike - 1) / alike * bytes / reduce_ms / 1e6;
    }
    if (mesh.shape().pp > 1) {  // of the stage that computes longest
        result["bubble"] = 1 - alone_ms / together_ms;
        result["bubble_by_formula"] = model::pipeline_bubble(benched.request().pp.shape());
    }
    std::cout << result.dump(request.json ? -1 : 2) << std::endl;
}

}  // namespace unsloth::bench
