#include "unsloth/train/evaluation.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "unsloth/core/error.h"
#include "unsloth/core/progress.h"
#include "unsloth/train/step.h"

namespace unsloth::train {

Evaluator::Result Evaluator::run(model::Model& model, at::Device device, int64_t step, double epoch) {
    const auto start = std::chrono::steady_clock::now();
    const std::string what = cat("the evaluation at step ", step);
    double sum = 0;
    int64_t labels = 0;
    Progress progress("evaluating", batches_.most_batches());
    for (int64_t i = 0; i < batches_.most_batches(); ++i) {
        if (const int signal = agree_on_signal(group_, device, what); signal != 0) return {std::nullopt, signal};
        if (i >= batches_.batches()) continue;  // ranks ask together, also those that have a batch less
        const data::Batch batch = batches_.batch(i);
        sum += model.score(batch).to(at::kDouble).sum().item<double>();
        labels += batch.labels;
        progress.add();
    }
    if (group_) {
        const at::Tensor total = at::full({1}, sum, at::TensorOptions(at::kFloat).device(device));
        group_->all_reduce(total, what);
        sum = total.item<double>();
        group_->check();
        labels = batches_.labels();
    }
    return {
        EvalReport{step, epoch, sum / static_cast<double>(std::max<int64_t>(labels, 1)), labels, seconds_since(start)},
        0};
}

}  // namespace unsloth::train
