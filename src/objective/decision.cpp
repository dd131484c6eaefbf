// The objective of decisions: the probabilities of a question's options (ops/decision.h), and how well they are
// calibrated on held-out rows.
#include <algorithm>
#include <cmath>

#include "unsloth/core/error.h"
#include "unsloth/objective/calibration.h"
#include "unsloth/objective/objective.h"
#include "unsloth/ops/cross_entropy.h"
#include "unsloth/ops/decision.h"

namespace unsloth::objective {
namespace {

constexpr int64_t row_tokens = data::most_option_tokens;  // W of ops/decision.h
static_assert(row_tokens <= ops::most_option_tokens);

/// The buffers of a micro-batch, in the order of their numbers.
enum DecisionBuffer : std::size_t { brier_buffer, accuracy_buffer, option_ids_buffer, option_shares_buffer };

/// What a micro-batch's buffers hold, on the host.
struct OptionRows {
    std::vector<int32_t> ids;
    std::vector<float> shares;

    explicit OptionRows(const data::Batch& batch) {
        UNSLOTH_CHECK(batch.options.size() == batch.target_ids.size(), batch.options.size(), " decisions of ",
                      batch.target_ids.size(), " targets");
        constexpr auto width = static_cast<std::size_t>(row_tokens);
        for (const data::OptionTokens& row : batch.options) {
            UNSLOTH_CHECK(!row.ids.empty() && row.ids.size() <= width, row.ids.size(), " tokens of options");
            ids.insert(ids.end(), row.ids.begin(), row.ids.end());
            shares.insert(shares.end(), row.shares.begin(), row.shares.end());
            ids.resize(ids.size() + width - row.ids.size(), -1);
            shares.resize(ids.size(), -1);
        }
    }
};

class Decision final : public Objective {
  public:
    Decision(double brier_weight, at::Device device)
        : rule_{brier_weight},
          measures_(at::zeros({ops::decision_measures + calibration_measures},
                              at::TensorOptions(at::kFloat).device(device))) {}

    bool weighs() const override { return false; }
    int64_t divisor(const data::StepBatch& step) const override { return step.labels; }  // one a row
    void begin(const data::StepBatch&) override { measures_.zero_(); }

    void upload(const data::Batch& batch, model::MicroBatch& micro) override {
        const OptionRows rows(batch);
        micro.upload_to(option_ids_buffer, rows.ids);
        micro.upload_to(option_shares_buffer, rows.shares);
    }

    void chunk_loss(ops::Context& ctx, const model::Network&, const model::MicroBatch& micro, int64_t first,
                    const at::Tensor& logits_CV, model::LogitsGradient gradient) override {
        UNSLOTH_CHECK(gradient != model::LogitsGradient::weighted, "decisions have no weights");
        const int64_t rows = logits_CV.size(0);
        const auto options = [&](DecisionBuffer which) {
            return micro.activations()
                .objective(which)
                .narrow(0, first * row_tokens, rows * row_tokens)
                .view({rows, row_tokens});
        };
        ops::decision_loss(ctx, {.rule = rule_,
                                 .logits_CV = logits_CV,
                                 .ids_CW = options(option_ids_buffer),
                                 .shares_CW = options(option_shares_buffer),
                                 .losses_C = micro.activations().head().loss_n.narrow(0, first, rows),
                                 .brier_C = figures_of(micro, brier_buffer, first, rows),
                                 .accuracy_C = figures_of(micro, accuracy_buffer, first, rows),
                                 .gradient = gradient == model::LogitsGradient::plain});
    }

    void weigh(ops::Context& ctx, const model::MicroBatch& micro, ops::Site site) override {
        const int64_t n = micro.targets();
        ops::accumulate_loss(ctx, micro.activations().head().loss_n.narrow(0, 0, n), site);
        ops::count_decisions(ctx, figures_of(micro, brier_buffer, 0, n), figures_of(micro, accuracy_buffer, 0, n),
                             measures_);
    }

    void pass_over(ops::Context&) override {}
    at::Tensor measures() const override { return measures_; }

    Figures figures(std::span<const float> m) override {
        const double rows = static_cast<double>(m[ops::decisions]);
        if (!(rows > 0)) return {};
        Figures figures{{"accuracy", static_cast<double>(m[ops::sum_of_accuracy]) / rows},
                        {"brier", static_cast<double>(m[ops::sum_of_brier]) / rows}};
        const std::span<const float> bins = m.subspan(ops::decision_measures);
        if (std::any_of(bins.begin(), bins.end(), [](float sum) { return sum != 0; }))
            figures.emplace_back("ece", calibration_error(bins, rows));
        return figures;
    }

    void begin_evaluation() override { evaluated_.clear(); }

    model::Model::OnLogits watch(ops::Context&, const data::Batch& batch) override {
        watched_.clear();
        const at::Tensor ids_NW = at::tensor(OptionRows(batch).ids, at::kLong).view({-1, row_tokens}).clamp_min(0);
        return [this, &batch, ids_NW](int64_t first, const at::Tensor& logits_CV) {
            const int64_t rows = logits_CV.size(0);
            const at::Tensor ids_CW = ids_NW.narrow(0, first, rows).to(logits_CV.device());
            const at::Tensor logits_CW = logits_CV.gather(1, ids_CW).to(at::kFloat).cpu();
            for (int64_t row = 0; row < rows; ++row)
                watched_.push_back({batch.options.at(static_cast<std::size_t>(first + row)),
                                    logits_CW.const_data_ptr<float>() + row * row_tokens});
        };
    }

    void evaluate(const data::Batch& batch, const at::Tensor&, const References&, Sums& sums) override {
        UNSLOTH_CHECK(static_cast<int64_t>(watched_.size()) == batch.labels, watched_.size(), " decisions of ",
                      batch.labels, " targets");
        for (RatedDecision& row : watched_) {
            const spec::DecisionFigures figures = row.figures(rule_);
            sums.loss += figures.loss;
            sums.measures[ops::sum_of_brier] += static_cast<float>(figures.brier);
            sums.measures[ops::sum_of_accuracy] += static_cast<float>(figures.accuracy);
            ++sums.measures[ops::decisions];
            row.count(std::span(sums.measures).subspan(ops::decision_measures));
            evaluated_.push_back(std::move(row));
        }
        watched_.clear();
    }

    double evaluated(const Sums& sums, const data::Extent& of) const override {
        return sums.loss / static_cast<double>(std::max<int64_t>(of.labels, 1));
    }

    std::optional<formats::DecisionCalibration> calibrate(const SumOverRanks& sum) override {
        return fit_temperature(evaluated_, sum);
    }

  private:
    static at::Tensor figures_of(const model::MicroBatch& micro, DecisionBuffer which, int64_t first, int64_t rows) {
        return micro.activations().objective(which).narrow(0, first, rows);
    }

    spec::DecisionRule rule_;
    at::Tensor measures_;
    std::vector<RatedDecision> watched_;    ///< of the batch that is evaluated
    std::vector<RatedDecision> evaluated_;  ///< of this rank
};

}  // namespace

model::ObjectiveNeeds decision_needs() {
    using Of = model::ObjectiveBuffer;
    return {.fp32_logits = true,
            .buffers = {{"Brier scores", Of::Life::head, at::kFloat, Of::Per::target},
                        {"decisions' accuracy", Of::Life::head, at::kFloat, Of::Per::target},
                        {"options' tokens", Of::Life::input, at::kInt, Of::Per::target, row_tokens},
                        {"options' shares", Of::Life::input, at::kFloat, Of::Per::target, row_tokens}}};
}

std::unique_ptr<Objective> make_decision(double brier_weight, at::Device device) {
    return std::make_unique<Decision>(brier_weight, device);
}

}  // namespace unsloth::objective
