// `plan`: what a run would take, found without its GPU, its weights and its rows.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>

#include <nlohmann/json.hpp>

#include "unsloth/config/device_map.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/path_advice.h"
#include "unsloth/core/suggest.h"
#include "unsloth/data/context_slice.h"
#include "unsloth/formats/described_model.h"
#include "unsloth/formats/hf_config.h"
#include "unsloth/ops/device.h"
#include "unsloth/planner/memory_picture.h"
#include "unsloth/planner/run_plan_text.h"
#include "unsloth/spec/shapes.h"
#include "unsloth/train/commands.h"
#include "unsloth/train/layer_costs.h"
#include "unsloth/train/memory_use.h"
#include "unsloth/train/parallel.h"
#include "unsloth/train/session.h"
#include "unsloth/train/step_memory.h"

namespace unsloth::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const at::Device absent_gpu = at::Device(at::kCUDA);  // without an index: one that is not here
constexpr double together = 0.998;                    // of N times one GPU's rate, measured with 2 and 4

/// The checkpoint, or as much of it as says what it is: a config.json, or the name of a known shape.
std::shared_ptr<const formats::WeightFile> open_or_describe(const config::Config& config) {
    const std::string &path = config.model.path, scaling = rope_scaling_of(config);
    const auto scaled = [&](spec::ModelSpec spec) {
        if (!scaling.empty()) formats::set_rope_scaling(spec, scaling, "model.rope_scaling");
        return spec;
    };
    const std::vector<std::string> shapes = spec::builtin_shape_names();
    std::error_code ignored;
    if (!fs::exists(path, ignored) && std::find(shapes.begin(), shapes.end(), path) != shapes.end())
        return formats::describe_model(scaled(spec::builtin_shape(path)));
    const std::optional<fs::path> folder = formats::find_model_path(path, formats::ModelFiles::all_but_weights);
    if (!folder) {
        std::string meant = did_you_mean(nearest(path, shapes)), known;
        if (meant.empty()) meant = nearest_path(path);
        for (const std::string& shape : shapes) known += (known.empty() ? "" : ", ") + shape;
        throw input_error(cat(path, ": no such model here"),
                          cat(meant, meant.empty() ? "" : " ",
                              "plan downloads nothing: name a folder that holds config.json, or one of ", known, "."));
    }
    if (fs::is_directory(*folder) && !fs::exists(*folder / "model.safetensors") &&
        !fs::exists(*folder / "model.safetensors.index.json"))
        return formats::describe_model(scaled(formats::read_model_spec(*folder)),
                                       formats::read_quantization_config(*folder));
    return std::make_shared<const formats::WeightFile>(formats::WeightFile::open(folder->string(), scaling));
}

struct Target {
    Machine machine;
    int64_t memory = 0;  ///< of a GPU
};

Target target_of(const config::PlanRequest& request) {
    Target target;
    planner::Card& card = target.machine.card;
    if (!request.gpu.empty()) {
        card = planner::find_card(request.gpu);
    } else if (request.gpu_memory_bytes > 0) {
        card = planner::card_of_memory(request.gpu_memory_bytes);
    } else if (const at::Device here = ops::choose_device("auto"); here.is_cuda()) {
        target.machine = machine_of(here);
        card.memory_bytes = memory::device_memory(here).total;
    } else {
        throw usage_error("plan needs a card: this machine has no GPU",
                          cat("Name one (--gpu H200) or its memory (--gpu_memory 24GiB)."));
    }
    target.memory = request.gpu_memory_bytes > 0 ? request.gpu_memory_bytes : card.memory_bytes;
    if (target.memory <= card.context_bytes)
        throw usage_error(
            cat("--gpu_memory ", memory::human_bytes(target.memory), ": the driver and the libraries take ",
                memory::human_bytes(card.context_bytes), " of it"),
            "Bytes are meant where no unit stands: --gpu_memory 24GiB.");
    target.machine.free = {target.memory - card.context_bytes, memory::device_memory(at::kCPU).total};
    return target;
}

/// A configuration's run on the target, of so many rows of so many tokens.
class Forecast {
  public:
    Forecast(const config::LoadedConfig& loaded, Target target, int64_t gpus)
        : loaded_(loaded),
          target_(std::move(target)),
          file_(open_or_describe(loaded.config)),
          request_(load_request(loaded, absent_gpu, /*trains=*/true)) {
        require_positions(loaded, file_->spec);
        const config::TrainingOptions& training = loaded.config.training;
        request_.holding = parameter_holding(loaded.config.distributed,
                                             {0, static_cast<int>(gpus / loaded.config.distributed.tp_size)});
        context_.size = static_cast<int>(loaded.config.distributed.cp_size);
        if (loaded.config.distributed.zero_stage == 3 && request_.finetuning_type == config::FinetuningType::lora &&
            !request_.fp8)
            request_.peers = request_.holding.share;
        request_.saves = training.save_steps > 0 || training.save_minutes > 0;
        request_.weighs = config::compares_answers(training.objective);
        request_.processes = static_cast<int>(gpus);
        request_.sizes.deterministic = training.deterministic;
        if (request_.fp8 && target_.machine.card.fp8_products.empty())
            throw usage_error(cat("model.compute_dtype fp8 is for H100 and H200, not for ", target_.machine.card.name),
                              "Leave compute_dtype out.");
        rows_ = training.per_device_train_batch_size;
        length_ = loaded.config.model.max_seq_length;
        micro_batches_ = training.gradient_accumulation_steps;
        if (training.max_tokens_per_batch > 0) rows_ = std::max<int64_t>(1, training.max_tokens_per_batch / length_);
        if (!may_regroup(loaded.config, absent_gpu)) return;
        const int64_t of_step = rows_ * micro_batches_;
        rows_ = fastest_pass_rows(loaded.config, {rows_, of_step, [&](int64_t rows) { return plan(rows, length_); }},
                                  target_.machine);
        micro_batches_ = (of_step + rows_ - 1) / rows_;
    }

    const Target& target() const { return target_; }
    int64_t rows() const { return rows_; }
    int64_t length() const { return length_; }
    int64_t micro_batches() const { return micro_batches_; }
    MemoryBudget budget() const { return memory_budget(loaded_.config, absent_gpu, target_.machine); }

    model::ModelPlan plan(int64_t rows, int64_t length) const {
        model::LoadRequest request = request_;
        // A pair's two answers are rows of their own.
        const int64_t answers = loaded_.config.training.objective == config::Objective::dpo ||
                                        loaded_.config.training.objective == config::Objective::orpo
                                    ? 2
                                    : 1;
        const int64_t tokens = rows * answers * length;
        size_for(request.sizes,
                 data::slice_limits({.tokens = tokens, .segments = rows * answers, .longest = length, .labels = tokens},
                                    context_));
        request.run.head_tile = head_chunk_rows(file_->spec, request.dtype, request.sizes.head_rows);
        return model::ModelPlan(file_, request);
    }

    model::ModelPlan chosen() const {
        model::ModelPlan made = plan(rows_, length_);
        choose_memory_use(loaded_.config, made, micro_batches(), target_.machine);
        return made;
    }

    /// Whether the most thrifty of what the configuration leaves open fits.
    bool can_hold(int64_t rows, int64_t length) const {
        model::ModelPlan made = plan(rows, length);
        const std::optional<spec::LayerPlan> asked = layer_plan_of(loaded_.config.training.gradient_checkpointing);
        const config::DeviceMap map(loaded_.config.model);
        const bool lora = request_.finetuning_type == config::FinetuningType::lora;
        std::vector<spec::LayerPlan> ways = {{spec::Keep::input, spec::Place::host}, {spec::Keep::input}};
        if (asked) ways = {*asked};
        for (spec::LayerPlan way : ways) {
            way.cached = loaded_.config.hardware.weight_cache == config::WeightCache::on;
            spec::RunPlan run = made.request().run;
            run.row_tile = least_row_tile;
            run.inputs_in_fp8 = may_take_codes(loaded_.config, request_);
            run.layers.assign(static_cast<std::size_t>(file_->spec.num_layers), way);
            if (!map.automatic()) {
                const std::vector<spec::Place> places = map.layers(file_->spec.num_layers, 0);
                for (std::size_t i = 0; i < places.size(); ++i) run.layers[i].weights_at = places[i];
            }
            made.set_run(run);
            if (fits(made, budget())) return true;
            if (!map.automatic() || !lora || request_.fp8) continue;
            for (spec::LayerPlan& layer : run.layers) layer.weights_at = spec::Place::host;
            made.set_run(run);
            if (fits(made, budget())) return true;
        }
        return false;
    }

    const std::shared_ptr<const formats::WeightFile>& file() const { return file_; }

  private:
    const config::LoadedConfig& loaded_;
    Target target_;
    std::shared_ptr<const formats::WeightFile> file_;
    model::LoadRequest request_;
    data::ContextRank context_;
    int64_t rows_ = 0, length_ = 0, micro_batches_ = 1;
};

/// The largest number for which it holds, where it holds for all smaller ones; 0: for none.
int64_t largest(int64_t most, const std::function<bool(int64_t)>& holds) {
    int64_t enough = 0, too_many = 1;
    while (too_many <= most && holds(too_many)) {
        enough = too_many;
        too_many *= 2;
    }
    too_many = std::min(too_many, most + 1);
    while (too_many - enough > std::max<int64_t>(1, enough / 64)) {
        const int64_t half = (enough + too_many) / 2;
        (holds(half) ? enough : too_many) = half;
    }
    return enough;
}

constexpr int64_t most_tokens = int64_t{1} << 24;  // of a micro-batch

struct Largest {
    int64_t batch = 0;  ///< rows of max_seq_length
    int64_t seq = 0;    ///< tokens of one row alone
};

Largest largest_of(const Forecast& forecast) {
    Largest found;
    found.batch = largest(most_tokens / forecast.length(),
                          [&](int64_t rows) { return forecast.can_hold(rows, forecast.length()); });
    found.seq = 256 * largest(most_tokens / 256, [&](int64_t pieces) { return forecast.can_hold(1, 256 * pieces); });
    return found;
}

std::map<std::string, int64_t> groups_of(const model::ModelPlan& plan) {
    std::map<std::string, int64_t> groups = plan.groups();
    int64_t sum = 0;
    groups["scalars, and what the allocator rounds up"] = memory::beside_arenas_bytes;
    for (const auto& [name, bytes] : groups) sum += bytes;
    groups["shared by buffers that are not alive together"] = plan.total_bytes() - sum;
    std::erase_if(groups, [](const auto& group) { return group.second == 0; });
    return groups;
}

/// Of layers on the disk what is not kept in host memory too.
int64_t disk_bytes(const model::ModelPlan& plan) {
    spec::RunPlan run = plan.request().run;
    if (std::none_of(run.layers.begin(), run.layers.end(),
                     [](const spec::LayerPlan& layer) { return layer.weights_at == spec::Place::disk; }))
        return 0;
    for (spec::LayerPlan& layer : run.layers)
        if (layer.weights_at == spec::Place::disk) layer.weights_at = spec::Place::host;
    return std::max<int64_t>(0, plan.estimate(run).host - plan.host_bytes());
}

std::string number(double value) {
    char text[48];
    std::snprintf(text, sizeof text, "%.0f", value);
    return text;
}

}  // namespace

bool run_plan(const config::LoadedConfig& loaded, const config::PlanRequest& asked) {
    const Forecast forecast(loaded, target_of(asked), asked.gpus);
    const Target& target = forecast.target();
    const planner::Card& card = target.machine.card;
    const MemoryBudget budget = forecast.budget();
    const model::ModelPlan plan = forecast.chosen();
    const spec::RunPlan& run = plan.request().run;
    const bool holds = fits(plan, budget);
    const double step_ms = predicted_step_ms(plan, card, forecast.micro_batches());
    const auto tokens = static_cast<double>(plan.request().sizes.tokens * forecast.micro_batches() * asked.gpus);
    const double rate = 1000 * tokens / step_ms * (asked.gpus > 1 ? together : 1);
    const Largest most = largest_of(forecast);
    if (!asked.svg.empty())
        write_file_atomically(
            asked.svg, planner::memory_svg(memory_over_time(plan, card),
                                           cat(loaded.config.model.path, " on ", card.name, ": ", forecast.rows(),
                                               " x ", forecast.length(), " tokens, ", planner::describe_keep(run))));
    const std::vector<std::string> ways_out =
        holds ? std::vector<std::string>() : remedies(forecast.file(), plan, budget, &card);

    if (asked.json) {
        Json layers = Json::array(), groups = Json::object();
        for (std::size_t i = 0; i < run.layers.size(); ++i) {
            const spec::LayerPlan& layer = run.layers[i];
            layers.push_back({{"keep", planner::name_of(layer.keep)},
                              {"activations_at", planner::name_of(layer.activations_at)},
                              {"weights_at", planner::name_of(layer.weights_at)},
                              {"form", plan.form_of(static_cast<int64_t>(i))},
                              {"cached", layer.cached}});
        }
        for (const auto& [group, bytes] : groups_of(plan)) groups[group] = bytes;
        std::cout << Json{{"fits", holds},
                          {"gpu", card.name},
                          {"measured", card.measured},
                          {"budget_bytes", budget.device},
                          {"context_bytes", card.context_bytes},
                          {"total_bytes", plan.total_bytes()},
                          {"device", groups},
                          {"host_bytes", plan.host_bytes()},
                          {"host_budget_bytes", budget.host},
                          {"disk_bytes", disk_bytes(plan)},
                          {"layers", layers},
                          {"in_flight", run.in_flight},
                          {"row_tile", run.row_tile},
                          {"inputs_in_fp8", run.inputs_in_fp8},
                          {"micro_tokens", plan.request().sizes.tokens},
                          {"predicted_step_ms", step_ms},
                          {"predicted_tokens_per_second", rate},
                          {"largest", {{"batch", most.batch}, {"seq", most.seq}}},
                          {"remedies", ways_out}}
                         .dump()
                  << std::endl;
        return holds;
    }
    const auto cached =
        std::count_if(run.layers.begin(), run.layers.end(), [](const auto& layer) { return layer.cached; });
    const std::string places = describe_places(plan);
    std::cout << card.name << ", " << memory::human_bytes(target.memory) << ": " << memory::human_bytes(budget.device)
              << " may be planned for" << (card.measured ? "" : "; its rates are published ones, not measured") << "\n"
              << forecast.rows() << " x " << forecast.length() << " tokens a micro-batch, " << forecast.micro_batches()
              << " of them a step, base: " << plan.base_description() << "\n"
              << "  gradient_checkpointing       " << planner::describe_keep(run) << "\n"
              << "  weights                      " << (places.empty() ? "on the GPU" : places)
              << (cached > 0 ? cat(", ", cached, " layers expanded once") : "") << "\n\n"
              << plan.table_text() << " of " << memory::human_bytes(budget.device) << ", and beside it "
              << memory::human_bytes(card.context_bytes) << " of the driver and the libraries\n"
              << "in host memory " << memory::human_bytes(plan.host_bytes()) << "\n\n";
    if (holds) {
        std::cout << "predicted: " << number(step_ms) << " ms a step, " << number(rate) << " tokens/s"
                  << (asked.gpus > 1 ? cat(" on ", asked.gpus, " GPUs") : "") << "\n";
    } else {
        std::cout << "it does not fit. "
                  << (ways_out.empty() ? "Nor does a single short row: take a smaller or 4-bit model, or a larger card."
                                       : "What would:")
                  << "\n";
        for (const std::string& way : ways_out) std::cout << "    " << way << "\n";
    }
    std::cout << "at most: " << most.batch << " rows of " << forecast.length() << " tokens, or one row of " << most.seq
              << std::endl;
    return holds;
}

}  // namespace unsloth::train
