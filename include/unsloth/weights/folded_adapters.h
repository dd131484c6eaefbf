// Layers with their adapters folded in, rounded to the values that a served file will hold (lora.serve_grid).
#pragma once

#include "unsloth/memory/plan.h"
#include "unsloth/spec/serve_grid.h"
#include "unsloth/weights/adapter_tails.h"
#include "unsloth/weights/layout.h"
#include "unsloth/weights/stored_weight.h"

namespace unsloth::weights {

class FoldedAdapters {
  public:
    /// Submits the room for one projection at a time.
    static void plan(spec::ServeGrid grid, const LayerLayout& layout, memory::Plan& plan);
    /// `adapters` (nullptr: none) must outlive it. grid: not none.
    FoldedAdapters(ops::Context& ctx, spec::ServeGrid grid, const LayerLayout& layout, const Adapters* adapters,
                   const memory::Arena& arena);

    /// out_NK = Q(W + scale · B·A) of one of the layer's projections, rounded to out's type; W in fp32, as it is
    /// stored.
    void fold(ops::Context& ctx, int layer, const Slice& slice, const StoredWeight& stored,
              const at::Tensor& out_NK) const;
    /// Of the adapters that fold() reads.
    uint64_t version() const { return adapters_ == nullptr ? 0 : adapters_->version(); }

  private:
    spec::ServeGrid grid_;
    const Adapters* adapters_;
    at::Tensor values_;     ///< flat fp32
    at::Tensor workspace_;  ///< undefined: none is needed
};

}  // namespace unsloth::weights
