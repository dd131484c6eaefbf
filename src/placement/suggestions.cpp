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

std::vector<Suggestion> all_remedies(const model::ModelPlan& plan) {
    const model::LoadRequest& asked = plan.request();
    const bool lora = asked.finetuning_type == config::FinetuningType::lora, gpu = asked.device.is_cuda(),
               may_wait = gpu && asked.pp.alone();  // on the host: a pipeline's stages move nothing there
    std::vector<Suggestion> all;
    const auto add = [&](const std::string& text, const auto& change) {
        Suggestion remedy{text, asked};
        if (asked.trains && gpu) remedy.request.run.row_tile = least_row_tile;  // as a run would that needs to
        change(remedy.request);
        all.push_back(std::move(remedy));
    };
    const auto each_layer = [](model::LoadRequest& request, const auto& change) {
        for (spec::LayerPlan& layer : request.run.layers) change(layer);
    };
    const auto full_recompute = [&](model::LoadRequest& request) {
        each_layer(request, [&](spec::LayerPlan& layer) {
            layer.keep = spec::Keep::input;
            layer.cached = false;
            if (may_wait) layer.activations_at = spec::Place::host;
        });
    };
    const auto keeping = [&](const std::string& words) {
        return asked.trains ? cat(", gradient_checkpointing ", words) : std::string();
    };
    const std::string in_host_memory = "layers in host memory (model.device_map {\"model.layers\": \"cpu\", …})";
    const auto move_layers = [&](model::LoadRequest& request, spec::Place to) {
        each_layer(request, [to](spec::LayerPlan& layer) { layer.weights_at = to; });
    };
    const bool can_move = may_leave_device(asked);
    const std::string thrifty_words = may_wait ? "full+offload" : "full";
    if (asked.trains)
        for (const spec::LayerPlan way : {spec::LayerPlan{spec::Keep::but_mlp},
                                          {spec::Keep::input},
                                          {spec::Keep::but_mlp, spec::Place::host},
                                          {spec::Keep::input, spec::Place::host}}) {
            if (!may_wait && way.activations_at == spec::Place::host) continue;
            add(cat("gradient_checkpointing ", name_of(way), gpu ? ", dequantized_weights off" : ""),
                [&](model::LoadRequest& request) {
                    each_layer(request, [&](spec::LayerPlan& layer) {
                        layer.keep = way.keep;
                        layer.activations_at = way.activations_at;
                        layer.cached = false;
                    });
                });
        }
    if (can_move)
        add(cat(in_host_memory, keeping(thrifty_words)), [&](model::LoadRequest& request) {
            full_recompute(request);
            move_layers(request, spec::Place::host);
        });
    if (can_move && asked.tp.alone())
        add(cat("layers on the disk (", plan.lies_in_checkpoint() ? "" : "model.offload_folder FOLDER, ",
                "model.device_map auto, or {\"model.layers\": \"disk\", …})", keeping(thrifty_words)),
            [&](model::LoadRequest& request) {
                full_recompute(request);
                if (!plan.lies_in_checkpoint()) request.offload_folder = "FOLDER";  // not made for a plan
                move_layers(request, spec::Place::disk);
            });
    if (any(asked.coded))
        for (const bool moved : {false, true}) {
            if (moved && !may_wait) continue;
            add(cat("model.compute_dtype auto", moved ? ", " + in_host_memory : "", keeping(thrifty_words)),
                [&](model::LoadRequest& request) {
                    full_recompute(request);
                    request.coded = spec::CodedProducts::none;
                    if (moved) move_layers(request, spec::Place::host);
                });
        }
    if (lora && !asked.load_in_4bit && plan.tensors().quantised_linears() == 0 && plan.tensors().int8_linears() == 0)
        add(cat("model.load_in_4bit true", keeping(thrifty_words)), [&](model::LoadRequest& request) {
            full_recompute(request);
            request.load_in_4bit = true;
        });
    if (gpu && !asked.offload_embedding)
        add(cat("hardware.offload_embedding true", keeping(thrifty_words)), [&](model::LoadRequest& request) {
            full_recompute(request);
            request.offload_embedding = true;
        });
    if (asked.trains && asked.optim == config::Optimizer::adamw_torch)
        add(cat("optim adamw_8bit", keeping(thrifty_words)), [&](model::LoadRequest& request) {
            full_recompute(request);
            request.optim = config::Optimizer::adamw_8bit;
        });
    for (const bool moved : {false, true})
        for (int64_t divisor = 2; divisor <= 1024 && (!moved || can_move); divisor *= 2) {
            const int64_t tokens = std::max<int64_t>(1, asked.sizes.tokens / divisor);
            add(cat("at most ", tokens,
                    " tokens a micro-batch (per_device_train_batch_size x max_seq_length), more "
                    "gradient_accumulation_steps instead",
                    moved ? ", " + in_host_memory : "", keeping(thrifty_words)),
                [&](model::LoadRequest& request) {
                    full_recompute(request);
                    if (moved) move_layers(request, spec::Place::host);
                    model::ActivationSizes& sizes = request.sizes;
                    sizes.tokens = tokens;
                    sizes.head_rows = std::max<int64_t>(1, sizes.head_rows / divisor);
                    sizes.segments = std::max<int64_t>(1, sizes.segments / divisor);
                    sizes.keys = (sizes.keys + divisor - 1) / divisor;
                    sizes.all_keys = (sizes.all_keys + divisor - 1) / divisor;
                    sizes.longest = std::min(sizes.longest, std::max(sizes.tokens, sizes.all_keys));
                    request.run.head_tile = std::min(request.run.head_tile, sizes.head_rows);
                });
        }
    return all;
}

}  // namespace

std::vector<std::string> suggestions(const std::vector<model::ModelPlan>& stages, const MemoryBudget& budget,
                                     const planner::Card* card) {
    constexpr std::size_t most = 3;
    std::vector<std::vector<Suggestion>> all;  // by stage, the same ones of each
    for (const model::ModelPlan& stage : stages) all.push_back(all_remedies(stage));
    std::vector<std::pair<double, std::string>> found;  // by the time of a token
    int fewer_tokens = 0;
    for (std::size_t i = 0; i < all.front().size(); ++i) {
        const Suggestion& remedy = all.front()[i];
        const int64_t tokens = remedy.request.sizes.tokens;
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
        found.emplace_back(ms / static_cast<double>(std::max<int64_t>(1, tokens)), remedy.text);
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
                cat("not enough host memory: ", human_bytes(need.host - need.there), " would be page-locked, ",
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
