#include "unsloth/train/evaluation.h"

#include <chrono>
#include <string>

#include "unsloth/core/error.h"
#include "unsloth/core/progress.h"
#include "unsloth/train/step.h"

namespace unsloth::train {
namespace {

using Sums = std::vector<objective::Objective::Sums>;  // by evaluation set

/// Of all ranks.
void add_up(Sums& sums, at::Device device, comm::Group& group, const std::string& what) {
    std::vector<float> own;
    for (const auto& set : sums) {
        own.push_back(static_cast<float>(set.loss));
        own.insert(own.end(), set.measures.begin(), set.measures.end());
    }
    const at::Tensor all = at::tensor(own, at::kFloat).to(device);
    group.all_reduce(all, what);
    const at::Tensor totals = all.cpu();
    group.check();
    const float* value = totals.const_data_ptr<float>();
    for (auto& set : sums) {
        set.loss = *value++;
        for (float& measure : set.measures) measure = *value++;
    }
}

data::Extent total_of(const std::vector<data::Extent>& extents) {
    data::Extent total;
    for (const data::Extent& extent : extents) total.rows += extent.rows, total.labels += extent.labels;
    return total;
}

objective::Objective::Sums total_of(const Sums& sums) {
    objective::Objective::Sums total = sums.front();
    for (std::size_t i = 1; i < sums.size(); ++i) {
        total.loss += sums[i].loss;
        for (std::size_t m = 0; m < total.measures.size(); ++m) total.measures[m] += sums[i].measures[m];
    }
    return total;
}

}  // namespace

Evaluator::Evaluator(data::Dataset rows, const std::vector<std::pair<std::string, std::string>>& files,
                     int64_t most_tokens, const comm::LaunchEnvironment& environment, comm::Group* group)
    : batches_(std::move(rows), most_tokens, environment.rank, environment.world_size),
      extents_(batches_.extents()),
      group_(group) {
    for (const auto& [name, file] : files) names_.push_back(name);
    if (names_.empty())
        extents_ = {total_of(extents_)};
    else
        extents_.resize(names_.size());
}

Evaluator::Result Evaluator::run(model::Model& model, at::Device device, objective::Objective& objective,
                                 const objective::References& references, int64_t step, double epoch) {
    const auto start = std::chrono::steady_clock::now();
    const std::string what = cat("the evaluation at step ", step);
    objective::Objective::Sums none;
    if (objective.measures().defined()) none.measures.resize(static_cast<std::size_t>(objective.measures().numel()));
    Sums sums(extents_.size(), none);
    const auto set = [&](int32_t source) { return names_.empty() ? 0 : static_cast<std::size_t>(source); };
    Progress progress("evaluating", batches_.most_batches());
    for (int64_t i = 0; i < batches_.most_batches(); ++i) {
        if (const int signal = agree_on_signal(group_, device, what); signal != 0) return {std::nullopt, signal};
        if (i >= batches_.batches()) continue;  // ranks ask together, also those that have a batch less
        const data::Batch batch = batches_.batch(i);
        objective.evaluate(batch, model.score(batch), references, sums[set(batches_.source(i))]);
        progress.add();
    }
    if (group_) add_up(sums, device, *group_, what);
    const objective::Objective::Sums all = total_of(sums);
    const data::Extent whole = total_of(extents_);
    EvalReport report{step, epoch, objective.evaluated(all, whole), whole.labels, 0, {}, {}};
    if (!all.measures.empty()) report.figures = objective.figures(all.measures);
    for (std::size_t i = 0; i < names_.size(); ++i)
        report.losses.emplace_back(names_[i], objective.evaluated(sums[i], extents_[i]));
    report.seconds = seconds_since(start);
    return {report, 0};
}

}  // namespace unsloth::train
