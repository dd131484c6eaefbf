// A student that learns from what a teacher says of its targets, and from its rows' labels (ops/distill.h).
#include <algorithm>

#include "unsloth/core/error.h"
#include "unsloth/objective/objective.h"

namespace unsloth::objective {
namespace {

class Distillation final : public Objective {
  public:
    Distillation(const config::DistillOptions& options, at::Device device, Teacher& teacher)
        : rule_(distill_rule(options)),
          teacher_(teacher),
          device_(device),
          measures_(at::zeros({ops::distill_measures}, at::TensorOptions(at::kFloat).device(device))) {}

    bool weighs() const override { return false; }
    int64_t divisor(const data::StepBatch& step) const override { return step.labels; }
    void begin(const data::StepBatch&) override { measures_.zero_(); }

    void upload(const data::Batch& batch, model::MicroBatch& micro) override { teacher_.prepare(batch, micro); }

    void chunk_loss(ops::Context& ctx, const model::Network&, const model::MicroBatch& micro, int64_t first,
                    const at::Tensor& logits_CV, model::LogitsGradient gradient) override {
        const model::HeadBuffers& head = micro.activations().head();
        const int64_t rows = logits_CV.size(0);
        UNSLOTH_CHECK(gradient != model::LogitsGradient::weighted, "a student's rows have no weights");
        ops::distill_loss(ctx, {.rule = rule_,
                                .logits_CV = logits_CV,
                                .targets_C = micro.activations().tokens().target_ids_n.narrow(0, first, rows),
                                .teacher = teacher_.rows(micro, first, rows),
                                .losses_C = head.loss_n.narrow(0, first, rows),
                                .divergence_C = micro.activations().objective(divergence_buffer).narrow(0, first, rows),
                                .gradient = gradient == model::LogitsGradient::plain});
    }

    void weigh(ops::Context& ctx, const model::MicroBatch& micro, ops::Site site) override {
        const model::HeadBuffers& head = micro.activations().head();
        const int64_t n = micro.targets();
        ops::accumulate_distilled(ctx, rule_, head.loss_n.narrow(0, 0, n),
                                  micro.activations().objective(divergence_buffer).narrow(0, 0, n), measures_, site);
    }

    void pass_over(ops::Context&) override {}

    at::Tensor measures() const override { return measures_; }

    Figures figures(std::span<const float> m) override {
        if (!(m[ops::distilled_targets] > 0)) return {};
        const auto mean = [&](ops::DistillMeasure sum) {
            return static_cast<double>(m[sum]) / static_cast<double>(m[ops::distilled_targets]);
        };
        return {{"divergence", mean(ops::sum_of_divergences)}, {"nll_loss", mean(ops::sum_of_losses)}};
    }

    model::Model::OnLogits watch(ops::Context& ctx, const data::Batch& batch) override {
        watched_.clear();
        return [this, &ctx, &batch, answers = teacher_.answers(batch)](int64_t first, const at::Tensor& logits_CV) {
            const int64_t rows = logits_CV.size(0);
            const at::Tensor losses = at::empty({rows}, at::TensorOptions(at::kFloat).device(device_)),
                             divergence = at::empty_like(losses);
            const std::vector<int32_t> targets(batch.target_ids.begin() + first,
                                               batch.target_ids.begin() + first + rows);
            ops::distill_loss(ctx, {.rule = rule_,
                                    .logits_CV = logits_CV,
                                    .targets_C = at::tensor(targets, at::kInt).to(device_),
                                    .teacher = answers(first, rows),
                                    .losses_C = losses,
                                    .divergence_C = divergence});
            watched_.push_back(divergence.cpu());
        };
    }

    void evaluate(const data::Batch& batch, const at::Tensor& losses, const References&, Sums& sums) override {
        if (batch.labels == 0) return;
        const at::Tensor divergence = at::cat(watched_).to(at::kDouble);
        UNSLOTH_CHECK(divergence.numel() == losses.numel(), divergence.numel(), " divergences of ", losses.numel(),
                      " targets");
        const double of_labels = losses.to(at::kDouble).sum().item<double>(),
                     of_teacher = divergence.sum().item<double>();
        sums.loss += (1 - rule_.alpha) * of_labels + rule_.alpha * rule_.temperature * rule_.temperature * of_teacher;
        sums.measures[ops::sum_of_losses] += static_cast<float>(of_labels);
        sums.measures[ops::sum_of_divergences] += static_cast<float>(of_teacher);
        sums.measures[ops::distilled_targets] += static_cast<float>(batch.labels);
    }

    double evaluated(const Sums& sums, const data::Extent& of) const override {
        return sums.loss / static_cast<double>(std::max<int64_t>(of.labels, 1));
    }

  private:
    spec::DistillRule rule_;
    Teacher& teacher_;
    at::Device device_;
    at::Tensor measures_;
    std::vector<at::Tensor> watched_;  ///< divergences of the batch that is evaluated
};

}  // namespace

spec::DistillRule distill_rule(const config::DistillOptions& options) {
    spec::DistillRule rule{.beta = options.jsd_beta, .temperature = options.temperature, .alpha = options.alpha};
    switch (options.divergence) {
        case config::Divergence::forward_kl:
            rule.type = spec::DivergenceType::forward_kl;
            break;
        case config::Divergence::reverse_kl:
            rule.type = spec::DivergenceType::reverse_kl;
            break;
        case config::Divergence::jsd:
            rule.type = spec::DivergenceType::jsd;
            break;
    }
    return rule;
}

model::ObjectiveNeeds distillation_needs(int64_t teacher_tokens) {
    using Of = model::ObjectiveBuffer;
    model::ObjectiveNeeds needs{
        .buffers = {{"head divergences", Of::Life::head, at::kFloat, Of::Per::target}}};  // from the teacher
    if (teacher_tokens == 0) return needs;
    needs.buffers.push_back({"teacher's tokens", Of::Life::input, at::kInt, Of::Per::target, teacher_tokens});
    needs.buffers.push_back({"teacher's log p", Of::Life::input, at::kFloat, Of::Per::target, teacher_tokens + 1});
    return needs;
}

std::unique_ptr<Objective> make_distillation(const config::DistillOptions& options, at::Device device,
                                             Teacher& teacher) {
    return std::make_unique<Distillation>(options, device, teacher);
}

}  // namespace unsloth::objective
