// How long a training step takes on a card: predicted from what is multiplied, read and copied, and the card's rates.
#pragma once

#include <cstdint>
#include <vector>

#include "unsloth/planner/card.h"
#include "unsloth/spec/model_spec.h"
#include "unsloth/spec/run_plan.h"

namespace unsloth::planner {

/// What the passes of a step have in common.
struct StepWork {
    spec::ModelSpec model;
    int64_t tokens = 0;              ///< of a micro-batch
    int64_t longest = 0;             ///< row, of which the tokens may be a part; all are taken to be as long
    int64_t head_rows = 0;           ///< of a micro-batch, with a target
    int64_t micro_batches = 1;       ///< of a step
    int64_t trained_parameters = 0;  ///< that the GPU updates
    int64_t updated_on_host = 0;     ///< parameters that the ranks of a machine update on its CPUs
    bool adapters = true;            ///< of low rank, beside the base's products
    bool in_4bit = false;            ///< the base is expanded for its products where it is not cached
    bool fp8 = false;                ///< base products
    bool trains_head = false;
    int64_t row_tile = 0;        ///< tokens of an MLP at a time; 0: all
    bool inputs_in_fp8 = false;  ///< those on the host, made codes and expanded again
};

/// Of a layer's passes for one micro-batch, in ms. What is copied goes on beside what is computed; the longer of the
/// two counts, layer by layer: a slot is waited for two layers on, and fetched again one layer ahead (model/offload.h).
struct LayerTime {
    double forward = 0, backward = 0;  ///< backward with what is made again
    double both() const { return forward + backward; }
};

/// Bytes of a layer that are not always on the device.
struct MovedBytes {
    int64_t activations = 0;  ///< of a micro-batch, that the host keeps
    int64_t weights = 0;      ///< its image
};

class StepTime {
  public:
    StepTime(Card card, StepWork work);
    LayerTime layer(const spec::LayerPlan& plan, const MovedBytes& moved, int64_t in_flight) const;
    /// Embeddings, lm_head and loss of a micro-batch, and its share of the optimizer's step.
    double outside() const { return outside_; }
    /// The step, where a micro-batch's layers take so long.
    double step_ms(double layers_ms) const;
    const Card& card() const { return card_; }
    const StepWork& work() const { return work_; }

  private:
    double products_ms(double parameters, double tokens) const;
    double tiled_products_ms(double parameters) const;
    double tiles() const;
    double bytes_ms(double bytes) const;
    Card card_;
    StepWork work_;
    double outside_ = 0;
};

}  // namespace unsloth::planner
