// `plan`: what a run would take, and of several GPUs which mesh is fastest.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>

#include <nlohmann/json.hpp>

#include "train/mesh_proposals.h"
#include "unsloth/config/device_map.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/memory/plan.h"
#include "unsloth/planner/memory_picture.h"
#include "unsloth/planner/run_plan_text.h"
#include "unsloth/train/commands.h"
#include "unsloth/train/stages.h"
#include "unsloth/train/step_memory.h"

namespace unsloth::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t most_meshes = 5;

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

std::string whole_number(double value) {
    char text[48];
    std::snprintf(text, sizeof text, "%.0f", value);
    return text;
}

/// Of the layers that the plan's rank has.
std::string describe_own(const model::ModelPlan& plan) {
    spec::RunPlan own = plan.request().run;
    own.layers.clear();
    for (const int layer : plan.own_layers())
        own.layers.push_back(plan.request().run.layers[static_cast<std::size_t>(layer)]);
    return planner::describe_keep(own);
}

/// Of the layers whose weights do not lie on the GPUs.
std::string elsewhere(const model::ModelPlan& plan) {
    const std::vector<spec::LayerPlan>& layers = plan.request().run.layers;
    const auto count = std::count_if(layers.begin(), layers.end(), [](const spec::LayerPlan& layer) {
        return layer.weights_at == spec::Place::host || layer.weights_at == spec::Place::disk;
    });
    return count > 0 ? cat(", ", count, " layers' weights elsewhere") : "";
}

Json mesh_json(const Proposal& proposal) {
    const Forecast& forecast = proposal.forecast;
    const config::DistributedOptions& mesh = forecast.config().distributed;
    const Prospect& prospect = proposal.prospect;
    return {{"dp", forecast.copies()},
            {"tp_size", mesh.tp_size},
            {"pp_size", mesh.pp_size},
            {"cp_size", mesh.cp_size},
            {"zero_stage", mesh.zero_stage},
            {"offload_optimizer", mesh.offload_optimizer == config::OptimizerPlace::cpu ? "cpu" : "none"},
            {"flags", proposal.flags},
            {"fits", prospect.fits},
            {"step_tokens", forecast.step_tokens()},
            {"predicted_step_ms", prospect.step_ms},
            {"predicted_tokens_per_second", prospect.tokens_per_second},
            {"total_bytes", prospect.plan().total_bytes()},
            {"host_bytes", prospect.plan().host_bytes()},
            {"keeps", describe_own(prospect.plan())}};
}

/// What a run takes, as text or as JSON.
class Report {
  public:
    Report(const std::vector<Proposal>& proposals, bool chosen)
        : proposals_(proposals),
          chosen_(chosen),
          forecast_(proposals.front().forecast),
          prospect_(proposals.front().prospect),
          plan_(prospect_.plan()),
          card_(forecast_.target().machine.card),
          budget_(forecast_.budget()),
          most_(largest_of(forecast_)) {
        if (!prospect_.fits) ways_out_ = remedies(prospect_.stages, budget_, &card_);
    }

    void print_json() const {
        const spec::RunPlan& run = plan_.request().run;
        Json layers = Json::array(), groups = Json::object();
        for (const int i : plan_.own_layers()) {
            const spec::LayerPlan& layer = run.layers[static_cast<std::size_t>(i)];
            layers.push_back({{"keep", planner::name_of(layer.keep)},
                              {"activations_at", planner::name_of(layer.activations_at)},
                              {"weights_at", planner::name_of(layer.weights_at)},
                              {"form", plan_.form_of(i)},
                              {"cached", layer.cached}});
        }
        for (const auto& [group, bytes] : groups_of(plan_)) groups[group] = bytes;
        Json all{{"fits", prospect_.fits},
                 {"gpu", card_.name},
                 {"measured", card_.measured},
                 {"budget_bytes", budget_.device},
                 {"context_bytes", card_.context_bytes},
                 {"communicator_bytes", forecast_.communicator_bytes()},
                 {"total_bytes", plan_.total_bytes()},
                 {"device", groups},
                 {"host_bytes", plan_.host_bytes()},
                 {"host_budget_bytes", budget_.host},
                 {"disk_bytes", disk_bytes(plan_)},
                 {"layers", layers},
                 {"in_flight", run.in_flight},
                 {"row_tile", run.row_tile},
                 {"inputs_in_fp8", run.inputs_in_fp8},
                 {"micro_tokens", plan_.request().sizes.tokens},
                 {"predicted_step_ms", prospect_.step_ms},
                 {"predicted_tokens_per_second", prospect_.tokens_per_second},
                 {"largest", {{"batch", most_.batch}, {"seq", most_.seq}}},
                 {"remedies", ways_out_},
                 {"mesh", mesh_json(proposals_.front())}};
        if (chosen_) {
            all["meshes"] = Json::array();
            for (const Proposal& proposal : proposals_) all["meshes"].push_back(mesh_json(proposal));
        }
        std::cout << all.dump() << std::endl;
    }

    void print_text() const {
        const spec::RunPlan& run = plan_.request().run;
        const auto cached =
            std::count_if(run.layers.begin(), run.layers.end(), [](const auto& layer) { return layer.cached; });
        const std::string places = describe_places(plan_);
        std::cout << card_.name << ", " << memory::human_bytes(forecast_.target().memory) << ": "
                  << memory::human_bytes(budget_.device) << " may be planned for"
                  << (card_.measured ? "" : "; its rates are published ones, not measured") << "\n";
        if (chosen_) print_meshes();
        std::cout << forecast_.rows() << " x " << forecast_.length() << " tokens a micro-batch, "
                  << forecast_.micro_batches() << " of them a step, base: " << plan_.base_description() << "\n";
        if (!plan_.request().pp.alone())
            std::cout << "  pipeline                     " << describe_pipeline(plan_.request().pp) << "; stage "
                      << plan_.request().pp.stage().rank << " takes most:\n";
        std::cout << "  gradient_checkpointing       " << describe_own(plan_) << "\n"
                  << "  weights                      " << (places.empty() ? "on the GPU" : places)
                  << (cached > 0 ? cat(", ", cached, " layers expanded once") : "") << "\n\n"
                  << plan_.table_text() << " of " << memory::human_bytes(budget_.device) << ", and beside it "
                  << memory::human_bytes(card_.context_bytes) << " of the driver and the libraries" << communicators()
                  << "\n"
                  << "in host memory " << memory::human_bytes(plan_.host_bytes()) << " of "
                  << memory::human_bytes(budget_.host) << host_of_whom() << "\n\n";
        if (prospect_.fits) {
            const int64_t gpus = forecast_.target().gpus;
            std::cout << "predicted: " << whole_number(prospect_.step_ms) << " ms a step, "
                      << whole_number(prospect_.tokens_per_second) << " tokens/s"
                      << (gpus > 1 ? cat(" on ", gpus, " GPUs") : "") << "\n";
        } else {
            std::cout << "it does not fit. "
                      << (ways_out_.empty() ? "Nor does a single short row: take a smaller or 4-bit model, a larger "
                                              "card, or a larger budget."
                                            : "What would:")
                      << "\n";
            for (const std::string& way : ways_out_) std::cout << "    " << way << "\n";
        }
        std::cout << "at most: " << most_.batch << " rows of " << forecast_.length() << " tokens, or one row of "
                  << most_.seq << std::endl;
    }

  private:
    std::string communicators() const {
        const int64_t bytes = forecast_.communicator_bytes();
        return bytes > 0 ? cat(", and at most ", memory::human_bytes(bytes), " of NCCL's communicators") : "";
    }

    /// The card need not be in this machine, so its host need not be this one.
    const char* host_of_whom() const {
        const bool said = config::max_memory(forecast_.config().model, -1).has_value();
        return said ? "" : ", which this machine has (another: --max_memory '{\"cpu\": \"200GiB\"}')";
    }

    void print_meshes() const {
        const int64_t gpus = forecast_.target().gpus;
        std::cout << "meshes of " << gpus << " GPUs over " << card_.peer_over << ", "
                  << (prospect_.fits ? "the fastest first" : "none of which fits; the one that lacks least") << "; of "
                  << forecast_.step_tokens() << " tokens a step in each\n"
                  << "  dp  tp  pp  cp  zero_stage  tokens/s  GiB a GPU  keeps; flags\n";
        for (const Proposal& proposal : proposals_) {
            const config::DistributedOptions& mesh = proposal.forecast.config().distributed;
            char line[128];
            std::snprintf(
                line, sizeof line, "%4d%4d%4d%4d  %-10s%10.0f%11.1f  ", static_cast<int>(proposal.forecast.copies()),
                static_cast<int>(mesh.tp_size), static_cast<int>(mesh.pp_size), static_cast<int>(mesh.cp_size),
                cat(mesh.zero_stage, mesh.offload_optimizer == config::OptimizerPlace::cpu ? " cpu" : "").c_str(),
                proposal.prospect.tokens_per_second,
                static_cast<double>(proposal.prospect.plan().total_bytes()) / (int64_t{1} << 30));
            std::cout << line << describe_own(proposal.prospect.plan()) << elsewhere(proposal.prospect.plan())
                      << (proposal.flags.empty() ? "" : "; " + proposal.flags) << "\n";
        }
        const std::string& flags = proposals_.front().flags;
        if (prospect_.fits)
            std::cout << "take: launch --nproc_per_node " << gpus << " train --config FILE"
                      << (flags.empty() ? "" : " " + flags) << "\n";
        std::cout << "\n";
    }

    const std::vector<Proposal>& proposals_;
    bool chosen_;  ///< of several meshes
    const Forecast& forecast_;
    const Prospect& prospect_;
    const model::ModelPlan& plan_;
    const planner::Card& card_;
    MemoryBudget budget_;
    Largest most_;
    std::vector<std::string> ways_out_;
};

}  // namespace

bool run_plan(const config::LoadedConfig& loaded, const config::PlanRequest& asked) {
    const Target target = target_of(asked);
    const std::shared_ptr<const formats::WeightFile> file = open_or_describe(loaded.config);
    const bool chooses = target.gpus > 1 && leaves_mesh_open(loaded);
    std::vector<Proposal> proposals;
    if (chooses) {
        proposals = propose_meshes(loaded, target, file, most_meshes);
    } else {
        Forecast forecast(loaded, target, file);
        Prospect prospect = forecast.choose();
        proposals.push_back({std::move(forecast), std::move(prospect), ""});
    }
    const Forecast& forecast = proposals.front().forecast;
    const model::ModelPlan& plan = proposals.front().prospect.plan();
    if (!asked.svg.empty()) {
        const planner::Card& card = target.machine.card;
        write_file_atomically(
            asked.svg, planner::memory_svg(memory_over_time(plan, card),
                                           cat(loaded.config.model.path, " on ", card.name, ": ", forecast.rows(),
                                               " x ", forecast.length(), " tokens, ", describe_own(plan))));
    }
    const Report report(proposals, chooses);
    asked.json ? report.print_json() : report.print_text();
    return proposals.front().prospect.fits;
}

}  // namespace unsloth::train
