#include "unsloth/placement/stages.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "unsloth/config/device_map.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/device.h"
#include "unsloth/placement/layer_costs.h"
#include "unsloth/placement/load_request.h"
#include "unsloth/placement/parallel.h"
#include "unsloth/planner/stages.h"

namespace unsloth::placement {
namespace {

constexpr int interleaved_chunks = 2;  // of a rank: each halves the bubble again, and sends as much once more

using Ranges = std::vector<spec::LayerRange>;

/// Where to cut: by predicted times, so that what each rank holds fits there.
class Cut {
  public:
    /// `budgets`: bytes of each stage's device.
    Cut(const config::Config& config, const model::ModelPlan& whole, const model::PipelineShape& shape,
        const planner::Card& card, std::vector<int64_t> budgets)
        : config_(config),
          whole_(whole),
          shape_(shape),
          card_(card),
          word_(config::DeviceMap(config.model).word()),
          budgets_(std::move(budgets)) {}

    Ranges make() const {
        const planner::PartTimes times = part_times();
        if (word_ == "sequential") return filled(times.layers);
        std::vector<int> most(static_cast<std::size_t>(shape_.ranks), times.layers);
        const Ranges even = planner::cut_layers(times, shape_.ranks, shape_.chunks);
        for (Ranges cut = even; !cut.empty(); cut = planner::cut_layers(times, shape_.ranks, shape_.chunks, most)) {
            bool fits = true;
            for (int rank = 0; rank < shape_.ranks; ++rank)
                if (!holds(cut, rank)) {
                    const spec::Stage stage{rank, shape_.ranks, cut};
                    most[static_cast<std::size_t>(rank)] = static_cast<int>(stage.layers(times.layers).size()) - 1;
                    fits = false;
                }
            if (fits) return cut;
        }
        return even;  // the plan says what does not fit
    }

  private:
    planner::PartTimes part_times() const {
        const planner::StepTime time(card_, step_work(whole_, shape_.micro_batches, whole_.request().run));
        const spec::LayerPlan plan =
            layer_plan_of(config_.training.gradient_checkpointing).value_or(spec::LayerPlan{spec::Keep::everything});
        planner::PartTimes times{.head = time.outside(),
                                 .layer = time.layer(plan, {}, 1).both(),
                                 .layers = static_cast<int>(whole_.spec().num_layers)};
        // GPU 0 is left half free for what else runs there.
        const double all = times.head + times.layer * times.layers;
        if (word_ == "balanced_low_0") times.embedding = all / (2 * shape_.ranks - 1);
        return times;
    }
    /// Each rank as many layers as it holds, the lowest first; later ranks have one each at least.
    Ranges filled(int layers) const {
        Ranges cut;
        const int ranges = shape_.ranks * shape_.chunks;
        for (int number = 0, begin = 0; number < ranges; ++number) {
            const int ranges_after = ranges - number - 1;
            int end = layers - ranges_after;
            const auto with = [&] {
                Ranges all = cut;
                all.push_back({begin, end});
                for (int i = 0; i < ranges_after; ++i)
                    all.push_back({end + i, i + 1 < ranges_after ? end + i + 1 : layers});
                return all;
            };
            while (ranges_after > 0 && end > begin + 1 && !holds(with(), number % shape_.ranks)) --end;
            cut.push_back({begin, end});
            begin = end;
        }
        return cut;
    }
    /// Whether a rank's plan fits that keeps as little as the configuration allows.
    bool holds(const Ranges& cut, int rank) const {
        model::LoadRequest request = whole_.request();
        request.pp = model::Pipeline(nullptr, {rank, shape_.ranks, cut}, shape_);
        request.run.layers = {
            layer_plan_of(config_.training.gradient_checkpointing).value_or(spec::LayerPlan{spec::Keep::input})};
        return whole_.with(std::move(request)).total_bytes() <= budgets_[static_cast<std::size_t>(rank)];
    }

    const config::Config& config_;
    const model::ModelPlan& whole_;
    model::PipelineShape shape_;
    const planner::Card& card_;
    std::string word_;
    std::vector<int64_t> budgets_;  ///< of each stage: of its ranks the least
};

/// Of each stage the least that one of its ranks may take.
std::vector<int64_t> budgets_of(const config::Config& config, at::Device device, comm::Group& group, int stages) {
    const int64_t own = memory_budget(config, device).device;
    const std::vector<std::string> all = group.gather(std::to_string(own), "the memory of the stages");
    const std::size_t each = all.size() / static_cast<std::size_t>(stages);
    std::vector<int64_t> budgets;
    for (std::size_t stage = 0; stage < static_cast<std::size_t>(stages); ++stage) {
        budgets.push_back(std::numeric_limits<int64_t>::max());
        for (std::size_t rank = stage * each; rank < (stage + 1) * each; ++rank)
            budgets.back() = std::min<int64_t>(budgets.back(), std::strtoll(all[rank].c_str(), nullptr, 10));
    }
    return budgets;
}

}  // namespace

bool several_chunks(const config::DistributedOptions& distributed) {
    return distributed.pp_size > 1 && distributed.pipeline_schedule == config::PipelineSchedule::interleaved;
}

void require_pipelined(const config::Config& config, at::Device device, int64_t layers) {
    const std::string size = cat("distributed.pp_size ", config.distributed.pp_size, " cannot be combined with ");
    if (const char* const answers = asks_for_answers(config.training))
        throw Error("parallel.unsupported", cat(size, answers, ": a rank alone cannot answer"),
                    "Leave one of the two out.");
    if (config::traits_of(config.training.objective).has_teacher && !teacher_is_file(config))
        throw Error("parallel.unsupported",
                    size + "a model as distill.teacher: it needs the whole student on each rank",
                    "Let `unsloth-train score --top_k N` write what it says of the rows into a file, and name "
                    "that as distill.teacher.");
    if (const auto asked = layer_plan_of(config.training.gradient_checkpointing);
        asked && asked->activations_at == spec::Place::host)
        throw Error("parallel.unsupported",
                    size + "gradient_checkpointing …+offload: what is moved is planned for all layers in one order",
                    "Take gradient_checkpointing full, or more stages.");
    const config::DeviceMap map(config.model);
    if (map.automatic()) return;
    const int gpu = ops::gpu_number(device);
    const std::vector<spec::Place> places = map.layers(layers, gpu);
    if (map.embedding_on_host(gpu) ||
        std::any_of(places.begin(), places.end(), [](spec::Place place) { return place != spec::Place::device; }))
        throw Error("parallel.unsupported",
                    size + "layers or embeddings in host memory or on the disk (model.device_map)",
                    "Keep them on the GPUs: a pipeline is for models that one GPU does not hold.");
}

model::PipelineShape pipeline_shape(const config::Config& config, int64_t layers, int64_t micro_batches) {
    const config::DistributedOptions& distributed = config.distributed;
    const int ranks = static_cast<int>(distributed.pp_size),
              chunks = several_chunks(distributed) ? interleaved_chunks : 1;
    if (layers < ranks * chunks)
        throw Error("parallel.model-does-not-divide",
                    cat("distributed.pp_size ", ranks, chunks > 1 ? cat(" with ", chunks, " chunks a rank") : "",
                        " needs ", ranks * chunks, " layers, and the model has ", layers),
                    chunks > 1 ? "Take pipeline_schedule 1f1b, or fewer stages." : "Take fewer stages.");
    if (chunks > 1 && distributed.pipeline_micro_batches > 0 && distributed.pipeline_micro_batches < ranks)
        throw Error("parallel.model-does-not-divide",
                    cat("distributed.pipeline_micro_batches ", distributed.pipeline_micro_batches,
                        ": pipeline_schedule interleaved takes them in groups of pp_size ", ranks),
                    "Leave it out, or take pipeline_schedule 1f1b.");
    if (config::DeviceMap(config.model).gpus() > 1 && chunks > 1)
        throw Error("parallel.unsupported",
                    "model.device_map gives each GPU one range of layers, pipeline_schedule interleaved two",
                    "Take pipeline_schedule 1f1b, or device_map balanced.");
    return {.ranks = ranks,
            .chunks = chunks,
            .micro_batches = static_cast<int>(micro_batches),
            .in_flight = static_cast<int>(distributed.pipeline_micro_batches)};
}

std::vector<spec::LayerRange> cut_stages(const config::Config& config, const model::ModelPlan& whole,
                                         const model::PipelineShape& shape, const planner::Card& card,
                                         const std::vector<int64_t>& budgets) {
    const config::DeviceMap map(config.model);
    return map.gpus() > 1 ? map.stages(whole.spec().num_layers) : Cut(config, whole, shape, card, budgets).make();
}

model::Pipeline plan_pipeline(const config::Config& config, const model::ModelPlan& whole, const comm::Mesh& mesh,
                              comm::Group& group, int64_t micro_batches) {
    const model::PipelineShape shape = pipeline_shape(config, whole.spec().num_layers, micro_batches);
    const at::Device device = whole.request().device;
    const planner::Card card = machine_of(device).card;  // only proportions of times count
    const Ranges own = cut_stages(config, whole, shape, card, budgets_of(config, device, group, shape.ranks));
    const std::string first = group.gather(spec::layer_ranges_text(own), "the stages of the pipeline")[0];
    const spec::Stage stage{mesh.at().pp, shape.ranks, spec::parse_layer_ranges(first)};
    return model::Pipeline(&mesh, stage, shape);
}

std::string describe_pipeline(const model::Pipeline& pipeline) {
    const spec::Stage& stage = pipeline.stage();
    std::string text = cat(stage.size, " stages of layers ");
    for (int rank = 0; rank < stage.size; ++rank) {
        text += rank > 0 ? " | " : "";
        for (int number = 0; number < stage.chunks_each(); ++number) {
            const spec::LayerRange& range = stage.chunks[static_cast<std::size_t>(number * stage.size + rank)];
            text += cat(number > 0 ? " and " : "", range.begin, " to ", range.end - 1);
        }
    }
    const auto share = static_cast<int>(100 * model::pipeline_bubble(pipeline.shape()) + 0.5);
    return cat(text, "; ", pipeline.shape().micro_batches, " micro-batches, of which the first stage holds ",
               pipeline.places(), "; by its formula a stage waits ", share, " % of a step");
}

}  // namespace unsloth::placement
