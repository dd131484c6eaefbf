#include "unsloth/train/evaluation.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "unsloth/core/error.h"
#include "unsloth/core/progress.h"
#include "unsloth/train/step.h"

namespace unsloth::train {

Evaluator::Result Evaluator::run(model::Model& model, at::Device device, objective::Objective& objective,
                                 const objective::References& references, int64_t step, double epoch) {
    const auto start = std::chrono::steady_clock::now();
    const std::string what = cat("the evaluation at step ", step);
    objective::Objective::Sums sums;
    if (objective.measures().defined()) sums.measures.resize(static_cast<std::size_t>(objective.measures().numel()));
    Progress progress("evaluating", batches_.most_batches());
    for (int64_t i = 0; i < batches_.most_batches(); ++i) {
        if (const int signal = agree_on_signal(group_, device, what); signal != 0) return {std::nullopt, signal};
        if (i >= batches_.batches()) continue;  // ranks ask together, also those that have a batch less
        const data::Batch batch = batches_.batch(i);
        objective.evaluate(batch, model.score(batch), references, sums);
        progress.add();
    }
    if (group_) {
        std::vector<float> own{static_cast<float>(sums.loss)};
        own.insert(own.end(), sums.measures.begin(), sums.measures.end());
        const at::Tensor all = at::tensor(own, at::kFloat).to(device);
        group_->all_reduce(all, what);
        const at::Tensor totals = all.cpu();
        group_->check();
        const float* values = totals.const_data_ptr<float>();
        sums.loss = values[0];
        sums.measures.assign(values + 1, values + totals.numel());
    }
    return {
        EvalReport{step, epoch, objective.evaluated(sums, batches_.dataset()), batches_.labels(), seconds_since(start),
                   sums.measures.empty() ? objective::Figures{} : objective.figures(sums.measures)},
        0};
}

}  // namespace unsloth::train
