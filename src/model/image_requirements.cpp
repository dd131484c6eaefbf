// What does not go with rows that have images.
#include <utility>

#include "unsloth/core/error.h"
#include "unsloth/model/loader.h"

namespace unsloth::model {

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
            throw Error("parallel.unsupported", cat(option, " does not go with rows that have images"),
                        "Leave it out: each rank then has the whole model and rows of its own.");
    if (!spec().has_cross_layers()) return;
    const auto& lora = request_.lora;
    const std::pair<const char*, bool> others[] = {{"lora.use_dora", lora && lora->use_dora},
                                                   {"model.compute_dtype", spec::any(request_.coded)},
                                                   {"Generating text", request_.sizes.cache_tokens > 0}};
    for (const auto& [what, asked] : others)
        if (asked)
            throw Error("option.unsupported",
                        cat(what, " does not go with images of ", spec().part_of, ", whose features layers read"),
                        "Leave it out, or take a model of Qwen2.5-VL or Qwen3-VL.");
}

}  // namespace unsloth::model
