#include "unsloth/train/spikes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "unsloth/spec/step_scalars.h"

namespace unsloth::train {
namespace {

constexpr std::size_t window = 128, fewest = 31;  // the 33rd step is the first that may be one

/// Mean and `deviations` standard deviations of the first `count` measures' field.
float limit_of(const std::vector<formats::StepMeasure>& measures, std::size_t count, double deviations,
               double formats::StepMeasure::* field) {
    const std::size_t first = count - std::min(count, window);
    const auto n = static_cast<double>(count - first);
    double sum = 0, squares = 0;
    for (std::size_t i = first; i < count; ++i) sum += measures[i].*field;
    const double mean = sum / n;
    for (std::size_t i = first; i < count; ++i) squares += (measures[i].*field - mean) * (measures[i].*field - mean);
    return static_cast<float>(mean + deviations * std::sqrt(squares / (n - 1)));
}

}  // namespace

SpikeLimits SpikeWindow::limits(int64_t step) const {
    std::size_t count = measures_.size();
    while (count > 0 && measures_[count - 1].step >= step - 1) --count;
    if (count < fewest) return {};
    return {limit_of(measures_, count, deviations_, &formats::StepMeasure::loss),
            limit_of(measures_, count, deviations_, &formats::StepMeasure::grad_norm)};
}

void SpikeWindow::observe(const formats::StepMeasure& measure) {
    if (!std::isfinite(measure.loss) || !std::isfinite(measure.grad_norm)) return;
    measures_.push_back(measure);
    if (measures_.size() > window + 1) measures_.erase(measures_.begin());
}

SpikeGuard::SpikeGuard(const ops::Context& ctx) : device_(ctx.device()) {
    const auto flags = at::TensorOptions(at::kBool).device(device_);
    limits_ = at::zeros({2}, at::TensorOptions(at::kFloat).device(device_));
    above_ = at::zeros({2}, flags);
    any_above_ = at::zeros({1}, flags);
    applied_ = at::zeros({1}, flags);
}

at::Tensor SpikeGuard::make_host() const {
    return at::zeros({2}, at::TensorOptions(at::kFloat).pinned_memory(device_.is_cuda()));
}

void SpikeGuard::issue(const at::Tensor& host, const SpikeLimits& limits, const at::Tensor& outcome) {
    static_assert(offsetof(spec::StepOutcome, loss) == 0 && offsetof(spec::StepOutcome, grad_norm) == sizeof(float));
    host.mutable_data_ptr<float>()[0] = limits.loss;
    host.mutable_data_ptr<float>()[1] = limits.grad_norm;
    limits_.copy_(host, /*non_blocking=*/true);
    const at::Tensor skipped = outcome.narrow(0, offsetof(spec::StepOutcome, skipped), sizeof(uint32_t)).view(at::kInt);
    at::gt_out(above_, outcome.narrow(0, 0, 2 * sizeof(float)).view(at::kFloat), limits_);
    at::logical_or_out(any_above_, above_.narrow(0, 0, 1), above_.narrow(0, 1, 1));
    at::eq_out(applied_, skipped, 0);
    any_above_.logical_and_(applied_);
    skipped.masked_fill_(any_above_, static_cast<int32_t>(skipped_spike));
}

}  // namespace unsloth::train
