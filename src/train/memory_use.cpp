#include "unsloth/train/memory_use.h"

#include <algorithm>

#include "unsloth/config/device_map.h"
#include "unsloth/core/error.h"
#include "unsloth/memory/plan.h"

namespace unsloth::train {
namespace {

constexpr double chosen_share = 0.9;   // of free memory, for what the program chooses
constexpr double usable_share = 0.97;  // of free memory: the CUDA context and libraries grow a little later

int gpu_of(at::Device device) {
    return device.is_cuda() ? device.index() : -1;
}

/// What the configuration allows of a device's memory; nullopt: no bound.
std::optional<int64_t> allowed(const config::Config& config, at::Device device) {
    std::optional<int64_t> bytes = config::max_memory(config.model, gpu_of(device));
    if (device.is_cuda() && config.training.max_memory_gib > 0) {
        const auto budget = static_cast<int64_t>(config.training.max_memory_gib * (1 << 30));
        bytes = std::min(bytes.value_or(budget), budget);
    }
    return bytes;
}

/// `share` of what is free, and no more than what the configuration allows.
MemoryBudget budget_of(const config::Config& config, at::Device device, double share) {
    const auto bounded = [&](at::Device where) {
        const auto free = static_cast<int64_t>(share * static_cast<double>(memory::device_memory(where).free));
        return std::min(free, allowed(config, where).value_or(free));
    };
    return {bounded(device), config::max_memory(config.model, -1).value_or(memory::device_memory(at::kCPU).free)};
}

bool lie_elsewhere(const spec::RunPlan& run) {
    return std::any_of(run.layers.begin(), run.layers.end(),
                       [](const spec::LayerPlan& layer) { return layer.weights_at != spec::Place::device; });
}

/// Tries plans on the model's; the first that fits stays.
class Choice {
  public:
    Choice(const config::Config& config, model::ModelPlan& plan, int64_t micro_batches)
        : config_(config), plan_(plan), micro_batches_(micro_batches), budget_(budget(chosen_share)) {
        const bool trains = plan.request().trains;
        const std::optional<spec::LayerPlan> asked = layer_plan_of(config.training.gradient_checkpointing);
        if (!trains) {
            ways_ = {{}};
        } else if (asked) {
            ways_ = {*asked};
        }
        if (!trains) {
            caches_ = {false};
        } else if (config.hardware.weight_cache != config::WeightCache::automatic) {
            caches_ = {config.hardware.weight_cache == config::WeightCache::on};
        }
    }

    void make() {
        const auto layers = static_cast<std::size_t>(plan_.spec().num_layers);
        const config::DeviceMap map(config_.model);
        if (!map.automatic()) {
            require_embedding(map);
            if (!take(map.layers(plan_.spec().num_layers, gpu_of(plan_.request().device)))) plan_.set_run(tried_);
            return;
        }
        if (take(std::vector<spec::Place>(layers, spec::Place::device))) return;
        const spec::RunPlan resident = tried_;
        const bool can_move = plan_.request().device.is_cuda() && !plan_.request().fp8 &&
                              plan_.request().finetuning_type == config::FinetuningType::lora;
        budget_ = budget(usable_share);
        if (fits(resident) || !can_move || !take_off_device(layers)) plan_.set_run(resident);
    }

  private:
    void require_embedding(const config::DeviceMap& map) const {
        if (!map.embedding_on_host(gpu_of(plan_.request().device))) return;
        for (const memory::Entry& entry : plan_.host().entries())
            if (entry.group == "embeddings") return;
        throw usage_error(
            "model.device_map puts model.embed_tokens in host memory, but here it is trained, or is lm_head too",
            "Leave model.embed_tokens on the GPU.");
    }

    MemoryBudget budget(double share) const { return budget_of(config_, plan_.request().device, share); }

    bool fits(const spec::RunPlan& run) {
        const spec::MemoryNeed need = plan_.estimate(run);
        return need.device <= budget_.device && (!plan_.request().device.is_cuda() || need.host <= budget_.host);
    }

    /// The layers in these places, with the first way and cache that fit; as many micro-batches in flight as are worth
    /// it and fit.
    bool take(const std::vector<spec::Place>& places) {
        tried_ = plan_.request().run;
        for (tried_.in_flight = worth_in_flight(places);; tried_.in_flight = (tried_.in_flight + 1) / 2) {
            for (spec::LayerPlan way : ways_)
                for (const bool cached : caches_) {
                    way.cached = cached;
                    tried_.layers.clear();
                    for (const spec::Place place : places) tried_.layers.emplace_back(way).weights_at = place;
                    if (!fits(tried_)) continue;
                    plan_.set_run(tried_);
                    return true;
                }
            if (tried_.in_flight == 1) return false;
        }
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
        const bool disk = lies_on_disk();
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

    /// Whether the checkpoint has the layers as they are used, or there is a folder for them.
    bool lies_on_disk() const { return plan_.request().offload_folder || plan_.lies_in_checkpoint(); }

    /// Micro-batches that share a layer's copy: so many that their products take longer. Two traversals of a 4-bit base
    /// hide behind 2,030 tokens on an H200 (650 TFLOP/s, 55 GB/s) and behind fewer on cards with a slower link; twice
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
    MemoryBudget budget_;
    std::vector<spec::LayerPlan> ways_{{spec::Keep::everything},
                                       {spec::Keep::but_mlp},
                                       {spec::Keep::attention},
                                       {spec::Keep::input},
                                       {spec::Keep::input, spec::Place::host}};
    std::vector<bool> caches_{true, false};
    spec::RunPlan tried_;
};

}  // namespace

MemoryBudget memory_budget(const config::Config& config, at::Device device) {
    return budget_of(config, device, usable_share);
}

void choose_memory_use(const config::Config& config, model::ModelPlan& plan, int64_t micro_batches) {
    Choice(config, plan, micro_batches).make();
}

std::string describe_places(const model::ModelPlan& plan) {
    if (!lie_elsewhere(plan.request().run)) return "";
    const std::vector<spec::LayerPlan>& layers = plan.request().run.layers;
    const char* const names[] = {"on the device", "in host memory", "on the disk"};
    std::string text;
    for (std::size_t i = 0; i < layers.size();) {
        const std::size_t first = i;
        while (i < layers.size() && layers[i].weights_at == layers[first].weights_at) ++i;
        text += cat(text.empty() ? "" : ", ", "layers ", first, " to ", i - 1, " ",
                    names[static_cast<int>(layers[first].weights_at)]);
    }
    return text;
}

std::optional<spec::LayerPlan> layer_plan_of(config::GradientCheckpointing option) {
    switch (option) {
        case config::GradientCheckpointing::automatic:
            return std::nullopt;
        case config::GradientCheckpointing::none:
            return spec::LayerPlan{spec::Keep::everything};
        case config::GradientCheckpointing::mlp:
            return spec::LayerPlan{spec::Keep::but_mlp};
        case config::GradientCheckpointing::attention:
            return spec::LayerPlan{spec::Keep::attention};
        case config::GradientCheckpointing::full:
            return spec::LayerPlan{spec::Keep::input};
        case config::GradientCheckpointing::none_offload:
            return spec::LayerPlan{spec::Keep::everything, spec::Place::host};
        case config::GradientCheckpointing::mlp_offload:
            return spec::LayerPlan{spec::Keep::but_mlp, spec::Place::host};
        case config::GradientCheckpointing::attention_offload:
            return spec::LayerPlan{spec::Keep::attention, spec::Place::host};
        case config::GradientCheckpointing::full_offload:
            return spec::LayerPlan{spec::Keep::input, spec::Place::host};
    }
    return std::nullopt;
}

void require_memory(const model::ModelPlan& plan, const MemoryBudget& budget) {
    if (plan.request().device.is_cuda() && plan.host().total_bytes() > budget.host)
        throw runtime_failure(
            cat("not enough host memory: ", memory::human_bytes(plan.host().total_bytes()), " would be page-locked, ",
                memory::human_bytes(budget.host), " may be\n", plan.table_text()),
            "Choose a gradient_checkpointing that keeps less or does not offload, less tokens a micro-batch, or fewer "
            "layers in host memory (model.device_map); model.max_memory and the control group bound what may be taken. "
            "A run with training.save_steps 0 and save_minutes 0 plans no copies for checkpoints.");
    if (plan.total_bytes() <= budget.device) return;
    // What would fit: try the usual remedies on the plan itself.
    std::string advice = "Would fit:";
    const model::ActivationSizes asked = plan.request().sizes;
    const auto fits = [&](const model::ActivationSizes& sizes, const spec::RunPlan& run) {
        model::ModelPlan other = plan;
        other.set_sizes(sizes);
        other.set_run(run);
        return other.total_bytes() <= budget.device;
    };
    std::vector<std::string> remedies;
    model::ActivationSizes sizes = asked;
    spec::RunPlan run = plan.request().run;
    const spec::RunPlan asked_run = run;
    const auto without = [&](const auto& thrifty) {
        return std::none_of(asked_run.layers.begin(), asked_run.layers.end(), thrifty);
    };
    const auto try_layers = [&] {
        if (asked.training && fits(sizes, run))
            remedies.push_back(cat("gradient_checkpointing ", name_of(run.layers.front())));
    };
    for (spec::LayerPlan& layer : run.layers) layer.keep = spec::Keep::input;
    if (without([](const spec::LayerPlan& layer) { return layer.keep == spec::Keep::input; })) try_layers();
    for (spec::LayerPlan& layer : run.layers) layer.activations_at = spec::Place::host;
    if (remedies.empty() &&
        without([](const spec::LayerPlan& layer) { return layer.activations_at == spec::Place::host; }))
        try_layers();
    for (int64_t divisor = 2; divisor <= 1024 && remedies.size() < 2; divisor *= 2) {
        sizes.tokens = std::max<int64_t>(1, asked.tokens / divisor);
        sizes.head_rows = std::max<int64_t>(1, asked.head_rows / divisor);
        sizes.segments = std::max<int64_t>(1, asked.segments / divisor);
        sizes.longest = std::min(sizes.longest, sizes.tokens);
        run.head_tile = std::min(run.head_tile, sizes.head_rows);
        if (fits(sizes, run))
            remedies.push_back(
                cat("at most ", sizes.tokens, " tokens a micro-batch (per_device_train_batch_size x max_seq_length), ",
                    "more gradient_accumulation_steps instead",
                    asked.training ? cat(", gradient_checkpointing ", name_of(run.layers.front())) : ""));
    }
    for (const std::string& remedy : remedies) advice += "\n    " + remedy;
    if (remedies.empty())
        advice = "Not even a single short row would fit: use a smaller or 4-bit model, or a larger device.";
    throw runtime_failure(cat("not enough memory on ", plan.request().device.str(), ": the plan needs ",
                              memory::human_bytes(plan.total_bytes()), ", ", memory::human_bytes(budget.device),
                              " may be taken\n", plan.table_text()),
                          advice);
}

}  // namespace unsloth::train
