#include "train/rank_sums.h"

#include <cstddef>

#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/ops/profiler.h"
#include "unsloth/spec/finite_sites.h"
#include "unsloth/train/step.h"

namespace unsloth::train {
namespace {

// Of the sums: the loss, whether a rank met a value that is not finite, and what the host says of each rank: flags (a
// save is due; it was sent this signal) and a place for each rank's seconds.
constexpr auto signal_count = static_cast<int64_t>(stop_signals.size());
constexpr int64_t flag_count = 1 + signal_count;
constexpr int64_t bad_value = 1, first_flag = 2, first_second = first_flag + flag_count;

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

RankSums::RankSums(ops::Context& ctx, comm::Group& group, model::Model& model)
    : ctx_(ctx), group_(group), model_(model) {
    sums_ = at::zeros({first_second + group.size()}, at::TensorOptions(at::kFloat).device(ctx.device()));
    for (at::Tensor* flag : {&bad_here_, &bad_anywhere_, &bad_elsewhere_})
        *flag = at::zeros({1}, at::TensorOptions(at::kBool).device(ctx.device()));
}

RankSums::Host RankSums::make_host() const {
    const auto options = at::TensorOptions(at::kFloat).pinned_memory(ctx_.is_cuda());
    return {at::zeros({sums_.numel() - first_flag}, options), at::zeros({sums_.numel()}, options)};
}

void RankSums::issue(Host& host, const at::Tensor& outcome, int64_t step, bool save_due, double own_seconds) {
    const ops::Region region(ctx_, "all-reduce");
    float* const flags = host.flags.mutable_data_ptr<float>();
    flags[0] = save_due ? 1.0F : 0.0F;
    flag_signal(flags + 1);
    flags[flag_count + group_.rank()] = static_cast<float>(own_seconds);
    static_assert(offsetof(spec::StepOutcome, loss) == 0);
    const at::Tensor loss = outcome.narrow(0, 0, sizeof(float)).view(at::kFloat);
    sums_.narrow(0, 0, 1).copy_(loss);
    if (!model_.speaks()) sums_.narrow(0, 0, 1).zero_();
    sums_.narrow(0, first_flag, host.flags.numel()).copy_(host.flags, /*non_blocking=*/true);
    const at::Tensor site =
        outcome.narrow(0, offsetof(spec::StepOutcome, first_bad_site), sizeof(uint32_t)).view(at::kInt);
    at::ne_out(bad_here_, site, static_cast<int32_t>(spec::all_finite));
    sums_.narrow(0, bad_value, 1).copy_(bad_here_);
    model_.store()->reduce(step);
    group_.all_reduce(sums_, cat("the loss of step ", step));
    model_.store()->finish_reduce(step);
    loss.copy_(sums_.narrow(0, 0, 1));
    at::gt_out(bad_anywhere_, sums_.narrow(0, bad_value, 1), 0);
    at::gt_out(bad_elsewhere_, bad_anywhere_, bad_here_);
    site.masked_fill_(bad_elsewhere_, static_cast<int32_t>(spec::bad_elsewhere));
    host.sums.copy_(sums_, /*non_blocking=*/true);
}

RankSums::Agreed RankSums::agreed(const Host& host) {
    const float* sums = host.sums.const_data_ptr<float>();
    return {.signal = signal_of(sums + first_flag + 1),
            .save_due = sums[first_flag] > 0,
            .seconds = {sums + first_second, sums + host.sums.numel()}};
}

}  // namespace unsloth::train
