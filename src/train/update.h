// The end of a step: the norm of all gradients, the optimizer, and the new values to where passes read them. One path
// for one rank and for those that share the optimizer, for states on the device and in host memory.
#pragma once

#include <string>

#include "unsloth/comm/communicator.h"
#include "unsloth/model/model.h"
#include "unsloth/ops/optimizer.h"

namespace unsloth::train {

class Update {
  public:
    /// `ranks`: of the parameters' share, nullptr where it is one's.
    Update(ops::Context& ctx, model::Model& model, const ops::AdamwSettings& settings, comm::Communicator* ranks);

    /// Into the context's outcome: the norm, the factor that clips, whether the step is skipped. Ranks that share the
    /// optimizer have the sums of squares of a slice each, and add them up in the same order as one that has all.
    void measure_norm(int64_t step);
    /// fp64 sums of squares of pieces of the gradients that this rank has, from an element of the flat layout on where
    /// a unit begins.
    at::Tensor squares(int64_t from = 0);
    /// The optimizer's step of this rank's slice, unless the outcome says that it is skipped, and the values' way to
    /// the passes of all ranks. `scalars`: those of the context, in host memory. With states in host memory the host
    /// waits for the device's outcome, and later work of the device for the host's.
    void apply(const at::Tensor& device_outcome, const spec::StepScalars& scalars, int64_t step);
    /// For benches: whether ranks exchange anything.
    void set_sharing(bool shares) { shares_ = shares; }

  private:
    bool shared() const { return shares_ && ranks_ != nullptr; }
    void apply_on_host(const at::Tensor& device_outcome, const spec::StepScalars& scalars);

    ops::Context& ctx_;
    model::Model& model_;
    weights::Parameters& parameters_;
    ops::AdamwSettings settings_;
    comm::Communicator* ranks_;
    ops::Context host_{at::kCPU};
    spec::StepOutcome host_outcome_{};
    at::Tensor rank_sums_;  ///< fp64, one a rank: with gradients in host memory
    bool shares_ = true;
};

}  // namespace unsloth::train
