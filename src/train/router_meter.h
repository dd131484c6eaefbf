// Reads how often a step's tokens chose each expert (model::Network::router_ends_LE) without waiting for the device.
#pragma once

#include "unsloth/comm/group.h"
#include "unsloth/model/model.h"
#include "unsloth/train/router_loads.h"

namespace unsloth::train {

class RouterMeter {
  public:
    /// Does nothing where the model has no experts.
    RouterMeter(ops::Context& ctx, const model::Model& model);

    /// Host memory of one step in flight, pinned on CUDA; undefined without experts.
    at::Tensor make_host() const;
    /// Before a step's passes.
    void begin();
    /// After them: sums over the ranks, and the copy to `host`. Counts are exact up to 2^24 tokens an expert.
    void issue(const at::Tensor& host, comm::Group* group, int64_t step);
    /// Once the step is done.
    RouterLoads read(const at::Tensor& host) const;

  private:
    ops::Context& ctx_;
    const model::Model& model_;
    at::Tensor counts_LE_, sums_LE_;  ///< int32 of this rank; fp32 of all
};

}  // namespace unsloth::train
