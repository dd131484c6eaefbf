// `plan`: what a run would take, and of several GPUs which mesh is fastest.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <iostream>

#include <nlohmann/json.hpp>

#include "commands/mesh_proposals.h"
#include "unsloth/commands/commands.h"
#include "unsloth/config/device_map.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/log.h"
#include "unsloth/core/text.h"
#include "unsloth/memory/plan.h"
#include "unsloth/placement/plan_json.h"
#include "unsloth/placement/stages.h"
#include "unsloth/placement/step_memory.h"
#include "unsloth/planner/memory_picture.h"
#include "unsloth/planner/run_plan_text.h"

namespace unsloth::commands {
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

/// Describes the layers whose weights are not on the GPUs.
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
    const Estimate& estimate = proposal.estimate;
    return {{"dp", forecast.copies()},
            {"tp_size", mesh.tp_size},
            {"pp_size", mesh.pp_size},
            {"cp_size", mesh.cp_size},
            {"zero_stage", mesh.zero_stage},
            {"offload_optimizer", mesh.offload_optimizer == config::OptimizerPlace::cpu ? "cpu" : "none"},
            {"flags", proposal.flags},
            {"fits", estimate.fits},
            {"step_tokens", forecast.step_tokens()},
            {"predicted_step_ms", estimate.step_ms},
            {"predicted_tokens_per_second", estimate.tokens_per_second},
            {"total_bytes", estimate.need().device},
            {"host_bytes", estimate.need().host},
            {"keeps", describe_own(estimate.plan())}};
}

/// What a run takes, as text or as JSON.
class Report {
  public:
    Report(const std::vector<Proposal>& proposals, bool chosen)
        : proposals_(proposals),
          chosen_(chosen),
          forecast_(proposals.front().forecast),
          prospect_(proposals.front().estimate),
          plan_(prospect_.plan()),
          card_(forecast_.target().machine.card),
          budget_(forecast_.budget()),
          most_(largest_of(forecast_)) {
        if (prospect_.fits) return;
        placement::MemoryBudget left = budget_;  // by a teacher
        if (const auto& teacher = prospect_.teacher) {
            left.device -= teacher->need().device;
            left.host -= teacher->need().host;
        }
        ways_out_ = placement::suggestions(prospect_.stages, left, on_gpu() ? &card_ : nullptr);
    }

    void print_json() const {
        const auto predicted = [&](double value) { return on_gpu() ? Json(value) : Json(); };
        Json all{{"fits", prospect_.fits},
                 {"gpu", on_gpu() ? Json(card_.name) : Json()},
                 {"measured", on_gpu() && card_.measured},
                 {"budget_bytes", budget_.device},
                 {"context_bytes", context_bytes()},
                 {"communicator_bytes", forecast_.communicator_bytes()}};
        all.update(placement::plan_json(plan_, prospect_.teachers()));
        all.update({{"host_budget_bytes", budget_.host},
                    {"predicted_step_ms", predicted(prospect_.step_ms)},
                    {"predicted_tokens_per_second", predicted(prospect_.tokens_per_second)},
                    {"largest", {{"batch", most_.batch}, {"seq", most_.seq}}},
                    {"remedies", ways_out_},
                    {"mesh", mesh_json(proposals_.front())}});
        if (!plan_.request().pp.alone())
            for (const model::ModelPlan& stage : prospect_.stages) {
                Json one = placement::plan_json(stage, prospect_.teachers());
                one["stage"] = stage.request().pp.stage().rank;
                all["stages"].push_back(std::move(one));
            }
        if (chosen_) {
            all["meshes"] = Json::array();
            for (const Proposal& proposal : proposals_) all["meshes"].push_back(mesh_json(proposal));
        }
        std::cout << all.dump() << std::endl;
    }

    void print_text() const {
        const spec::RunPlan& run = plan_.request().run;
        const spec::MemoryNeed need = prospect_.need();
        const auto cached =
            std::count_if(run.layers.begin(), run.layers.end(), [](const auto& layer) { return layer.cached; });
        const std::string places = placement::describe_places(plan_);
        std::cout << (on_gpu() ? card_.name : "CPU") << ", " << human_bytes(forecast_.target().memory) << ": "
                  << human_bytes(budget_.device) << " may be planned for"
                  << (card_.measured || !on_gpu() ? "" : "; its rates are published ones, not measured") << "\n";
        if (chosen_) print_meshes();
        const spec::RowImages& images = forecast_.target().images;
        std::cout << forecast_.rows() << " x " << forecast_.length() << " tokens a micro-batch, "
                  << (images.count > 0 ? cat("images of each row: ", images.count, ", ") : "")
                  << forecast_.micro_batches() << " of them a step, base: " << plan_.base_description() << "\n";
        if (!plan_.request().pp.alone())
            std::cout << "  pipeline                     " << placement::describe_pipeline(plan_.request().pp)
                      << "; stage " << plan_.request().pp.stage().rank << " takes most:\n";
        std::cout << "  gradient_checkpointing       " << describe_own(plan_) << "\n"
                  << "  weights                      "
                  << (places.empty() ? on_gpu() ? "on the GPU" : "in host memory" : places)
                  << (cached > 0 ? cat(", ", cached, " layers dequantized once") : "") << "\n\n"
                  << plan_.table_text() << teachers() << " of " << human_bytes(budget_.device) << drivers()
                  << communicators() << "\n";
        if (on_gpu())
            std::cout << "in host memory " << human_bytes(need.host) << " of " << human_bytes(budget_.host)
                      << host_of_whom() << "\n";
        std::cout << "\n";
        if (prospect_.fits && on_gpu()) {
            const int64_t gpus = forecast_.target().gpus;
            std::cout << "predicted: " << whole_number(prospect_.step_ms) << " ms a step, "
                      << whole_number(prospect_.tokens_per_second) << " tokens/s"
                      << (gpus > 1 ? cat(" on ", gpus, " GPUs") : "") << "\n";
        } else if (!prospect_.fits) {
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
    bool on_gpu() const { return forecast_.target().device.is_cuda(); }
    int64_t context_bytes() const { return on_gpu() ? card_.context_bytes : 0; }

    std::string teachers() const {
        if (!prospect_.teacher) return "";
        return cat(", and with the teacher's ", human_bytes(prospect_.teachers()->total_bytes()), " ",
                   human_bytes(prospect_.need().device));
    }

    std::string drivers() const {
        if (!on_gpu()) return "";
        return cat(", plus ", human_bytes(context_bytes()), " of the driver and the libraries");
    }

    std::string communicators() const {
        const int64_t bytes = forecast_.communicator_bytes();
        return bytes > 0 ? cat(", and at most ", human_bytes(bytes), " of NCCL's communicators") : "";
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
                proposal.estimate.tokens_per_second,
                static_cast<double>(proposal.estimate.need().device) / (int64_t{1} << 30));
            std::cout << line << describe_own(proposal.estimate.plan()) << elsewhere(proposal.estimate.plan())
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
    const Estimate& prospect_;
    const model::ModelPlan& plan_;
    const planner::Card& card_;
    placement::MemoryBudget budget_;
    Largest most_;
    std::vector<std::string> ways_out_;
};

}  // namespace

engine_api::PlanEstimate estimate_plan(const config::LoadedConfig& loaded, const engine_api::PlanRequest& asked) {
    const Target target = target_of(asked, loaded.config);
    const std::shared_ptr<const formats::WeightFile> file = open_or_describe(loaded.config);
    Forecast forecast(with_auto_values(loaded, file->spec, target.gpus), target, file);
    const Estimate estimate = forecast.choose();
    const spec::MemoryNeed need = estimate.need();
    return {.device = target.device.is_cuda() ? target.machine.card.name : "CPU",
            .fits = estimate.fits,
            .budget_bytes = forecast.budget().device,
            .total_bytes = need.device,
            .host_bytes = need.host,
            .rows = forecast.rows(),
            .micro_batches = forecast.micro_batches(),
            .tokens_per_second = estimate.tokens_per_second,
            .keeps = describe_own(estimate.plan()),
            .base = estimate.plan().base_description(),
            .elsewhere = placement::describe_places(estimate.plan())};
}

bool run_plan(const config::LoadedConfig& given, const engine_api::PlanRequest& asked) {
    const Target target = target_of(asked, given.config);
    const std::shared_ptr<const formats::WeightFile> file = open_or_describe(given.config);
    const config::LoadedConfig loaded = with_auto_values(given, file->spec, target.gpus);
    // Rows with images train on meshes of data parallelism alone.
    const bool chooses =
        target.gpus > 1 && target.device.is_cuda() && target.images.count == 0 && leaves_mesh_open(loaded);
    std::vector<Proposal> proposals;
    if (chooses) {
        proposals = propose_meshes(loaded, target, file, most_meshes);
    } else {
        Forecast forecast(loaded, target, file);
        Estimate estimate = forecast.choose();
        proposals.push_back({std::move(forecast), std::move(estimate), ""});
    }
    const Forecast& forecast = proposals.front().forecast;
    const model::ModelPlan& plan = proposals.front().estimate.plan();
    if (!forecast.knows_prompts())
        log::info("no tokenizer is here: training.sample_prompts count as prompts of ", forecast.length(), " tokens");
    if (!asked.svg.empty()) {
        const planner::Card& card = target.machine.card;
        write_file_atomically(
            asked.svg,
            planner::memory_svg(placement::memory_over_time(plan, card),
                                cat(loaded.config.model.path, " on ", target.device.is_cuda() ? card.name : "the CPU",
                                    ": ", forecast.rows(), " x ", forecast.length(), " tokens, ", describe_own(plan))));
    }
    const Report report(proposals, chooses);
    asked.json ? report.print_json() : report.print_text();
    return proposals.front().estimate.fits;
}

}  // namespace unsloth::commands
