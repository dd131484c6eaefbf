// Measures the norm of each layer's gradient over all ranks, without waiting for the device.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "unsloth/model/model.h"

namespace unsloth::train {

class LayerNormMeter {
  public:
    LayerNormMeter(ops::Context& ctx, const model::Model& model);

    /// Host memory of one step in flight: fp32, pinned on CUDA.
    at::Tensor make_host() const;
    /// After the step's sums over ranks: norms, with loss scaling's factor, and their copy to `host`.
    void issue(const at::Tensor& host, int64_t step);
    /// Once the step is done: by names (StepResult::layer_norms), in the order of the model, without the factor.
    std::vector<std::pair<std::string, double>> read(const at::Tensor& host, double loss_scale) const;

  private:
    ops::Context& ctx_;
    const model::Model& model_;
    std::vector<model::GradientStretch> stretches_;  ///< of the layers, all ranks'
    std::vector<weights::CommonStretch> common_;     ///< of what all ranks train and what this one has
    at::Tensor norms_;                               ///< fp32, one a stretch
};

}  // namespace unsloth::train
