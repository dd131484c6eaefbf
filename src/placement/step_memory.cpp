#include "unsloth/placement/step_memory.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>

#include "unsloth/placement/layer_costs.h"

namespace unsloth::placement {
namespace {

/// A stretch of the step: a layer one way, or the head.
struct Stretch {
    memory::Phase phase;
    int64_t layer;  ///< -1: none
    double ms;
};

const char* name_of(memory::Phase phase) {
    return phase == memory::forward ? "forward" : phase == memory::head ? "head" : "backward";
}

std::vector<Stretch> stretches_of(const model::ModelPlan& plan, const planner::Card& card) {
    const spec::RunPlan& run = plan.request().run;
    LayerCosts costs(plan, card, /*micro_batches=*/1, run);
    std::vector<int> layers = plan.own_layers();
    std::vector<Stretch> all;
    for (const int i : layers)
        all.push_back({memory::forward, i, costs.time_of(run.layers[static_cast<std::size_t>(i)]).forward});
    all.push_back({memory::head, -1, costs.outside_ms()});
    std::reverse(layers.begin(), layers.end());
    for (const int i : layers)
        all.push_back({memory::backward, i, costs.time_of(run.layers[static_cast<std::size_t>(i)]).backward});
    return all;
}

/// The layer that alone uses a buffer ("qkv 7"); -1 for buffers that several use.
int64_t owner_of(const memory::Entry& entry) {
    if (entry.group != "kept of layers") return -1;
    const std::string name = entry.name.substr(0, entry.name.find(" of micro-batch "));
    const std::size_t at = name.rfind(' ');
    const bool numbered = at != std::string::npos && at + 1 < name.size() &&
                          std::all_of(name.begin() + static_cast<std::ptrdiff_t>(at) + 1, name.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
    return numbered ? std::stoll(name.substr(at + 1)) : -1;
}

/// What a layer keeps is in use from its forward to its backward pass.
bool in_use(const memory::Entry& entry, int64_t owner, const Stretch& stretch) {
    if ((entry.phases & stretch.phase) == 0) return false;
    return owner < 0 || stretch.layer < 0 || owner <= stretch.layer;
}

}  // namespace

planner::MemoryOverTime memory_over_time(const model::ModelPlan& plan, const planner::Card& card) {
    constexpr double worth_a_band = 0.01;  // of the plan
    const std::vector<Stretch> stretches = stretches_of(plan, card);
    planner::MemoryOverTime memory;
    memory.planned = plan.total_bytes();
    for (const Stretch& stretch : stretches) {
        memory.ms.push_back(stretch.ms);
        memory.phases.emplace_back(name_of(stretch.phase));
    }
    std::map<std::string, std::vector<int64_t>> groups;
    std::vector<std::string> order;  // what stays first
    const auto add = [&](const memory::Plan& part) {
        for (const memory::Entry& entry : part.entries()) {
            const auto [at, fresh] = groups.try_emplace(entry.group, stretches.size(), 0);
            if (fresh) order.push_back(entry.group);
            const int64_t owner = owner_of(entry);
            for (std::size_t i = 0; i < stretches.size(); ++i)
                if (in_use(entry, owner, stretches[i])) at->second[i] += entry.bytes;
        }
    };
    add(plan.resident());
    add(plan.step());
    // The largest groups are bands of their own, as long as there are colours.
    const auto most = [&](const std::string& group) {
        return *std::max_element(groups[group].begin(), groups[group].end());
    };
    std::vector<std::string> largest = order;
    std::stable_sort(largest.begin(), largest.end(), [&](const auto& a, const auto& b) { return most(a) > most(b); });
    largest.resize(std::min(largest.size(), planner::most_bands - 1));
    std::erase_if(largest, [&](const std::string& group) {
        return static_cast<double>(most(group)) < worth_a_band * static_cast<double>(memory.planned);
    });
    planner::MemoryBand rest{"the rest", std::vector<int64_t>(stretches.size(), 0)};
    for (const std::string& group : order) {
        const std::vector<int64_t>& bytes = groups[group];
        if (std::find(largest.begin(), largest.end(), group) != largest.end()) {
            memory.bands.push_back({group, bytes});
            continue;
        }
        for (std::size_t i = 0; i < bytes.size(); ++i) rest.bytes[i] += bytes[i];
    }
    memory.bands.push_back(std::move(rest));
    return memory;
}

}  // namespace unsloth::placement
