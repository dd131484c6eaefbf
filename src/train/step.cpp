#include "unsloth/train/step.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <cmath>
#include <cstddef>

#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/spec/finite_sites.h"

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

/// A place in the work of the context's stream; on the CPU, where work is done when its call returns, a time.
class Moment {
  public:
    explicit Moment(const ops::Context& ctx) : ctx_(ctx) {
        if (ctx.is_cuda()) event_.emplace(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);  // it keeps time
    }
    void record() {
        if (event_) {
            event_->record(c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(ctx_.device()));
        } else {
            time_ = std::chrono::steady_clock::now();
        }
    }
    void wait() const {
        if (event_) event_->synchronize();
    }
    /// Both were reached.
    double seconds_since(const Moment& earlier) const {
        if (event_) return earlier.event_->elapsedTime(*event_) / 1000;
        return std::chrono::duration<double>(time_ - earlier.time_).count();
    }

  private:
    const ops::Context& ctx_;
    std::optional<c10::Event> event_;
    std::chrono::steady_clock::time_point time_;
};

constexpr auto signal_count = static_cast<int64_t>(stop_signals.size());
constexpr int64_t shared_flags = 1 + signal_count;  // a save is due; a rank was sent this signal
// The loss, the flags, and whether a rank met a value that is not finite.
constexpr int64_t bad_value = 1 + shared_flags, shared_values = bad_value + 1;

/// A rank's flags for the signal that it was sent, to be summed over the ranks.
void flag_signal(float* flags) {
    const int signal = interrupt_requested();
    for (std::size_t i = 0; i < stop_signals.size(); ++i) flags[i] = stop_signals[i] == signal ? 1.0F : 0.0F;
}

int signal_of(const float* sums) {
    int signal = 0;
    for (std::size_t i = 0; i < stop_signals.size(); ++i)
        if (sums[i] > 0) signal = stop_signals[i];
    return signal;
}

}  // namespace

int agree_on_signal(comm::Group* group, at::Device device, const std::string& what) {
    if (group == nullptr) return interrupt_requested();
    at::Tensor flags = at::empty({signal_count}, at::kFloat);
    flag_signal(flags.mutable_data_ptr<float>());
    const at::Tensor sums = flags.to(device);
    group->all_reduce(sums, what);
    flags = sums.cpu();
    group->check();
    return signal_of(flags.const_data_ptr<float>());
}

/// Host memory of one step under way.
struct Stepper::Slot {
    explicit Slot(const ops::Context& ctx) : end(ctx) {}
    at::Tensor scalars, outcome_start, outcome;  ///< pinned on CUDA
    at::Tensor flags, shared;  ///< pinned on CUDA; with a group: of this rank, and summed with the loss
    Moment end;
};

Stepper::Stepper(ops::Context& ctx, model::Model& model, const StepSettings& settings)
    : ctx_(ctx), model_(model), settings_(settings) {
    const bool cuda = ctx.is_cuda();
    device_scalars_ = bytes(sizeof(spec::StepScalars), ctx.device(), false);
    device_outcome_ = bytes(sizeof(spec::StepOutcome), ctx.device(), false);
    ctx_.scalars = reinterpret_cast<const spec::StepScalars*>(device_scalars_.data_ptr<uint8_t>());
    ctx_.outcome = reinterpret_cast<spec::StepOutcome*>(device_outcome_.data_ptr<uint8_t>());
    for (int i = 0; i < 3; ++i) {
        auto slot = std::make_unique<Slot>(ctx);
        slot->scalars = bytes(sizeof(spec::StepScalars), at::kCPU, cuda);
        slot->outcome_start = bytes(sizeof(spec::StepOutcome), at::kCPU, cuda);
        as<spec::StepOutcome>(slot->outcome_start).first_bad_site = spec::all_finite;
        slot->outcome = bytes(sizeof(spec::StepOutcome), at::kCPU, cuda);
        if (settings.group != nullptr) {
            const auto options = at::TensorOptions(at::kFloat).pinned_memory(cuda);
            slot->flags = at::zeros({shared_flags}, options);
            slot->shared = at::zeros({shared_values}, options);
        }
        slots_.push_back(std::move(slot));
    }
    if (settings.group != nullptr) {
        shared_ = at::zeros({shared_values}, at::TensorOptions(at::kFloat).device(ctx.device()));
        for (at::Tensor* flag : {&bad_here_, &bad_anywhere_, &bad_elsewhere_})
            *flag = at::zeros({1}, at::TensorOptions(at::kBool).device(ctx.device()));
    }
    if (settings.group != nullptr && settings.bucket_bytes > 0) buckets_ = &model.cut_gradients(settings.bucket_bytes);
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
    model::Parameters& parameters = *model_.parameters();
    write_scalars(slot, batch, step, learning_rate);
    {
        const ops::Region region(ctx_, "zero gradients");
        parameters.state().grads_P.zero_();
    }
    const std::size_t count = batch.micro.size();
    Moment behind(ctx_);  // the micro-batch before
    for (std::size_t i = 0; i < count; ++i) {
        if (options.abandon && i > 0 &&
            options.abandon(static_cast<double>(count - i + 1) / static_cast<double>(count))) {
            --updates_;
            return false;
        }
        model_.train(batch.micro[i]);
        if (!options.abandon) continue;
        if (i > 0) behind.wait();
        behind.record();
    }
    if (batch.micro.empty() && buckets_ != nullptr) buckets_->reached_all();
    if (settings_.group != nullptr && shares_) share(slot, step, options.save_due);
    {
        const ops::Region region(ctx_, "update");
        ops::gradient_norm(ctx_, parameters.state().grads_P, parameters.norm_scratch);
        ops::adamw_step(ctx_, parameters.state(), settings_.adamw);
        model_.parameters_changed();
        slot.outcome.copy_(device_outcome_, /*non_blocking=*/true);
        slot.end.record();
    }
    StepResult result{.step = step,
                      .epoch = batch.epoch,
                      .learning_rate = learning_rate,
                      .tokens = batch.tokens,
                      .labels = batch.labels,
                      .loss_scale = loss_scale_};
    for (const data::Batch& micro : batch.micro)
        result.rows.insert(result.rows.end(), micro.rows.begin(), micro.rows.end());
    pending_.push_back({next_slot_, std::move(result)});
    next_slot_ = (next_slot_ + 1) % slots_.size();
    return true;
}

void Stepper::start_clock() {
    UNSLOTH_CHECK(pending_.empty(), "a step is under way");
    Moment& end = slots_[before(next_slot_)]->end;
    end.record();
    end.wait();
}

/// What the step's kernels read from device memory.
void Stepper::write_scalars(Slot& slot, const data::StepBatch& batch, int64_t step, double learning_rate) {
    const double t = static_cast<double>(++updates_);
    as<spec::StepScalars>(slot.scalars) = {
        .step = static_cast<uint32_t>(step),
        .epoch = batch.epoch_index,
        .seed_lo = static_cast<uint32_t>(settings_.seed),
        .seed_hi = static_cast<uint32_t>(settings_.seed >> 32),
        .learning_rate = static_cast<float>(learning_rate),
        .bias_correction1 = static_cast<float>(1.0 - std::pow(settings_.adamw.beta1, t)),
        .bias_correction2 = static_cast<float>(1.0 - std::pow(settings_.adamw.beta2, t)),
        .inv_loss_divisor = batch.labels > 0 ? static_cast<float>(1.0 / static_cast<double>(batch.labels)) : 0.0F,
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

/// Sums gradients and loss over the ranks, and tells all of them of a signal that one was sent, of a save that one asks
/// for, and of a value that is not finite: sums need not show it, and those of the next step do not.
void Stepper::share(Slot& slot, int64_t step, bool save_due) {
    const ops::Region region(ctx_, "all-reduce");
    float* const flags = slot.flags.mutable_data_ptr<float>();
    flags[0] = save_due ? 1.0F : 0.0F;
    flag_signal(flags + 1);
    static_assert(offsetof(spec::StepOutcome, loss) == 0);
    const at::Tensor loss = device_outcome_.narrow(0, 0, sizeof(float)).view(at::kFloat);
    shared_.narrow(0, 0, 1).copy_(loss);
    shared_.narrow(0, 1, shared_flags).copy_(slot.flags, /*non_blocking=*/true);
    const at::Tensor site =
        device_outcome_.narrow(0, offsetof(spec::StepOutcome, first_bad_site), sizeof(uint32_t)).view(at::kInt);
    at::ne_out(bad_here_, site, static_cast<int32_t>(spec::all_finite));
    shared_.narrow(0, bad_value, 1).copy_(bad_here_);
    const at::Tensor& gradients = model_.parameters()->state().grads_P;
    if (buckets_ == nullptr) settings_.group->all_reduce(gradients, cat("the gradients of step ", step));
    for (std::size_t i = 0; buckets_ != nullptr && i < buckets_->all().size(); ++i) {
        const model::GradientStretch& bucket = buckets_->all()[i];
        settings_.group->all_reduce_beside(
            gradients.narrow(0, bucket.begin, bucket.end - bucket.begin), [&] { buckets_->wait(i); },
            cat("the gradients of step ", step, ", bucket ", i + 1, " of ", buckets_->all().size()));
    }
    settings_.group->all_reduce(shared_, cat("the loss of step ", step));
    settings_.group->join();
    loss.copy_(shared_.narrow(0, 0, 1));
    at::gt_out(bad_anywhere_, shared_.narrow(0, bad_value, 1), 0);
    at::gt_out(bad_elsewhere_, bad_anywhere_, bad_here_);
    site.masked_fill_(bad_elsewhere_, static_cast<int32_t>(spec::bad_elsewhere));
    slot.shared.copy_(shared_, /*non_blocking=*/true);
}

std::optional<StepResult> Stepper::take(bool must) {
    const std::size_t may_be_under_way = ctx_.is_cuda() && !settings_.loss_scaling && !must ? 1 : 0;
    if (pending_.size() <= may_be_under_way) return std::nullopt;
    const Slot& slot = *slots_[pending_.front().slot];
    const Slot& earlier = *slots_[before(pending_.front().slot)];
    StepResult result = std::move(pending_.front().result);
    pending_.pop_front();
    slot.end.wait();
    if (settings_.group != nullptr) settings_.group->check();
    result.seconds = slot.end.seconds_since(earlier.end);
    result.outcome = as<spec::StepOutcome>(slot.outcome);
    if (slot.shared.defined()) {
        const float* shared = slot.shared.const_data_ptr<float>();
        result.save_due = shared[1] > 0;
        result.signal = signal_of(shared + 2);
    }
    if (settings_.loss_scaling) adjust_loss_scale(result.outcome);
    return result;
}

void Stepper::restore(const State& state) {
    updates_ = state.updates;
    good_steps_ = state.good_steps;
    if (settings_.loss_scaling) loss_scale_ = state.loss_scale;
}

void Stepper::adjust_loss_scale(const spec::StepOutcome& outcome) {
    if (outcome.skipped != 0) {
        loss_scale_ /= 2;
        good_steps_ = 0;
        --updates_;
        if (loss_scale_ < 1)
            throw runtime_failure("fp16: gradients overflow even without a loss scale",
                                  "Use dtype bfloat16 or float32, or a lower learning_rate.");
    } else if (++good_steps_ == growth_interval) {
        loss_scale_ = std::min(2 * loss_scale_, largest_loss_scale);
        good_steps_ = 0;
    }
}

}  // namespace unsloth::train
