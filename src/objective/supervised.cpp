#include "unsloth/objective/objective.h"
#include "unsloth/ops/cross_entropy.h"

#include <algorithm>

namespace unsloth::objective {
namespace {

class Supervised final : public Objective {
  public:
    bool weighs() const override { return false; }
    void upload(const data::Batch&, model::MicroBatch&) override {}
    void weigh(ops::Context& ctx, const model::MicroBatch& micro, ops::Site site) override {
        ops::accumulate_loss(ctx, micro.activations().head().loss_n.narrow(0, 0, micro.targets()), site);
    }
    void pass_over(ops::Context&) override {}
    int64_t divisor(const data::StepBatch& step) const override { return step.labels; }
    void evaluate(const data::Batch&, const at::Tensor& losses, const References&, Sums& sums) override {
        sums.loss += losses.to(at::kDouble).sum().item<double>();
    }
    double evaluated(const Sums& sums, const data::Extent& of) const override {
        return sums.loss / static_cast<double>(std::max<int64_t>(of.labels, 1));
    }
};

}  // namespace

std::unique_ptr<Objective> make_supervised() {
    return std::make_unique<Supervised>();
}

}  // namespace unsloth::objective
