#include "unsloth/train/step.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

#include "train/layer_norm_meter.h"
#include "train/moment.h"
#include "train/rank_sums.h"
#include "train/router_meter.h"
#include "unsloth/core/error.h"
#include "unsloth/ops/profiler.h"

namespace unsloth::train {
namespace {

constexpr double initial_loss_scale = 65536.0, largest_loss_scale = 16777216.0;
constexpr int64_t growth_interval = 2000;  // as torch.amp.GradScaler

at::Tensor bytes(std::size_t count, at::Device device, bool pinned) {
    return at::zeros({static_cast<int64_t>(count)},
                     at::TensorOptions().dtype(at::kByte).device(device).pinned_memory(pinned));
}

template <class T>
T& as(const at::Tensor& tensor) {
    return *reinterpret_cast<T*>(tensor.data_ptr<uint8_t>());
}

spec::TrainedShare trained_share(const weights::ParameterTable& table, const spec::ModelSpec& spec,
                                 bool head_is_embedding) {
    spec::TrainedShare share;
    for (const weights::Parameter& p : table.parameters()) {
        const bool base = p.kind == weights::Parameter::Kind::base;
        share.layers = share.layers || (base && p.role == spec::TensorRole::linear);
        share.head = share.head || (base && p.role == spec::TensorRole::lm_head);
        // A token passes those of its experts.
        if (!base)
            share.adapter_parameters +=
                p.elements() * (p.experts > 0 ? spec.experts->top_k : 1) / std::max<int64_t>(1, p.experts);
    }
    share.head = share.head || (head_is_embedding && share.layers);
    return share;
}

}  // namespace

/// Host memory of one step in flight.
struct Stepper::Slot {
    explicit Slot(const ops::Context& ctx) : worked(ctx), end(ctx) {}
    at::Tensor scalars, outcome_start, outcome;  ///< pinned on CUDA
    at::Tensor measures;                         ///< the objective's, pinned on CUDA; undefined: none
    RankSums::Host sums;                         ///< with a group
    at::Tensor limits;                           ///< with skip_on_spike
    at::Tensor layer_norms, router_loads;        ///< pinned on CUDA
    CudaEventTime worked, end;                   ///< with a group: before it waits for the others; always
};

Stepper::Stepper(ops::Context& ctx, model::Model& model, const StepSettings& settings)
    : ctx_(ctx),
      model_(model),
      store_(*model.store()),
      settings_(settings),
      supervised_(settings.objective == nullptr ? objective::make_supervised() : nullptr),
      objective_(settings.objective == nullptr ? *supervised_ : *settings.objective),
      flops_(model.spec(), trained_share(model.trained_by_all(), model.spec(), model.spec().tie_word_embeddings)),
      spikes_(settings.skip_on_spike) {
    const bool cuda = ctx.is_cuda();
    device_scalars_ = bytes(sizeof(spec::StepScalars), ctx.device(), false);
    device_outcome_ = bytes(sizeof(spec::StepOutcome), ctx.device(), false);
    ctx_.scalars = reinterpret_cast<const spec::StepScalars*>(device_scalars_.data_ptr<uint8_t>());
    ctx_.outcome = reinterpret_cast<spec::StepOutcome*>(device_outcome_.data_ptr<uint8_t>());
    if (settings.group != nullptr) {
        store_.join(*settings.group, settings.bucket_bytes);
        sums_ = std::make_unique<RankSums>(ctx, *settings.group, model);
    }
    layer_norm_meter_ = std::make_unique<LayerNormMeter>(ctx, model);
    router_meter_ = std::make_unique<RouterMeter>(ctx, model);
    if (settings.skip_on_spike > 0) spike_guard_.emplace(ctx);
    for (int i = 0; i < 3; ++i) {
        auto slot = std::make_unique<Slot>(ctx);
        slot->scalars = bytes(sizeof(spec::StepScalars), at::kCPU, cuda);
        slot->outcome_start = bytes(sizeof(spec::StepOutcome), at::kCPU, cuda);
        as<spec::StepOutcome>(slot->outcome_start).first_bad_site = spec::all_finite;
        slot->outcome = bytes(sizeof(spec::StepOutcome), at::kCPU, cuda);
        if (const at::Tensor measures = objective_.measures(); measures.defined())
            slot->measures = at::zeros(measures.sizes(), at::TensorOptions(at::kFloat).pinned_memory(cuda));
        if (sums_) slot->sums = sums_->make_host();
        if (spike_guard_) slot->limits = spike_guard_->make_host();
        slot->layer_norms = layer_norm_meter_->make_host();
        slot->router_loads = router_meter_->make_host();
        slots_.push_back(std::move(slot));
    }
    if (settings.loss_scaling) loss_scale_ = initial_loss_scale;
    start_clock();
}

Stepper::~Stepper() {
    ctx_.scalars = nullptr;
    ctx_.outcome = nullptr;
}

bool Stepper::issue(const data::StepBatch& batch, int64_t step, double learning_rate, const IssueOptions& options) {
    UNSLOTH_CHECK(pending_.size() + 1 < slots_.size(), "results were not taken");
    UNSLOTH_CHECK(!options.abandon || settings_.group == nullptr, "ranks drop a step together or not at all");
    Slot& slot = *slots_[next_slot_];

    // 1 what the step's kernels read from device memory
    write_scalars(slot, batch, step, learning_rate);
    // 2 gradients, and what the objective measures, start from zero
    {
        const ops::Region region(ctx_, "zero gradients");
        store_.begin_step(step);
        router_meter_->begin();
        objective_.begin(batch);
    }
    // 3 forward and backward of the micro-batches, as many at a time as are planned in flight (Model::walk)
    const std::size_t count = batch.micro.size(), at_a_time = model_.at_a_time(count);
    CudaEventTime earlier_passes(ctx_);  // those before
    for (std::size_t i = 0; i < count; i += at_a_time) {
        if (options.abandon && i > 0 &&
            options.abandon(static_cast<double>(count - i + at_a_time) / static_cast<double>(count))) {
            --updates_;
            return false;
        }
        model_.train(std::span(batch.micro).subspan(i, std::min(at_a_time, count - i)), objective_);
        if (!options.abandon) continue;
        if (i > 0) earlier_passes.wait();
        earlier_passes.record();
    }
    // 4 sums over the ranks; gradients that leave as they are made are summed then
    if (sums_) slot.worked.record();
    store_.end_passes(count > 0);
    if (sums_ && store_.shares()) {
        sums_->issue(slot.sums, device_outcome_, step, options.save_due, own_seconds_);
        if (slot.measures.defined() && !model_.speaks()) objective_.measures().zero_();  // all have them
        if (slot.measures.defined())
            settings_.group->all_reduce(objective_.measures(), cat("the measures of step ", step));
    }
    // 5 norm and update; a step that is not finite, or a spike, changes nothing
    const SpikeLimits limits = spike_guard_ ? spikes_.limits(step) : SpikeLimits{};
    {
        const ops::Region region(ctx_, "update");
        store_.norm(step);
        if (spike_guard_) spike_guard_->issue(slot.limits, limits, device_outcome_);
        store_.update(settings_.adamw, device_outcome_, as<spec::StepScalars>(slot.scalars), step);
    }
    // 6 what take() reads when the device is here
    slot.outcome.copy_(device_outcome_, /*non_blocking=*/true);
    if (slot.measures.defined()) slot.measures.copy_(objective_.measures(), /*non_blocking=*/true);
    if (options.layer_norms) layer_norm_meter_->issue(slot.layer_norms, step);
    if (options.router_loads)
        router_meter_->issue(slot.router_loads, store_.shares() ? settings_.group : nullptr, step);
    slot.end.record();
    StepResult result{.step = step,
                      .epoch = batch.epoch,
                      .learning_rate = learning_rate,
                      .tokens = batch.tokens,
                      .labels = batch.labels,
                      .loss_scale = loss_scale_,
                      .limits = limits};
    for (const data::Batch& micro : batch.micro) {
        result.rows.insert(result.rows.end(), micro.rows.begin(), micro.rows.end());
        const std::vector<int32_t>& before = micro.context ? micro.context->before : micro.shared;
        result.flops += flops_.of(micro.segments, micro.labels, before) / model_.tensor_parallel().place().size /
                        model_.pipeline().stage().size;
    }
    pending_.push_back({next_slot_, std::move(result), options.layer_norms, options.router_loads});
    next_slot_ = (next_slot_ + 1) % slots_.size();
    return true;
}

void Stepper::start_clock() {
    UNSLOTH_CHECK(pending_.empty(), "a step is in flight");
    CudaEventTime& end = slots_[before(next_slot_)]->end;
    end.record();
    end.wait();
}

/// What the step's kernels read from device memory.
void Stepper::write_scalars(Slot& slot, const data::StepBatch& batch, int64_t step, double learning_rate) {
    const double t = static_cast<double>(++updates_), divisor = static_cast<double>(objective_.divisor(batch));
    as<spec::StepScalars>(slot.scalars) = {
        .step = static_cast<uint32_t>(step),
        .epoch = batch.epoch_index,
        .seed_lo = static_cast<uint32_t>(settings_.seed),
        .seed_hi = static_cast<uint32_t>(settings_.seed >> 32),
        .learning_rate = static_cast<float>(learning_rate),
        .bias_correction1 = static_cast<float>(1.0 - std::pow(settings_.adamw.beta1, t)),
        .bias_correction2 = static_cast<float>(1.0 - std::pow(settings_.adamw.beta2, t)),
        .inv_loss_divisor = divisor > 0 ? static_cast<float>(1.0 / divisor) : 0.0F,
        .loss_scale = static_cast<float>(loss_scale_),
        .max_grad_norm = static_cast<float>(settings_.max_grad_norm)};
    device_scalars_.copy_(slot.scalars, /*non_blocking=*/true);
    // While the step before is not read yet, a place that it found not finite stays: this step is skipped too, and what
    // is saved when the host stops is exactly what was good.
    const bool keeps_site = !pending_.empty();
    const int64_t reset = keeps_site ? static_cast<int64_t>(offsetof(spec::StepOutcome, first_bad_site))
                                     : static_cast<int64_t>(sizeof(spec::StepOutcome));
    device_outcome_.narrow(0, 0, reset).copy_(slot.outcome_start.narrow(0, 0, reset), /*non_blocking=*/true);
}

std::optional<StepResult> Stepper::take(bool must) {
    const std::size_t may_be_in_flight = ctx_.is_cuda() && !settings_.loss_scaling && !must ? 1 : 0;
    if (pending_.size() <= may_be_in_flight) return std::nullopt;
    const Slot& slot = *slots_[pending_.front().slot];
    const Slot& earlier = *slots_[before(pending_.front().slot)];
    StepResult result = std::move(pending_.front().result);
    const auto [layer_norms, router_loads] = std::pair(pending_.front().layer_norms, pending_.front().router_loads);
    pending_.pop_front();
    slot.end.wait();
    if (settings_.group != nullptr) settings_.group->check();
    result.seconds = slot.end.seconds_since(earlier.end);
    result.outcome = as<spec::StepOutcome>(slot.outcome);
    if (slot.measures.defined())
        result.figures = objective_.figures(
            {slot.measures.const_data_ptr<float>(), static_cast<std::size_t>(slot.measures.numel())});
    if (layer_norms) result.layer_norms = layer_norm_meter_->read(slot.layer_norms, result.loss_scale);
    if (router_loads) result.router_loads = router_meter_->read(slot.router_loads);
    if (sums_) {
        RankSums::Agreed agreed = RankSums::agreed(slot.sums);
        result.save_due = agreed.save_due;
        result.signal = agreed.signal;
        result.rank_seconds = std::move(agreed.seconds);
        own_seconds_ = slot.worked.seconds_since(earlier.end);
    }
    if (spike_guard_) spikes_.observe({result.step, result.outcome.loss, result.outcome.grad_norm});
    if (settings_.loss_scaling) adjust_loss_scale(result.outcome);
    return result;
}

void Stepper::restore(const State& state) {
    updates_ = state.updates;
    good_steps_ = state.good_steps;
    spikes_.restore(state.recent);
    if (settings_.loss_scaling) loss_scale_ = state.loss_scale;
}

void Stepper::adjust_loss_scale(const spec::StepOutcome& outcome) {
    if (outcome.skipped != 0 && outcome.skipped != skipped_spike) {
        loss_scale_ /= 2;
        good_steps_ = 0;
        --updates_;
        if (loss_scale_ < 1)
            throw Error("numerics.not-finite", "fp16: gradients overflow even without a loss scale",
                        "Use dtype bfloat16 or float32, or a lower learning_rate.");
    } else if (++good_steps_ == growth_interval) {
        loss_scale_ = std::min(2 * loss_scale_, largest_loss_scale);
        good_steps_ = 0;
    }
}

}  // namespace unsloth::train
