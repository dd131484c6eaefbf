#include "commands/mesh_proposals.h"

#include <algorithm>
#include <map>

#include "unsloth/config/device_map.h"
#include "unsloth/core/error.h"
#include "unsloth/planner/search_best.h"

namespace unsloth::commands {
namespace {

constexpr double indifferent_mesh = 0.005;   // of a time: the plainer mesh is as good
constexpr double worth_other_passes = 0.03;  // of a time: the rows that were given are as good

using config::OptimizerPlace;

/// All meshes of `gpus` GPUs, plain ones first. The run itself refuses combinations that are not supported.
std::vector<config::DistributedOptions> all_meshes(const config::Config& config, int64_t gpus) {
    const bool full = config.lora.finetuning_type == config::FinetuningType::full;
    std::vector<std::pair<int64_t, OptimizerPlace>> holdings = {{0, OptimizerPlace::device}};
    if (full) holdings.insert(holdings.end(), {{1, OptimizerPlace::device}, {2, OptimizerPlace::device}});
    holdings.emplace_back(3, OptimizerPlace::device);
    if (full) holdings.insert(holdings.end(), {{0, OptimizerPlace::cpu}, {3, OptimizerPlace::cpu}});
    std::vector<config::DistributedOptions> meshes;
    for (int64_t pp = 1; pp <= gpus; ++pp)
        for (int64_t tp = 1; tp * pp <= gpus; ++tp)
            for (int64_t cp = 1; cp * tp * pp <= gpus; ++cp)
                for (const auto& [stage, place] : holdings) {
                    if (gpus % (tp * pp * cp) != 0) continue;
                    if (stage > 0 && pp == gpus) continue;  // a stage's one rank shares nothing
                    config::DistributedOptions& mesh = meshes.emplace_back(config.distributed);
                    mesh.tp_size = tp;
                    mesh.pp_size = pp;
                    mesh.cp_size = cp;
                    mesh.zero_stage = stage;
                    mesh.offload_optimizer = place;
                }
    return meshes;
}

/// The ways in which a copy of the model may take its rows of a step: passes of as many as are given, or of
/// fewer, unless what a pass holds is the objective's business or filled by tokens, or a run chooses it.
std::vector<config::TrainingOptions> all_passes(const config::Config& config, const config::DistributedOptions& mesh,
                                                const spec::ModelSpec& spec) {
    config::TrainingOptions given = config.training;
    given.gradient_accumulation_steps *= mesh.tp_size * mesh.pp_size * mesh.cp_size;
    std::vector<config::TrainingOptions> passes = {given};
    config::Config meshed = config;
    meshed.distributed = mesh;
    if (placement::may_regroup(meshed, absent_gpu, spec) || !placement::rows_are_free(given, spec)) return passes;
    const int64_t of_step = given.per_device_train_batch_size * given.gradient_accumulation_steps;
    for (const int64_t rows : placement::pass_rows(given.per_device_train_batch_size, of_step)) {
        if (of_step % rows != 0 || rows >= given.per_device_train_batch_size) continue;
        passes.push_back(given);
        passes.back().per_device_train_batch_size = rows;
        passes.back().gradient_accumulation_steps = of_step / rows;
    }
    return passes;
}

std::string flags_of(const config::Config& given, const config::Config& proposed) {
    std::string flags;
    const auto add = [&](const char* option, int64_t before, int64_t now) {
        if (now != before) flags += cat(flags.empty() ? "--" : " --", option, " ", now);
    };
    const config::DistributedOptions &mesh = proposed.distributed, plain;
    add("tp_size", plain.tp_size, mesh.tp_size);
    add("pp_size", plain.pp_size, mesh.pp_size);
    add("cp_size", plain.cp_size, mesh.cp_size);
    add("zero_stage", plain.zero_stage, mesh.zero_stage);
    if (mesh.offload_optimizer == OptimizerPlace::cpu)
        flags += cat(flags.empty() ? "" : " ", "--offload_optimizer cpu");
    add("per_device_train_batch_size", given.training.per_device_train_batch_size,
        proposed.training.per_device_train_batch_size);
    add("gradient_accumulation_steps", given.training.gradient_accumulation_steps,
        proposed.training.gradient_accumulation_steps);
    return flags;
}

/// What a proposal needs beyond what may be taken, in bytes.
int64_t lacking(const Proposal& proposal) {
    const placement::MemoryBudget budget = proposal.forecast.budget();
    const spec::MemoryNeed need = proposal.estimate.need();
    return std::max<int64_t>(0, need.device - budget.device) +
           std::max<int64_t>(0, need.host - need.there - budget.host);
}

/// A mesh's runs, which differ in what a pass has; at least one.
struct Candidate {
    std::vector<Forecast> runs;
    std::vector<double> least_ms;
};

class Search {
  public:
    Search(const config::LoadedConfig& loaded, const Target& target,
           const std::shared_ptr<const formats::WeightFile>& file)
        : loaded_(loaded) {
        std::optional<Forecast> like;
        for (const config::DistributedOptions& mesh : all_meshes(loaded.config, target.gpus)) {
            Candidate candidate;
            for (const config::TrainingOptions& passes : all_passes(loaded.config, mesh, file->spec)) {
                config::LoadedConfig with = loaded;
                with.config.distributed = mesh;
                with.config.training = passes;
                accept([&] {
                    Forecast run(std::move(with), target, file, like ? &*like : nullptr);
                    candidate.least_ms.push_back(run.least_step_ms());
                    if (!like) like = run;
                    candidate.runs.push_back(std::move(run));
                });
            }
            if (!candidate.runs.empty()) candidates_.push_back(std::move(candidate));
        }
    }

    std::vector<Proposal> run(std::size_t most) {
        std::vector<double> least;
        for (const Candidate& candidate : candidates_)
            least.push_back(*std::min_element(candidate.least_ms.begin(), candidate.least_ms.end()));
        std::vector<Proposal> proposals;
        for (const planner::Tried& tried :
             planner::search_best(least, most, [&](std::size_t i) { return step_ms(i); }, indifferent_mesh))
            proposals.push_back(std::move(found_.at(tried.candidate)));
        if (proposals.empty()) proposals.push_back(nearest());
        return proposals;
    }

  private:
    /// Whether a run does what `work` asks of it; what it refuses is not proposed.
    template <class Work>
    bool accept(const Work& work) {
        try {
            work();
            return true;
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::usage) throw;
            if (!refusal_) refusal_ = error;
            return false;
        }
    }

    /// With the passes that are fastest; nullopt: the mesh does not fit.
    std::optional<double> step_ms(std::size_t i) {
        const Candidate& candidate = candidates_[i];
        std::map<std::size_t, Proposal> fitting;
        const auto ms_of = [&](std::size_t number) -> std::optional<double> {
            Forecast run = candidate.runs[number];
            Estimate estimate;
            if (!accept([&] {
                    if (run.can_hold(run.rows(), run.length())) estimate = run.choose();
                }) ||
                !estimate.fits)
                return std::nullopt;
            const double ms = estimate.step_ms;
            fitting.emplace(number, proposal(std::move(run), std::move(estimate)));
            return ms;
        };
        const std::vector<planner::Tried> best = planner::search_best(candidate.least_ms, 1, ms_of, worth_other_passes);
        if (best.empty()) return std::nullopt;
        found_.emplace(i, std::move(fitting.at(best.front().candidate)));
        return best.front().cost;
    }

    /// What lacks least memory, where nothing fits.
    Proposal nearest() {
        std::optional<Proposal> nearest;
        for (const Candidate& candidate : candidates_) {
            Forecast run = candidate.runs.front();
            Estimate estimate;
            if (!accept([&] { estimate = run.choose(); })) continue;
            Proposal found = proposal(std::move(run), std::move(estimate));
            if (!nearest || lacking(found) < lacking(*nearest)) nearest = std::move(found);
        }
        if (!nearest) throw Error(*refusal_);
        return *std::move(nearest);
    }

    Proposal proposal(Forecast run, Estimate estimate) const {
        const std::string flags = flags_of(loaded_.config, run.config());
        return {std::move(run), std::move(estimate), flags};
    }

    const config::LoadedConfig& loaded_;
    std::vector<Candidate> candidates_;
    std::optional<Error> refusal_;           ///< of the plainest mesh that a run refuses
    std::map<std::size_t, Proposal> found_;  ///< what fits, by candidate
};

}  // namespace

bool leaves_mesh_open(const config::LoadedConfig& loaded) {
    const config::DeviceMap map(loaded.config.model);
    for (const char* option : {"tp_size", "pp_size", "cp_size", "zero_stage", "offload_optimizer"})
        if (loaded.is_given(cat("distributed.", option))) return false;
    return map.automatic() && map.word() == "auto";
}

std::vector<Proposal> propose_meshes(const config::LoadedConfig& loaded, const Target& target,
                                     const std::shared_ptr<const formats::WeightFile>& file, std::size_t most) {
    return Search(loaded, target, file).run(most);
}

}  // namespace unsloth::commands
