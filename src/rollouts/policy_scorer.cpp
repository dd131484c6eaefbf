#include <algorithm>
#include <numeric>

#include "unsloth/core/error.h"
#include "unsloth/ops/policy.h"
#include "unsloth/rollouts/generation.h"

namespace unsloth::rollouts {

TokenScores PolicyScorer::operator()(std::span<const std::shared_ptr<const data::SampledRow>> rows,
                                     model::PolicyScope scope) const {
    std::vector<int64_t> starts{0};
    for (const auto& row : rows) starts.push_back(starts.back() + static_cast<int64_t>(row->ids.size()));
    const at::Tensor values = at::zeros({2, starts.back()}, at::kFloat);  // of the CPU: other ranks' are added
    float* const logps = values[0].mutable_data_ptr<float>();
    float* const entropies = values[1].mutable_data_ptr<float>();
    const std::size_t ranks = static_cast<std::size_t>(ranks_.ranks), rank = static_cast<std::size_t>(ranks_.rank),
                      each = static_cast<std::size_t>(rows_each_), end = rows.size() * (rank + 1) / ranks;
    for (std::size_t first = rows.size() * rank / ranks; first < end; first += each) {
        const int64_t begin = starts[first];
        score_pass(rows.subspan(first, std::min(each, end - first)), scope, logps + begin, entropies + begin);
    }
    if (ranks_.group != nullptr) {
        const at::Tensor all = values.to(ctx_.device(), at::kFloat, /*non_blocking=*/false, /*copy=*/true);
        ranks_.group->all_reduce(all, "the log-probabilities of a generation");
        values.copy_(all);
        ranks_.group->check();
    }
    TokenScores scores;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        scores.logps.emplace_back(logps + starts[i], logps + starts[i + 1]);
        scores.entropies.emplace_back(entropies + starts[i], entropies + starts[i + 1]);
    }
    return scores;
}

/// One pass over these rows: what it says of their tokens, one row after another.
void PolicyScorer::score_pass(std::span<const std::shared_ptr<const data::SampledRow>> rows, model::PolicyScope scope,
                              float* logps, float* entropies) const {
    std::vector<std::size_t> places(rows.size());
    std::iota(places.begin(), places.end(), std::size_t{0});
    const data::Batch batch = data::make_batch(samples_of(rows, places, of_sample_));
    const auto count = static_cast<int64_t>(batch.target_ids.size());
    const at::Tensor targets = at::tensor(batch.target_ids, at::kInt).to(ctx_.device());
    const at::Tensor of_losses = at::empty({count}, at::TensorOptions(at::kFloat).device(ctx_.device())),
                     of_entropies = at::empty_like(of_losses);
    model_.score(
        batch,
        [&](int64_t first, const at::Tensor& logits_CV) {
            const int64_t chunk = logits_CV.size(0);
            ops::token_policy(ctx_, {.temperature = options_.temperature,
                                     .logits_CV = logits_CV,
                                     .targets_C = targets.narrow(0, first, chunk),
                                     .losses_C = of_losses.narrow(0, first, chunk),
                                     .entropies_C = of_entropies.narrow(0, first, chunk)});
        },
        scope);
    const at::Tensor own_losses = of_losses.cpu(), own_entropies = of_entropies.cpu();
    for (int64_t i = 0; i < count; ++i) {
        logps[i] = -own_losses.const_data_ptr<float>()[i];
        entropies[i] = own_entropies.const_data_ptr<float>()[i];
    }
}

}  // namespace unsloth::rollouts
