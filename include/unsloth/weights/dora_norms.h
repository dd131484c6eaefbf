// What DoRA scales a layer's outputs by, m / ‖W + sBA‖ by rows (ops/dora.h): the base's norms once, the rest whenever
// the adapters changed.
#pragma once

#include "unsloth/comm/communicator.h"
#include "unsloth/memory/plan.h"
#include "unsloth/ops/dora.h"
#include "unsloth/weights/adapter_tails.h"

namespace unsloth::weights {

class DoraNorms {
  public:
    /// Submits three vectors for all layers' outputs, and room for one group's products with A.
    static void plan(const LayerLayout& layout, int64_t layers, memory::Plan& plan);
    /// Outputs without an adapter keep the scale 1. `slices`: the ranks with the other slices of the layout's matrices,
    /// not owned; nullptr: none. They measure and update together, since of a group that is cut by its inputs each has
    /// a part of every row.
    DoraNorms(const LayerLayout& layout, const Adapters& adapters, const memory::Arena& arena,
              comm::Communicator* slices = nullptr);

    /// Whether any projection of a layer has magnitudes.
    bool adapts(int layer) const;
    /// From the base of a layer's group in any floating dtype.
    void measure(ops::Context& ctx, int layer, Group g, const at::Tensor& w_NK);
    /// The measured norms of this rank's rows [n], which are a new adapter's magnitudes: its B is 0.
    at::Tensor norms(spec::LinearId id) const;
    /// From the same base, and its margins of the current adapters.
    void update(ops::Context& ctx, int layer, Group g, const at::Tensor& w_NK, const at::Tensor& a_RK,
                const at::Tensor& b_NR);
    /// For a group's outputs; without bias.
    ops::OutputScale scale(int layer, Group g) const;

  private:
    struct Vectors {
        at::Tensor base_N, scale_N, inverse_N;
    };
    Vectors of(int layer, Group g) const;
    void sum_over_slices(ops::Context& ctx, Group g, const at::Tensor& terms, int layer) const;

    const LayerLayout& layout_;
    const Adapters& adapters_;
    comm::Communicator* slices_;
    at::Tensor base_LN, scale_LN, inverse_LN;  ///< fp32 [layers, all groups' outputs]
    at::Tensor products_;                      ///< fp32, of the largest group: A·Aᵀ, followed by A·Wᵀ
};

}  // namespace unsloth::weights
