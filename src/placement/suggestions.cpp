// What would fit where a plan does not.
#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/core/text.h"
#include "unsloth/placement/memory_use.h"

namespace unsloth::placement {
namespace {

/// A change of a request, in the words of the options.
struct Suggestion {
    std::string text;
    model::LoadRequest request;
};

/// The changes that may help one plan, the same ones in the same order for each stage of a pipeline.
class Changes {
  public:
    explicit Changes(const model::ModelPlan& plan) : plan_(plan), asked_(plan.request()) {}

    std::vector<Suggestion> all() {
        if (asked_.trains) save_less();
        if (may_leave_device(asked_)) move_layers();
        if (any(asked_.coded)) use_16_bits();
        use_smaller_types();
        for (const bool moved : {false, true})
            for (int64_t divisor = 2; divisor <= 1024 && (!moved || may_leave_device(asked_)); divisor *= 2)
                take_fewer_tokens(divisor, moved);
        return std::move(all_);
    }

  private:
    bool gpu() const { return asked_.device.is_cuda(); }
    /// On the host: a pipeline's stages move nothing there.
    bool may_wait() const { return gpu() && asked_.pp.alone(); }

    template <class Change>
    void add(const std::string& text, const Change& change) {
        Suggestion suggestion{text, asked_};
        if (asked_.trains && gpu()) suggestion.request.run.row_tile = least_row_tile;  // as a run would that needs to
        change(suggestion.request);
        all_.push_back(std::move(suggestion));
    }
    /// The same, with full recomputation.
    template <class Change>
    void add_recomputing(const std::string& text, const Change& change) {
        add(cat(text, !asked_.trains ? ""
                      : may_wait()   ? ", gradient_checkpointing full+offload"
                                     : ", gradient_checkpointing full"),
            [&](model::LoadRequest& request) {
                for (spec::LayerPlan& layer : request.run.layers) {
                    layer.keep = spec::Keep::input;
                    layer.cached = false;
                    if (may_wait()) layer.activations_at = spec::Place::host;
                }
                change(request);
            });
    }
    static void put_layers(model::LoadRequest& request, spec::Place to) {
        for (spec::LayerPlan& layer : request.run.layers) layer.weights_at = to;
    }

    void save_less() {
        for (const spec::LayerPlan way : {spec::LayerPlan{spec::Keep::but_mlp},
                                          {spec::Keep::input},
                                          {spec::Keep::but_mlp, spec::Place::host},
                                          {spec::Keep::input, spec::Place::host}}) {
            if (!may_wait() && way.activations_at == spec::Place::host) continue;
            add(cat("gradient_checkpointing ", name_of(way), gpu() ? ", dequantized_weights off" : ""),
                [&](model::LoadRequest& request) {
                    for (spec::LayerPlan& layer : request.run.layers) {
                        layer.keep = way.keep;
                        layer.activations_at = way.activations_at;
                        layer.cached = false;
                    }
                });
        }
    }

    void move_layers() {
        add_recomputing(in_host_memory, [](model::LoadRequest& request) { put_layers(request, spec::Place::host); });
        if (!asked_.tp.alone()) return;
        add_recomputing(
            cat("layers on the disk (", plan_.reads_checkpoint_in_place() ? "" : "model.offload_folder FOLDER, ",
                "model.device_map auto, or {\"model.layers\": \"disk\", …})"),
            [&](model::LoadRequest& request) {
                if (!plan_.reads_checkpoint_in_place()) request.offload_folder = "FOLDER";  // not made for a plan
                put_layers(request, spec::Place::disk);
            });
    }

    void use_16_bits() {
        for (const bool moved : {false, true}) {
            if (moved && !may_wait()) continue;
            add_recomputing(cat("model.compute_dtype auto", moved ? cat(", ", in_host_memory) : ""),
                            [&](model::LoadRequest& request) {
                                request.coded = spec::CodedProducts::none;
                                if (moved) put_layers(request, spec::Place::host);
                            });
        }
    }

    void use_smaller_types() {
        const bool lora = asked_.finetuning_type == config::FinetuningType::lora,
                   in_16_bits = plan_.tensors().quantised_linears() == 0 && plan_.tensors().int8_linears() == 0;
        if (lora && !asked_.load_in_4bit && in_16_bits)
            add_recomputing("model.load_in_4bit true",
                            [](model::LoadRequest& request) { request.load_in_4bit = true; });
        if (gpu() && !asked_.offload_embedding)
            add_recomputing("hardware.offload_embedding true",
                            [](model::LoadRequest& request) { request.offload_embedding = true; });
        if (asked_.trains && asked_.optim == config::Optimizer::adamw_torch)
            add_recomputing("optim adamw_8bit",
                            [](model::LoadRequest& request) { request.optim = config::Optimizer::adamw_8bit; });
    }

    void take_fewer_tokens(int64_t divisor, bool moved) {
        const int64_t tokens = std::max<int64_t>(1, asked_.sizes.tokens / divisor);
        add_recomputing(cat("at most ", tokens,
                            " tokens a micro-batch (per_device_train_batch_size x max_seq_length), more "
                            "gradient_accumulation_steps instead",
                            moved ? cat(", ", in_host_memory) : ""),
                        [&](model::LoadRequest& request) {
                            if (moved) put_layers(request, spec::Place::host);
                            model::ActivationSizes& sizes = request.sizes;
                            sizes.tokens = tokens;
                            sizes.head_rows = std::max<int64_t>(1, sizes.head_rows / divisor);
                            sizes.segments = std::max<int64_t>(1, sizes.segments / divisor);
                            sizes.keys = (sizes.keys + divisor - 1) / divisor;
                            sizes.all_keys = (sizes.all_keys + divisor - 1) / divisor;
                            sizes.sequences = (sizes.sequences + divisor - 1) / divisor;
                            sizes.longest = std::min(sizes.longest, std::max(sizes.tokens, sizes.all_keys));
                            request.run.head_tile = std::min(request.run.head_tile, sizes.head_rows);
                        });
    }

    static constexpr const char* in_host_memory =
        "layers in host memory (model.device_map {\"model.layers\": \"cpu\", …})";
    const model::ModelPlan& plan_;
    const model::LoadRequest& asked_;
    std::vector<Suggestion> all_;
};

}  // namespace

std::vector<std::string> suggestions(const std::vector<model::ModelPlan>& stages, const MemoryBudget& budget,
                                     const planner::Card* card) {
    constexpr std::size_t most = 3;
    std::vector<std::vector<Suggestion>> all;  // by stage, the same ones of each
    for (const model::ModelPlan& stage : stages) all.push_back(Changes(stage).all());
    std::vector<std::pair<double, std::string>> found;  // by the time of a token
    int fewer_tokens = 0;
    for (std::size_t i = 0; i < all.front().size(); ++i) {
        const Suggestion& suggestion = all.front()[i];
        const int64_t tokens = suggestion.request.sizes.tokens;
        const bool fewer = tokens < stages.front().request().sizes.tokens;
        if (fewer && fewer_tokens == 2) continue;
        bool all_fit = true;
        double ms = 0;  // of the slowest stage
        for (std::size_t s = 0; all_fit && s < stages.size(); ++s) {
            const model::ModelPlan other = stages[s].with(all[s][i].request);
            all_fit = fits(other, budget);
            if (all_fit && card != nullptr && other.request().trains)
                ms = std::max(ms, predicted_step_ms(other, *card, 1));
        }
        if (!all_fit) continue;
        fewer_tokens += fewer;
        found.emplace_back(ms / static_cast<double>(std::max<int64_t>(1, tokens)), suggestion.text);
    }
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<std::string> texts;
    for (const auto& [ms, text] : found)
        if (texts.size() < most) texts.push_back(text);
    return texts;
}

void require_memory(const model::ModelPlan& plan, const MemoryBudget& budget,
                    const std::optional<planner::Card>& card) {
    const model::LoadRequest& request = plan.request();
    if (fits(plan, budget)) return;
    const spec::MemoryNeed need = plan.need();
    const std::vector<std::string> found = suggestions({plan}, budget, card ? &*card : nullptr);
    std::string advice = "Would fit:";
    for (const std::string& remedy : found) advice += "\n    " + remedy;
    if (found.empty())
        advice =
            "Not even a single short row would fit: use a smaller or 4-bit model, a larger device, or a larger budget.";
    if (plan.total_bytes() > budget.device)
        throw Error(
            "memory.plan-too-large",
            cat("not enough memory on ", request.device.str(), ": the plan needs ", human_bytes(plan.total_bytes()),
                ", ", human_bytes(budget.device), " may be taken\n", plan.table_text()),
            advice);
    advice += "\nmodel.max_memory and the control group bound what may be taken of host memory.";
    if (request.saves)
        advice += " With training.save_steps 0 and save_minutes 0 no copies for checkpoints are planned.";
    throw Error("memory.host-plan-too-large",
                cat("not enough host memory: ", human_bytes(need.host - need.there), " would be pinned, ",
                    human_bytes(budget.host), " may be\n", plan.table_text()),
                advice);
}

void require_memory(const model::ModelPlan& plan, const MemoryBudget& budget) {
    if (fits(plan, budget)) return;
    std::optional<planner::Card> card;
    if (plan.request().device.is_cuda()) card = machine_of(plan.request().device).card;
    require_memory(plan, budget, card);
}

}  // namespace unsloth::placement
