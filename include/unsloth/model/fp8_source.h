// A frozen base in 8-bit floats on the device: both directions quantised once, while loading.
#pragma once

#include "unsloth/model/weight_source.h"

namespace unsloth::model {

class Fp8Source final : public WeightSource {
  public:
    static void plan(const spec::ModelSpec& spec, const LayerLayout& layout, at::ScalarType dtype, memory::Plan& plan);
    /// `layers` hold norms and biases.
    Fp8Source(ops::Context& ctx, const spec::ModelSpec& spec, const LayerLayout& layout, at::ScalarType dtype,
              std::vector<StoredLayer> layers, const memory::Arena& arena, const Adapters* adapters);
    /// Quantises a group's joined projections [N, K] of the compute dtype on the arena's device; w_NK may be reused
    /// afterwards.
    void load(ops::Context& ctx, int layer, Group g, const at::Tensor& w_NK);
    /// What load() writes of a group: contiguous.
    std::array<at::Tensor, 4> base(int layer, Group g) const;
    void refresh(ops::Context& ctx) override;
    const LayerWeights& ready(ops::Context&, int layer, int64_t) override {
        return layers_.at(static_cast<std::size_t>(layer));
    }
    void release(int) override {}

  private:
    std::vector<LayerWeights> layers_;
    std::optional<AdapterMargins> adapters_;
    uint64_t version_ = 0;  ///< of the adapters in the margins
};

}  // namespace unsloth::model
