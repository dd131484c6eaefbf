// The floating-point operations that training on some rows takes by definition, whatever is done for it.
#pragma once

#include <cstdint>
#include <span>

#include "unsloth/spec/model_spec.h"

namespace unsloth::spec {

/// The trained parameters of a model, for model_flops.
struct TrainedShare {
    bool layers = false, head = false;  ///< their own weights
    int64_t adapter_parameters = 0;
};

/// Two operations for each multiply-add of a product, forward and for the gradients that are needed: of the input
/// always, of a weight where it is trained. So a token costs 4 a frozen and 6 a trained weight of the layers' linears
/// and 6 an adapter's; a target as much for lm_head; and a pair of positions that attention joins 12 a query dimension
/// and layer. A token of a gated delta net multiplies its state three times. What is computed again in the backward
/// pass does not count ("model FLOPs": PaLM, arXiv 2204.02311, appendix B, without its assumption that all weights are
/// trained).
class ModelFlops {
  public:
    ModelFlops(const ModelSpec& model, const TrainedShare& trained);
    /// Of a micro-batch: `segments` are offsets of its sequences into its tokens, from 0 to their number (empty: none),
    /// and `before`: for each, earlier tokens that it sees and that are not among them (empty: none).
    double of(std::span<const int32_t> segments, int64_t targets, std::span<const int32_t> before = {}) const;

  private:
    ModelSpec model_;
    double token_ = 0, target_ = 0;
};

}  // namespace unsloth::spec
