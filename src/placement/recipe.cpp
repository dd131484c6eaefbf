#include "unsloth/placement/recipe.h"

#include <algorithm>
#include <numeric>

#include "unsloth/core/error.h"
#include "unsloth/objective/objective.h"
#include "unsloth/placement/parallel.h"

namespace unsloth::placement {

Ranks ranks_of(comm::Group* group, const comm::Mesh* mesh) {
    Ranks ranks;
    if (group != nullptr) ranks.here = group->ranks_here();
    if (group != nullptr) ranks.rank = group->rank();
    if (mesh != nullptr) ranks.mesh = mesh->shape();
    ranks.links = mesh;
    return ranks;
}

Ranks planned_ranks(const comm::MeshShape& mesh, bool reach) {
    Ranks ranks{.mesh = mesh, .reach = reach};
    ranks.here.resize(static_cast<std::size_t>(mesh.size()));
    std::iota(ranks.here.begin(), ranks.here.end(), 0);
    return ranks;
}

bool divides_base(const config::Config& config) {
    return config.distributed.zero_stage == 3 && config.lora.finetuning_type == config::FinetuningType::lora &&
           !any(config.model.compute_dtype);
}

namespace {

/// What ranks have of the model, of its training, and of the machine.
void share_out(const config::Config& config, const spec::ModelSpec& spec, const Recipe& recipe,
               model::LoadRequest& request) {
    const Ranks& ranks = recipe.ranks;
    const comm::MeshShape &mesh = ranks.mesh, at = comm::coordinates(mesh, ranks.rank);
    request.processes = static_cast<int>(ranks.here.size());
    if (recipe.work == Work::passes) return;
    request.tp = ranks.links ? model::TensorParallel(ranks.links->tp())
                             : model::TensorParallel(spec::TensorRank{at.tp, mesh.tp});
    request.cp = ranks.links ? model::ContextParallel(ranks.links->cp())
                             : model::ContextParallel(data::ContextRank{at.cp, mesh.cp});
    if (const double coefficient = router_aux_coefficient(config.training, spec); coefficient > 0) {
        if (mesh.pp > 1 || mesh.cp > 1)
            throw Error("parallel.unsupported",
                        cat("training.router_aux_loss_coef ", coefficient,
                            config.training.router_aux_loss_coef ? "" : " (of config.json)",
                            ": the loads of a micro-batch's experts would be on several ",
                            mesh.pp > 1 ? "stages (distributed.pp_size)" : "ranks (distributed.cp_size)"),
                        "Take data parallel ranks, or set router_aux_loss_coef to 0.");
        request.router_aux = coefficient / static_cast<double>(config.training.gradient_accumulation_steps * mesh.dp);
    }
    const int copies = mesh.dp * mesh.cp, copy = at.dp * mesh.cp + at.cp;
    weights::Share stage;  // the ranks that train the same parameters
    if (recipe.work == Work::run)
        stage = ranks.links ? place_of(ranks.links->stage()) : weights::Share{copy * mesh.tp + at.tp, copies * mesh.tp};
    request.sharding = parameter_sharding(config.distributed, stage);
    if (recipe.work == Work::bench) return;
    require_shareable(config, request.sharding);
    if (ranks.links && request.sharding.share.size > 1) request.data_parallel = ranks.links->stage();
    if (ranks.reach && divides_base(config)) {
        request.peers = ranks.links ? place_of(ranks.links->copies_here()) : weights::Share{copy, copies};
        if (ranks.links) request.peer_ranks = ranks.links->copies_here();
    }
    const auto writes = [&](int rank) { return writes_part(mesh, request.sharding.share, rank); };
    request.saves = writes(ranks.rank) && config::saves_checkpoints(config.training);
    request.writers = static_cast<int>(std::count_if(ranks.here.begin(), ranks.here.end(), writes));
}

}  // namespace

double router_aux_coefficient(const config::TrainingOptions& training, const spec::ModelSpec& spec) {
    const bool follows = spec.experts && training.objective == config::Objective::sft;
    return training.router_aux_loss_coef.value_or(follows ? spec.experts->router_aux : 0);
}

model::LoadRequest make_request(const config::LoadedConfig& loaded, const spec::ModelSpec& spec, const Recipe& recipe) {
    const config::Config& config = loaded.config;
    const bool trains = recipe.work != Work::passes;
    model::LoadRequest request = load_request(loaded, recipe.device, trains, recipe.kernels);
    request.held = recipe.held;
    request.sizes.deterministic = config.training.deterministic;
    share_out(config, spec, recipe, request);
    if (recipe.work == Work::run) request.sizes.objective = objective::needs_of(config, recipe.teacher_tokens);
    const bool samples = config::samples_completions(config.training.objective) && !config.grpo.replay_rollouts;
    if (recipe.work == Work::run && samples) request.fewest_tokens = 1;  // the last completion of a generation batch
    if (trains) return request;
    request.adapters = recipe.adapters;
    request.adapter_slots = recipe.adapter_slots;
    request.sizes.cache_tokens = recipe.cache.tokens;
    request.sizes.cache_in_8_bit = recipe.cache.in_8_bit;
    request.sizes.context = recipe.cache.context;
    request.records = recipe.cache.tokens > 0 && config.hardware.cuda_graphs;
    request.fewest_tokens = recipe.fewest_tokens;
    request.tails_may_stay = recipe.tails_may_stay;
    return request;
}

/// Snapshots of states for half of the sequences: groups of completions have one together. Some for a single one, too,
/// whose prompts may go on from each other; no more than others will find again.
int64_t snapshots_for(const model::ActivationSizes& sizes) {
    return std::clamp<int64_t>(sizes.state_places() / 2, 2, 32);
}

/// Small images go through the tower together, up to this number of patches: products of fewer rows leave a GPU idle.
constexpr int64_t tower_patches = 8192;

void fit_to(model::LoadRequest& request, const spec::ModelSpec& spec, data::BatchLimits limits,
            const std::vector<Answering>& answering) {
    for (const Answering& some : answering) {
        limits.tokens = std::max({limits.tokens, some.prompt, some.rows});
        limits.longest = std::max({limits.longest, some.prompt, some.rows});
        if (some.images > 0) {
            // A pass has room for an image as a whole, whatever others decode.
            limits.tokens = std::max(limits.tokens, some.prompt + some.rows);
            limits.longest = std::max(limits.longest, some.prompt + some.rows);
            limits.patches = std::max(limits.patches, some.patches);
            const bool tiles = spec.vision && spec.vision->tiles;
            limits.image_tokens = std::max(limits.image_tokens, tiles ? some.images : limits.tokens);
        }
        limits.segments = std::max(limits.segments, some.rows);
        limits.labels = std::max(limits.labels, some.rows);
        request.sizes.decoding_rows = std::max(request.sizes.decoding_rows, some.rows);
        const CacheSize cache = cache_for(some.rows, some.context);
        request.sizes.cache_tokens = std::max(request.sizes.cache_tokens, cache.tokens);
        request.sizes.context = std::max(request.sizes.context, cache.context);
    }
    size_for(request.sizes, limits);
    if (spec.delta && request.sizes.cache_tokens > 0) request.sizes.snapshots = snapshots_for(request.sizes);
    if (limits.patches > 0 && spec.vision && !spec.vision->tiles) {
        const int64_t all = limits.image_tokens * spec.vision->merge * spec.vision->merge;
        request.sizes.patches = std::max(limits.patches, std::min(all, tower_patches));
    }
    const at::ScalarType logits = request.sizes.objective.fp32_logits ? at::kFloat : request.dtype;
    request.run.head_tile = head_chunk_rows(spec, logits, limits.labels);
}

bool shares_prompts(const config::Config& config, const spec::ModelSpec& spec) {
    const bool pairs = config::compares_completions(config.training.objective) && config.preference.share_prompt;
    return !spec.delta && (pairs || config::samples_completions(config.training.objective));
}

data::BatchLimits full_rows(const config::Config& config, const spec::ModelSpec& spec, int64_t rows, int64_t length) {
    const bool pairs = config::compares_completions(config.training.objective), shared = shares_prompts(config, spec);
    const int64_t texts = rows * (pairs ? 2 : 1);
    data::BatchLimits limits{
        .tokens = texts * length - (shared && pairs ? rows : 0), .segments = texts, .longest = length};
    limits.labels = std::max<int64_t>(1, texts * (length - 1));  // a text's first token is no target
    if (shared) limits.keys = texts * length;
    if (config::samples_completions(config.training.objective)) {
        const int64_t group = config.grpo.num_generations,
                      completion = std::min(length - 1, config.grpo.max_completion_length);
        limits.labels = texts * completion;
        if (!shared) return limits;
        limits.tokens = limits.labels + (texts + group - 1) / group * (length - completion);
        limits.copies = std::max(limits.copies, group);
    }
    return limits;
}

}  // namespace unsloth::placement
