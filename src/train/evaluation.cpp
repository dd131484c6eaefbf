#include "unsloth/train/evaluation.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "unsloth/core/error.h"
#include "unsloth/core/progress.h"
#include "unsloth/ops/cross_entropy.h"
#include "unsloth/train/step.h"

namespace unsloth::train {
namespace {

struct SetSums {
    objective::Objective::Sums of;
    int64_t hits = 0;  ///< targets that were the most likely token
};
using Sums = std::vector<SetSums>;  // by evaluation set

/// Each value becomes its sum.
void sum_over_ranks(std::vector<float>& values, at::Device device, comm::Group& group, const std::string& what) {
    const at::Tensor all = at::tensor(values, at::kFloat).to(device);
    group.all_reduce(all, what);
    const at::Tensor totals = all.cpu();
    group.check();
    std::copy_n(totals.const_data_ptr<float>(), values.size(), values.begin());
}

/// Of all ranks.
void add_up(Sums& sums, at::Device device, comm::Group& group, const std::string& what) {
    std::vector<float> own;
    for (const SetSums& set : sums) {
        own.push_back(static_cast<float>(set.of.loss));
        own.push_back(static_cast<float>(set.hits));
        own.insert(own.end(), set.of.measures.begin(), set.of.measures.end());
    }
    sum_over_ranks(own, device, group, what);
    const float* value = own.data();
    for (SetSums& set : sums) {
        set.of.loss = *value++;
        set.hits = static_cast<int64_t>(*value++);
        for (float& measure : set.of.measures) measure = *value++;
    }
}

data::Extent total_of(const std::vector<data::Extent>& extents) {
    data::Extent total;
    for (const data::Extent& extent : extents) total.rows += extent.rows, total.labels += extent.labels;
    return total;
}

SetSums total_of(const Sums& sums) {
    SetSums total = sums.front();
    for (std::size_t i = 1; i < sums.size(); ++i) {
        total.of.loss += sums[i].of.loss;
        total.hits += sums[i].hits;
        for (std::size_t m = 0; m < total.of.measures.size(); ++m) total.of.measures[m] += sums[i].of.measures[m];
    }
    return total;
}

/// Counts the targets that are the model's most likely token.
class Hits {
  public:
    Hits(ops::Context& ctx, const model::Network& network, const data::Batch& batch)
        : ctx_(ctx),
          network_(network),
          batch_(batch),
          best_n_(at::full({batch.labels}, -1, at::TensorOptions().dtype(at::kInt).device(ctx.device()))) {}

    /// All ranks that have slices of the logits together.
    void look_at(int64_t first, const at::Tensor& logits_CV) {
        const int64_t rows = logits_CV.size(0);
        const at::Tensor best_C = best_n_.narrow(0, first, rows);
        ops::argmax_rows(ctx_, logits_CV, best_C);
        const model::TensorParallel& tp = network_.tp;
        if (tp.alone()) return;
        // The most likely token of each slice: its logit, and its number, which fp32 holds.
        const at::Tensor all = at::empty({tp.place().size, 2, rows}, best_C.options().dtype(at::kFloat));
        const at::Tensor own = all[tp.place().rank];
        own[0].copy_(logits_CV.gather(1, best_C.to(at::kLong).unsqueeze(1)).squeeze(1));
        own[1].copy_(best_C).add_(network_.vocabulary().begin);
        tp.gather(ctx_, all, "the most likely tokens");
        const at::Tensor winner = all.select(1, 0).argmax(0, /*keepdim=*/true);  // of equal ones the first, as in a row
        best_C.copy_(all.select(1, 1).gather(0, winner).squeeze(0));
    }
    int64_t count() const {
        const at::Tensor best = best_n_.cpu();
        const int32_t* const ids = best.const_data_ptr<int32_t>();
        int64_t hits = 0;
        for (std::size_t i = 0; i < batch_.target_ids.size(); ++i) hits += ids[i] == batch_.target_ids[i] ? 1 : 0;
        return hits;
    }

  private:
    ops::Context& ctx_;
    const model::Network& network_;
    const data::Batch& batch_;
    at::Tensor best_n_;
};

double share(int64_t hits, const data::Extent& of) {
    return static_cast<double>(hits) / static_cast<double>(std::max<int64_t>(of.labels, 1));
}

}  // namespace

Evaluator::Evaluator(data::Dataset rows, const std::vector<std::pair<std::string, std::string>>& files,
                     int64_t most_tokens, int rank, int ranks, comm::Group* group, data::ContextRank context)
    : batches_(std::move(rows), most_tokens, rank, ranks, context), extents_(batches_.extents()), group_(group) {
    for (const auto& [name, file] : files) names_.push_back(name);
    if (names_.empty())
        extents_ = {total_of(extents_)};
    else
        extents_.resize(names_.size());
}

Evaluator::Result Evaluator::run(model::Model& model, ops::Context& ctx, objective::Objective& objective,
                                 const objective::References& references, int64_t step, double epoch) const {
    const auto start = std::chrono::steady_clock::now();
    const std::string what = cat("the evaluation at step ", step);
    SetSums none;
    const bool by_token = !objective.weighs();  // where whole answers are compared, single tokens say little
    if (objective.measures().defined()) none.of.measures.resize(static_cast<std::size_t>(objective.measures().numel()));
    Sums sums(extents_.size(), none);
    const auto set = [&](int32_t source) { return names_.empty() ? 0 : static_cast<std::size_t>(source); };
    objective.begin_evaluation();
    Progress progress("evaluating", batches_.most_batches());
    for (int64_t i = 0; i < batches_.most_batches(); ++i) {
        if (const int signal = agree_on_signal(group_, ctx.device(), what); signal != 0) return {std::nullopt, signal};
        if (i >= batches_.batches()) {  // ranks ask, and walk, together, also those that have a batch less
            model.score({});
            continue;
        }
        const data::Batch batch = batches_.batch(i);
        SetSums& of_set = sums[set(batches_.source(i))];
        std::optional<Hits> hits;
        if (by_token && (model.speaks() || !model.tensor_parallel().alone()))
            hits.emplace(ctx, model.parts().network, batch);
        const model::Model::OnLogits watch = objective.watch(ctx, batch);
        model::Model::OnLogits look;
        if (hits || watch)
            look = [&](int64_t first, const at::Tensor& logits_CV) {
                if (hits) hits->look_at(first, logits_CV);
                if (watch) watch(first, logits_CV);
            };
        const at::Tensor losses = model.score(batch, look);
        progress.add();
        if (!model.speaks()) continue;
        objective.evaluate(batch, losses, references, of_set.of);
        if (hits) of_set.hits += hits->count();
    }
    if (group_) add_up(sums, ctx.device(), *group_, what);
    const SetSums all = total_of(sums);
    const data::Extent whole = total_of(extents_);
    EvalReport report{.step = step, .epoch = epoch, .loss = objective.evaluated(all.of, whole), .tokens = whole.labels};
    if (by_token) report.figures = {{"token_accuracy", share(all.hits, whole)}};
    if (!all.of.measures.empty())
        for (auto& figure : objective.figures(all.of.measures)) report.figures.push_back(std::move(figure));
    for (std::size_t i = 0; i < names_.size(); ++i)
        report.losses.emplace_back(names_[i], objective.evaluated(sums[i].of, extents_[i]));
    report.calibration = objective.calibrate([&](std::vector<float>& values) {
        if (group_) sum_over_ranks(values, ctx.device(), *group_, what);
    });
    report.seconds = seconds_since(start);
    return {report, 0};
}

}  // namespace unsloth::train
