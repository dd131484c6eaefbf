// Runs from a base with experts in MXFP4 against the same values in bf16. Run on the CPU by mxfp4_test.cpp; a GPU's
// test walks the same list.
#pragma once

#include "common/mxfp4_models.h"
#include "train/step_matrix.h"

namespace unsloth::test {

struct Mxfp4Run {
    std::vector<float> losses;
    at::Tensor gradients_P, logits_TV;  ///< on the CPU
};

inline model::LoadRequest mxfp4_request(at::Device device, at::ScalarType dtype,
                                        const std::vector<spec::Place>& layers_at = {}) {
    model::LoadRequest request;
    request.device = device;
    request.dtype = dtype;
    request.sizes.tokens = request.sizes.longest = request.sizes.head_rows = 64;
    request.sizes.segments = 8;
    request.run.head_tile = 16;
    for (const spec::Place place : layers_at) request.run.layers.push_back({.weights_at = place});
    return request;
}

inline void train_experts(model::LoadRequest& request) {
    request.lora.emplace();
    request.lora->r = 4;
    request.lora->target_modules = {"q_proj", "o_proj"};
    request.lora->target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
    request.trains = true;
    request.optim = config::Optimizer::adamw_torch;
    request.sizes.deterministic = true;
    request.sizes.tokens = request.sizes.head_rows = 16 * matrix_rows;
}

/// Two steps, and what the model then says of a row.
inline Mxfp4Run run_mxfp4(const fs::path& folder, model::LoadRequest request) {
    train_experts(request);
    LoadedModel loaded = load_model(folder, request);
    loaded.ctx->deterministic = true;
    train::Stepper stepper(*loaded.ctx, *loaded.model, {});
    Mxfp4Run run;
    for (int step = 0; step < 2; ++step) {
        stepper.issue(matrix_batch({}, step, 0), step + 1, 0.01);
        while (const auto result = stepper.take(/*must=*/true)) run.losses.push_back(result->outcome.loss);
    }
    run.gradients_P = loaded->parameters()->state().grads_P.cpu().clone();
    run.logits_TV = score_every_position(*loaded.model, {matrix_row(3, true).ids}).logits_TV;
    return run;
}

/// Logits of a prompt and of each token after it, as generation computes them.
inline std::vector<int32_t> generated_in_mxfp4(const fs::path& folder, model::LoadRequest request) {
    constexpr int new_tokens = 12;
    std::vector<int32_t> next = matrix_row(3, true).ids, made;
    request.sizes.training = false;
    request.sizes.tokens = request.sizes.longest = static_cast<int64_t>(next.size());
    request.sizes.segments = request.sizes.head_rows = 1;
    request.sizes.cache_tokens = static_cast<int64_t>(next.size()) + new_tokens;
    LoadedModel loaded = load_model(folder, request);
    Continued sequence(*loaded.model);
    for (int i = 0; i < new_tokens; ++i) {
        made.push_back(sequence.next(next));
        next = {made.back()};
    }
    return made;
}

}  // namespace unsloth::test
