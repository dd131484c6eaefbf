// What a ModelPlan refuses before anything is loaded.
#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/model/loader.h"

namespace unsloth::model {

/// Refuses what an adapter's own grid does not support, where no option names it.
void ModelPlan::require_grid() const {
    const auto refuse = [&](ErrorId id, const std::string& what) {
        throw Error(id, cat("lora.serve_grid ", name_of(grid()), " cannot be combined with ", what),
                    "Leave it out, or set model.ignore_serve_grid to use the adapter without its grid.");
    };
    if (spec().experts) refuse("adapter.unsupported", "a model of experts");
    if (spec().has_cross_layers()) refuse("adapter.unsupported", "a model whose layers read images' features");
    if (request_.lora->use_dora) refuse("adapter.unsupported", "lora.use_dora");
    if (request_.trains && request_.lora->lora_dropout > 0) refuse("option.unsupported", "lora.lora_dropout");
    if (any(request_.coded)) refuse("option.unsupported", "model.compute_dtype");
    if (request_.mantissa_bits > 0) refuse("option.unsupported", "hardware.weight_mantissa_bits");
    if (request_.fewest_tokens > 0 && request_.trains) refuse("option.unsupported", "training.objective grpo");
    if (!request_.tp.alone()) refuse("parallel.unsupported", "distributed.tp_size");
    if (!request_.pp.alone()) refuse("parallel.unsupported", "distributed.pp_size");
    if (request_.sharding.has_copies() || request_.peers.size > 1)
        refuse("parallel.unsupported", "distributed.zero_stage 3 or offload_optimizer");
}

/// Of adapters in the tower.
void ModelPlan::require_tower() const {
    if (!request_.trains) return;
    const std::pair<const char*, bool> others[] = {{"lora.lora_dropout", request_.lora->lora_dropout > 0},
                                                   {"lora.serve_grid", grid() != spec::ServeGrid::none},
                                                   {"distributed.zero_stage 3", request_.sharding.splits_values()},
                                                   {"distributed.offload_optimizer", request_.sharding.on_host()}};
    for (const auto& [what, asked] : others)
        if (asked)
            throw Error("option.unsupported", cat(what, " cannot be combined with adapters in the tower (lora.vision)"),
                        "Leave one of them out.");
}

/// Of gated delta nets.
void ModelPlan::require_delta() const {
    const auto refuse = [&](ErrorId id, const std::string& what, const char* hint) {
        throw Error(id,
                    cat(what, " cannot be combined with ", spec().model_type, ", whose layers have gated delta nets"),
                    hint);
    };
    if (request_.sizes.keys > 0 && request_.cp.alone())
        refuse("option.unsupported", "a prompt that rows share (preference.share_prompt)",
               "Set preference.share_prompt to false.");
    if (!request_.cp.alone() && !request_.tp.alone())
        refuse("parallel.unsupported", "distributed.cp_size beside tp_size", "Leave one of them at 1.");
    if (!request_.cp.alone() && spec().delta->taps == 1)
        refuse("parallel.unsupported", "distributed.cp_size and a convolution of one tap", "Leave cp_size at 1.");
}

void ModelPlan::require_images() const {
    if (!spec().vision)
        throw Error("model.unsupported",
                    cat(file_->checkpoint.folder().string(), ": rows have images, and ",
                        spec().part_of.empty() ? spec().model_type : spec().part_of,
                        " is not a model whose tower this program runs"),
                    "Take a model of Llama 3.2 Vision, Qwen2.5-VL or Qwen3-VL, or rows of texts.");
    const std::pair<const char*, bool> ways[] = {{"distributed.tp_size", !request_.tp.alone()},
                                                 {"distributed.cp_size", !request_.cp.alone()},
                                                 {"distributed.pp_size", !request_.pp.alone()}};
    for (const auto& [option, shared] : ways)
        if (shared)
            throw Error("parallel.unsupported", cat(option, " cannot be combined with rows that have images"),
                        "Leave it out: each rank then has the whole model and rows of its own.");
    if (!spec().has_cross_layers()) return;
    const auto& lora = request_.lora;
    const std::pair<const char*, bool> others[] = {{"lora.use_dora", lora && lora->use_dora},
                                                   {"model.compute_dtype", spec::any(request_.coded)}};
    for (const auto& [what, asked] : others)
        if (asked)
            throw Error(
                "option.unsupported",
                cat(what, " cannot be combined with images of ", spec().part_of, ", whose features layers read"),
                "Leave it out, or take a model of Qwen2.5-VL or Qwen3-VL.");
}

}  // namespace unsloth::model
