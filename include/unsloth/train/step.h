// One optimizer step: forward and backward of its micro-batches, the gradient norm, the update.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/comm/group.h"
#include "unsloth/formats/run_state.h"
#include "unsloth/model/model.h"
#include "unsloth/objective/objective.h"
#include "unsloth/ops/optimizer.h"
#include "unsloth/spec/model_flops.h"
#include "unsloth/train/router_loads.h"
#include "unsloth/train/spikes.h"

namespace unsloth::train {

struct StepSettings {
    ops::AdamwSettings adamw;
    double max_grad_norm = 1.0;
    uint64_t seed = 0;                          ///< dropout's key
    bool loss_scaling = false;                  ///< fp16: a dynamic factor on the loss
    double skip_on_spike = 0;                   ///< standard deviations (train/spikes.h); 0: no step is one
    objective::Objective* objective = nullptr;  ///< nullptr: the mean over targets
    comm::Group* group = nullptr;               ///< ranks that share the step; nullptr: alone
    int64_t bucket_bytes =
        0;  ///< of gradients that ranks sum during the backward pass; 0: all of them together, after the pass
};

/// What a finished step has to say.
struct StepResult {
    int64_t step = 0;  ///< from 1
    double epoch = 0;
    double learning_rate = 0;
    int64_t tokens = 0, labels = 0;
    double seconds = 0;  ///< from the end of the step before it, or from start_clock(), to its own
    spec::StepOutcome outcome{};
    double loss_scale = 1.0;
    double flops = 0;            ///< model FLOPs of this rank's rows (spec/model_flops.h)
    objective::Figures figures;  ///< of all ranks
    std::vector<int64_t> rows;   ///< source rows of this rank, for messages
    SpikeLimits limits;          ///< what it was compared with
    /// Of the gradients before clipping, where IssueOptions asked: of each layer ("layers.0"), what the head completes
    /// ("head": norm and lm_head) and the embeddings ("embed_tokens"), of those that are trained.
    std::vector<std::pair<std::string, double>> layer_norms;
    RouterLoads router_loads;  ///< where IssueOptions asked
    /// With a group: how long each rank worked at an earlier step (the last that it knew of) before it had to wait for
    /// the others; 0: not known yet.
    std::vector<double> rank_seconds;
    int signal = 0;         ///< with a group: stop signal that some rank was sent before it issued the step
    bool save_due = false;  ///< with a group: some rank asked for a checkpoint after this step
};

class LayerNormMeter;
class RankSums;
class RouterMeter;

struct IssueOptions {
    bool save_due = false;      ///< this rank asks all for a checkpoint after the step
    bool layer_norms = false;   ///< StepResult has them
    bool router_loads = false;  ///< the same
    /// Without a group, for long steps: the host stays at most one micro-batch ahead of the device and asks this
    /// between micro-batches, with the share of the step that is left. Once it says yes, the step is dropped.
    std::function<bool(double)> abandon;
};

/// The stop signal that this process was sent, or with a group one of its ranks; 0: none. All ranks ask together, and
/// the host waits for the device.
int agree_on_signal(comm::Group* group, at::Device device, const std::string& what);

/// With a group, gradients and loss are summed over its ranks before the norm: a batch's divisor counts what all of
/// them have. Where the parameters have a share, each rank updates its slice, and all gather the values. A step in
/// which one rank met a value that is not finite is skipped by all, and so is the next where it was issued before the
/// result was taken.
///
/// Issues steps without waiting for them: on CUDA the results of a step are read one step late. Loss scaling reads them
/// at once, because the next step needs the new scale.
class Stepper {
  public:
    Stepper(ops::Context& ctx, model::Model& model, const StepSettings& settings);
    ~Stepper();
    Stepper(const Stepper&) = delete;
    Stepper& operator=(const Stepper&) = delete;

    /// Issues step number `step` (from 1) at this learning rate. False when it was dropped: parameters and moments are
    /// those of the step before.
    bool issue(const data::StepBatch& batch, int64_t step, double learning_rate, const IssueOptions& options = {});
    /// The next step's time counts from here: to be called after other work (an evaluation, a save), with nothing under
    /// way. Waits for what was issued so far.
    void start_clock();
    /// The oldest issued step's result: waits for it when `must` is set or when more than one step is in flight;
    /// nothing otherwise.
    std::optional<StepResult> take(bool must);
    /// For benches: with a group, whether the next steps use it.
    void set_sharing(bool shares) { store_.set_sharing(shares); }
    double loss_scale() const { return loss_scale_; }

    /// What a checkpoint must keep of it; to be called when no step is in flight.
    using State = formats::OptimizerProgress;
    State state() const { return {updates_, loss_scale_, good_steps_, spikes_.measures()}; }
    void restore(const State& state);

  private:
    struct Slot;
    struct Pending {
        std::size_t slot = 0;
        StepResult result;
        bool layer_norms = false, router_loads = false;  ///< to be read
    };
    std::size_t before(std::size_t slot) const { return (slot + slots_.size() - 1) % slots_.size(); }
    void write_scalars(Slot& slot, const data::StepBatch& batch, int64_t step, double learning_rate);
    void adjust_loss_scale(const spec::StepOutcome& outcome);

    ops::Context& ctx_;
    model::Model& model_;
    model::ParameterStore& store_;
    StepSettings settings_;
    std::unique_ptr<objective::Objective> supervised_;  ///< where the settings name none
    objective::Objective& objective_;
    std::vector<std::unique_ptr<Slot>> slots_;  ///< a ring: one being read, one being written, the step's before both
    std::deque<Pending> pending_;
    std::size_t next_slot_ = 0;
    at::Tensor device_scalars_, device_outcome_;
    std::unique_ptr<RankSums> sums_;  ///< nullptr: alone
    std::unique_ptr<LayerNormMeter> layer_norm_meter_;
    std::unique_ptr<RouterMeter> router_meter_;
    double own_seconds_ = 0;  ///< with a group: that this rank worked at the last step it knows of
    spec::ModelFlops flops_;
    SpikeWindow spikes_;
    std::optional<SpikeGuard> spike_guard_;  ///< nothing: skip_on_spike is 0
    double loss_scale_ = 1.0;
    int64_t good_steps_ = 0;
    int64_t updates_ = 0;  ///< Adam's t: steps but those skipped by loss scaling (a spike is known too late)
};

}  // namespace unsloth::train
