#include "unsloth/placement/memory_use.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "unsloth/config/device_map.h"
#include "unsloth/core/error.h"
#include "unsloth/memory/plan.h"
#include "unsloth/ops/device.h"
#include "unsloth/placement/layer_costs.h"

#ifdef UNSLOTH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace unsloth::placement {
namespace {

constexpr double chosen_share = 0.9;   // of free memory, for what the program chooses
constexpr double usable_share = 0.97;  // of free memory: the CUDA context and libraries grow a little later
constexpr double host_share = 0.95;  // of what the host has: this process grows, too, and files that are being written
constexpr double indifferent = 0.002;  // of a time: plans that are no further apart are as good

/// `share` of what is free, and no more than what the configuration allows; without what is taken.
MemoryBudget budget_of(const config::Config& config, at::Device device, const Machine& machine, double share) {
    const auto usable = static_cast<int64_t>(share * static_cast<double>(machine.free.device));
    const int64_t own = allowed_memory(config, device).value_or(usable), others = machine.allowed.value_or(usable);
    return {std::min({usable, own, others}) - machine.taken.device,
            config::max_memory(config.model, -1).value_or(machine.free.host) - machine.taken.host};
}

MemoryBudget free_memory(at::Device device) {
    return {memory::device_memory(device).free,
            static_cast<int64_t>(host_share * static_cast<double>(memory::device_memory(at::kCPU).free))};
}

/// Tokens of an MLP at a time that are tried, all of them first: products of fewer than these take longer.
std::vector<int64_t> row_tiles(int64_t tokens) {
    std::vector<int64_t> tiles = {0};
    for (int64_t tile = 2 * least_row_tile; tile >= least_row_tile; tile /= 2)
        if (tile < tokens) tiles.push_back(tile);
    return tiles;
}

/// Tries plans on the model's; the first that fits stays.
class Choice {
  public:
    Choice(const config::Config& config, model::ModelPlan& plan, int64_t micro_batches, Machine machine)
        : config_(config),
          plan_(plan),
          micro_batches_(micro_batches),
          machine_(std::move(machine)),
          budget_(budget(chosen_share)) {
        const bool trains = plan.request().trains;
        const std::optional<spec::LayerPlan> asked = layer_plan_of(config.training.gradient_checkpointing);
        if (!trains) {
            ways_ = {{}};
        } else if (asked) {
            ways_ = solved_ways_ = {*asked};
        }
        // What moves to the host and back is planned for passes over all layers in one order.
        const auto moves = [](const spec::LayerPlan& way) { return way.activations_at == spec::Place::host; };
        if (!plan.request().pp.alone()) std::erase_if(ways_, moves), std::erase_if(solved_ways_, moves);
        if (!trains) {
            caches_ = {false};
        } else if (config.hardware.weight_cache != config::WeightCache::automatic) {
            caches_ = {config.hardware.weight_cache == config::WeightCache::on};
        }
        // Products of a training run on the CPU have all rows. Rows of generation are few, or pieces already.
        const bool tiles = trains ? plan.request().device.is_cuda() : plan.request().sizes.cache_tokens == 0;
        if (tiles && !plan.spec().experts) tiles_ = row_tiles(plan.request().sizes.tokens);
        common_ = plan.request().run;
        common_.inputs_in_fp8 = trains && config.training.keep_inputs_in == config::KeptInputs::fp8;
        if (common_.inputs_in_fp8) require_codes();
    }

    void make() {
        if (plan_.request().peers.size > 1) caches_ = {false};  // a rank's own layers have the form that its peers read
        if (plan_.grid() != spec::ServeGrid::none) caches_ = {false};  // adapters are folded in for each pass
        choose_all();
        if (plan_.request().peers.size == 1) return;
        spec::RunPlan run = plan_.request().run;
        for (spec::LayerPlan& layer : run.layers)
            if (layer.weights_at == spec::Place::device) layer.weights_at = spec::Place::peer;
        plan_.set_run(std::move(run));
    }

  private:
    void choose_all() {
        if (choose()) return;
        if (may_take_codes(config_, plan_.request()) && !common_.inputs_in_fp8) {
            common_.inputs_in_fp8 = true;
            budget_ = budget(chosen_share);
            if (choose()) return;
        }
        plan_.set_run(tried_);
    }

    /// Whether there is a plan that fits; it is set then.
    bool choose() {
        const auto layers = static_cast<std::size_t>(plan_.spec().num_layers);
        const config::DeviceMap map(config_.model);
        const std::vector<spec::Place> all_on_device(layers, spec::Place::device);
        if (!map.automatic()) {
            require_embedding(map);
            const std::vector<spec::Place> places =
                map.layers(plan_.spec().num_layers, ops::gpu_number(plan_.request().device));
            if (places != all_on_device) return take(places);
        }
        const bool solves = plan_.request().device.is_cuda() && plan_.request().trains;
        const bool can_move = map.automatic() && may_leave_device(plan_.request());
        if (solves && !may_fit(can_move)) {
            budget_ = budget(usable_share);
            if (can_move) caches_ = {false};
        } else {
            if (solves ? solve({spec::Place::device}, 1).has_value() : take(all_on_device)) return true;
            budget_ = budget(usable_share);
            if (solves && solve({spec::Place::device}, 1)) return true;
            if (!solves && fits(tried_)) {
                plan_.set_run(tried_);
                return true;
            }
            if (can_move && ((solves && solve_streamed()) || take_off_device(layers))) return true;
        }
        ways_ = {ways_.back()};
        caches_ = {caches_.back()};
        return take(all_on_device);
    }

    /// Whether the least of each kind of memory is there that any plan takes: of those whose layers are all alike.
    bool may_fit(bool can_move) const {
        std::vector<spec::LayerPlan> ways = solved_ways_;
        if (ways.size() > 1) std::erase_if(ways, [](const auto& way) { return way.keep != spec::Keep::input; });
        const MemoryBudget usable = budget(usable_share);
        spec::RunPlan run = common_;
        run.row_tile = tiles_.back();
        spec::MemoryNeed least{std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max()};
        const auto with = [&](spec::Place place) {
            for (spec::LayerPlan way : ways) {
                way.weights_at = place;
                way.cached = caches_.back() && place == spec::Place::device;
                run.layers.assign(static_cast<std::size_t>(plan_.spec().num_layers), way);
                const spec::MemoryNeed need = plan_.estimate(run);
                least = {std::min(least.device, need.device), std::min(least.host, need.host - need.there)};
            }
            return least.device <= usable.device && least.host <= usable.host;
        };
        return with(spec::Place::device) || (can_move && with(spec::Place::host)) ||
               (can_move && may_lie_on_disk(plan_) && with(spec::Place::disk));
    }

    void require_codes() const {
        if (plan_.request().device.is_cuda() && plan_.request().dtype != at::kBFloat16)
            throw Error("option.no-effect",
                        "training.activation_offload_dtype fp8 is for runs that compute in bfloat16",
                        "Use model.dtype bfloat16, or remove activation_offload_dtype.");
    }

    void require_embedding(const config::DeviceMap& map) const {
        if (!map.embedding_on_host(ops::gpu_number(plan_.request().device))) return;
        const memory::Plan host = plan_.host(), common = plan_.common();
        for (const memory::Plan* plan : {&host, &common})
            for (const memory::Entry& entry : plan->entries())
                if (entry.group == "embeddings") return;
        throw Error(
            "model.device-map",
            "model.device_map puts model.embed_tokens in host memory, but here it is trained, or is lm_head too",
            "Leave model.embed_tokens on the GPU.");
    }

    MemoryBudget budget(double share) const { return budget_of(config_, plan_.request().device, machine_, share); }

    /// The fastest plan with layers in these places and `in_flight` micro-batches in flight; its time, if there is one.
    /// Tiles of rows make room, and cost a little: they are tried where layers do not keep everything anyway.
    std::optional<double> solve(const std::vector<spec::Place>& places, int64_t in_flight) {
        std::optional<double> best;
        spec::RunPlan fastest = common_;
        fastest.in_flight = in_flight;
        for (const int64_t tile : tiles_) {
            spec::RunPlan like = common_;
            like.in_flight = in_flight;
            like.row_tile = tile;
            const auto found = solve_like(places, like);
            if (!found || (best && found->second >= *best * (1 - indifferent))) continue;
            std::tie(fastest, best) = *found;
            const auto keeps_all = [](const spec::LayerPlan& layer) {
                return layer == spec::LayerPlan{spec::Keep::everything, spec::Place::device, layer.cached};
            };
            if (std::all_of(fastest.layers.begin(), fastest.layers.end(), keeps_all)) break;
        }
        if (best) plan_.set_run(fastest);
        return best;
    }

    std::optional<std::pair<spec::RunPlan, double>> solve_like(const std::vector<spec::Place>& places,
                                                               const spec::RunPlan& like) {
        std::vector<WeightForm> forms;
        for (const spec::Place place : places)
            for (const bool cached : caches_)
                if (!cached || (place == spec::Place::device && holds_4bit(plan_))) forms.push_back({place, cached});
        if (forms.empty()) forms = {{spec::Place::device, false}};  // weight_cache on, and nothing to expand
        LayerCosts& costs = costs_
                                .try_emplace(std::tuple(like.row_tile, like.in_flight, like.inputs_in_fp8), plan_,
                                             machine_.card, micro_batches_, like)
                                .first->second;
        // What other processes have of the base is credited as if all of it were used; if that is too much, none is.
        const int64_t held = plan_.request().held ? plan_.request().held->bytes() : 0;
        std::optional<spec::RunPlan> found = costs.solve(solved_ways_, forms, {budget_.device, budget_.host + held});
        if (held > 0 && found && !fits(*found))
            found = costs.solve(solved_ways_, forms, {budget_.device, budget_.host});
        if (!found) return std::nullopt;
        return std::pair(*found, costs.step_ms(*found));
    }

    /// With layers in host memory: as many micro-batches in flight as are fastest.
    bool solve_streamed() {
        const std::size_t layers = static_cast<std::size_t>(plan_.spec().num_layers);
        std::optional<double> best;
        spec::RunPlan fastest;
        for (int64_t in_flight = worth_in_flight(std::vector<spec::Place>(layers, spec::Place::host));;
             in_flight = (in_flight + 1) / 2) {
            const std::optional<double> ms = solve({spec::Place::device, spec::Place::host}, in_flight);
            if (ms && (!best || *ms < *best)) {
                best = ms;
                fastest = plan_.request().run;
            }
            if (in_flight == 1) break;
        }
        if (best) plan_.set_run(fastest);
        return best.has_value();
    }

    bool fits(const spec::RunPlan& run) { return holds(budget_, plan_.estimate(run), plan_.request().device); }

    /// The layers in these places, with the first way and cache that fit; as many micro-batches in flight as are worth
    /// it and fit.
    bool take(const std::vector<spec::Place>& places) {
        tried_ = common_;
        for (tried_.in_flight = worth_in_flight(places);; tried_.in_flight = (tried_.in_flight + 1) / 2) {
            for (const int64_t tile : tiles_)
                if (take_tiled(places, tile)) return true;
            if (tried_.in_flight == 1) return false;
        }
    }

    bool take_tiled(const std::vector<spec::Place>& places, int64_t tile) {
        tried_.row_tile = tile;
        for (spec::LayerPlan way : ways_)
            for (const bool cached : caches_) {
                way.cached = cached;
                tried_.layers.clear();
                for (const spec::Place place : places) tried_.layers.emplace_back(way).weights_at = place;
                if (!fits(tried_)) continue;
                plan_.set_run(tried_);
                return true;
            }
        return false;
    }

    /// As few layers off the device as will do, from the last on, with the way that takes the least; of them as few on
    /// the disk.
    bool take_off_device(std::size_t layers) {
        ways_ = {ways_.back()};
        caches_ = {false};
        const auto with = [&](std::size_t moved, std::size_t on_disk) {
            std::vector<spec::Place> places(layers, spec::Place::device);
            std::fill(places.end() - static_cast<std::ptrdiff_t>(moved), places.end(), spec::Place::host);
            std::fill(places.end() - static_cast<std::ptrdiff_t>(on_disk), places.end(), spec::Place::disk);
            return places;
        };
        const bool disk = may_lie_on_disk(plan_);
        if (!take(with(layers, disk ? layers : 0))) return false;
        micro_batches_ = tried_.in_flight;
        const auto fits_as_well = [&](const std::vector<spec::Place>& places) {
            return take(places) && tried_.in_flight == micro_batches_;
        };
        const auto least = [](std::size_t too_few, std::size_t enough, const auto& will_do) {
            while (enough - too_few > 1) {
                const std::size_t half = (too_few + enough) / 2;
                (will_do(half) ? enough : too_few) = half;
            }
            return enough;
        };
        const std::size_t moved =
            least(0, layers, [&](std::size_t some) { return fits_as_well(with(some, disk ? some : 0)); });
        if (!disk || fits_as_well(with(moved, 0))) return take(with(moved, 0));
        return take(with(moved, least(0, moved, [&](std::size_t some) { return fits_as_well(with(moved, some)); })));
    }

    /// Micro-batches that share a layer's copy: enough that their products take longer. Two traversals of a 4-bit base
    /// are hidden by the GEMMs of 2,030 tokens on an H200 (650 TFLOP/s, 55 GB/s), of fewer with a slower link; twice
    /// that leaves room, and a base of more bytes takes as many times more. A disk is about eight times slower than the
    /// link.
    int64_t worth_in_flight(const std::vector<spec::Place>& places) const {
        const auto place =
            std::find_if(places.begin(), places.end(), [](spec::Place at) { return at != spec::Place::device; });
        if (place == places.end()) return 1;
        const bool disk = std::find(places.begin(), places.end(), spec::Place::disk) != places.end();
        const int64_t tokens = int64_t{1024} * plan_.widest_bits() * (disk ? 8 : 1),
                      each = std::max<int64_t>(1, plan_.request().sizes.tokens);
        return std::clamp<int64_t>((tokens + each - 1) / each, 1, micro_batches_);
    }

    const config::Config& config_;
    model::ModelPlan& plan_;
    int64_t micro_batches_;
    Machine machine_;
    MemoryBudget budget_;
    std::vector<spec::LayerPlan> ways_{{spec::Keep::everything},
                                       {spec::Keep::but_mlp},
                                       {spec::Keep::attention},
                                       {spec::Keep::input},
                                       {spec::Keep::input, spec::Place::host}};
    std::vector<spec::LayerPlan> solved_ways_{{spec::Keep::everything},
                                              {spec::Keep::but_mlp},
                                              {spec::Keep::attention},
                                              {spec::Keep::input},
                                              {spec::Keep::everything, spec::Place::host},
                                              {spec::Keep::but_mlp, spec::Place::host},
                                              {spec::Keep::attention, spec::Place::host},
                                              {spec::Keep::input, spec::Place::host}};
    std::map<std::tuple<int64_t, int64_t, bool>, LayerCosts> costs_;  ///< by what all layers share
    std::vector<bool> caches_{true, false};
    std::vector<int64_t> tiles_{0};
    spec::RunPlan common_;  ///< what all plans that are tried share
    spec::RunPlan tried_;
};

}  // namespace

std::optional<int64_t> allowed_memory(const config::Config& config, at::Device device) {
    std::optional<int64_t> bytes = config::max_memory(config.model, ops::gpu_number(device));
    if (device.is_cuda() && config.training.max_memory_gib > 0) {
        const auto budget = static_cast<int64_t>(config.training.max_memory_gib * (1 << 30));
        bytes = std::min(bytes.value_or(budget), budget);
    }
    return bytes;
}

MemoryBudget memory_budget(const config::Config& config, at::Device device, const Machine& machine) {
    return budget_of(config, device, machine, usable_share);
}

MemoryBudget memory_budget(const config::Config& config, at::Device device) {
    return memory_budget(config, device, Machine{.free = free_memory(device)});
}

Machine machine_of(at::Device device) {
    Machine machine;
    machine.free = free_memory(device);
    if (device.is_cpu()) machine.card = planner::find_card("H200");
#ifdef UNSLOTH_CUDA
    cudaDeviceProp properties{};
    if (device.is_cuda() && cudaGetDeviceProperties(&properties, device.index()) == cudaSuccess)
        machine.card =
            planner::card_of_driver(properties.name, properties.major + properties.minor / 10.0, machine.known);
#endif
    return machine;
}

void choose_memory_use(const config::Config& config, model::ModelPlan& plan, int64_t micro_batches,
                       const std::optional<Machine>& machine) {
    Choice(config, plan, micro_batches, machine ? *machine : machine_of(plan.request().device)).make();
    plan.require_dequantized();
}

double predicted_step_ms(const model::ModelPlan& plan, const planner::Card& card, int64_t micro_batches) {
    spec::RunPlan run = plan.request().run;
    if (!plan.request().pp.alone()) run.in_flight = 1;  // each meets the weights alone
    return LayerCosts(plan, card, micro_batches, run).step_ms(run);
}

}  // namespace unsloth::placement
