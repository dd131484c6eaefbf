// How long a training step takes on a card: predicted from what is multiplied, read and copied, and the card's rates.
#pragma once

#include <cstdint>
#include <vector>

#include "unsloth/planner/card.h"
#include "unsloth/spec/coded_products.h"
#include "unsloth/spec/model_spec.h"
#include "unsloth/spec/run_plan.h"

namespace unsloth::planner {

/// How ranks share a step; what else StepWork says is then of one rank.
struct Sharing {
    int64_t ranks = 1;                ///< in all
    int64_t tp = 1;                   ///< that compute each layer together
    int64_t cp = 1;                   ///< that share each row
    int64_t summed = 1;               ///< that add up gradients
    int64_t peers = 1;                ///< that hold the frozen layers among them
    int64_t stages = 1, chunks = 1;   ///< of a pipeline; ranges of layers of each
    bool gradients_by_layer = false;  ///< summed after each pass of a layer, onto the rank that holds them
    bool values_by_layer = false;     ///< gathered before each
};

/// What the passes of a step share.
struct StepWork {
    spec::ModelSpec model;  ///< with the rank's slices of the layers
    Sharing sharing;
    int64_t tokens = 0;                ///< of a micro-batch
    int64_t longest = 0;               ///< row, of which the tokens may be a part; all are taken to be as long
    int64_t head_rows = 0;             ///< of a micro-batch, with a target
    int64_t micro_batches = 1;         ///< of a step
    int64_t summed_parameters = 0;     ///< that are trained by the ranks that add up gradients
    int64_t trained_parameters = 0;    ///< that the GPU updates
    int64_t updated_on_host = 0;       ///< parameters that the ranks of a machine update on its CPUs
    bool adapters = true;              ///< of low rank, in addition to the base's GEMMs
    bool in_4bit = false;              ///< the base is dequantized for its GEMMs where it is not cached
    spec::CodedProducts coded{};       ///< of the base
    spec::CodedProducts head_coded{};  ///< of lm_head
    bool has_head = true;              ///< of a pipeline the last stage
    bool trains_head = false;
    int64_t row_tile = 0;        ///< tokens of an MLP at a time; 0: all
    bool inputs_in_fp8 = false;  ///< those on the host are quantized and later dequantized
};

/// Of a layer's passes for one micro-batch, in ms. Copies overlap computation; the longer of the two counts, layer by
/// layer: a slot is waited for two layers on, and fetched again one layer ahead (model/offload.h).
struct LayerTime {
    double forward = 0, backward = 0;  ///< backward with recomputation
    double both() const { return forward + backward; }
};

/// Bytes of a layer that are not always on the device.
struct MovedBytes {
    int64_t activations = 0;  ///< of a micro-batch, that the host keeps
    int64_t weights = 0;      ///< its image
};

/// Trained parameters of a layer, about.
double trained_of_layer(const StepWork& work);
/// Bytes of a layer's frozen matrices as stored.
double image_bytes(const StepWork& work);
/// Pieces that a pass's rows go through what follows attention in.
double tiles(const StepWork& work);

struct NetRates;

class StepTime {
  public:
    StepTime(Card card, StepWork work);
    LayerTime layer(const spec::LayerPlan& plan, const MovedBytes& moved, int64_t in_flight) const;
    /// Embeddings, lm_head and loss of a micro-batch, and its share of the optimizer's step.
    double outside() const { return head_ + once_ / static_cast<double>(work_.micro_batches); }
    /// The step, where a micro-batch's layers take so long: of a pipeline this stage's, and it waits for the others.
    double step_ms(double layers_ms) const;
    const Card& card() const { return card_; }
    const StepWork& work() const { return work_; }

  private:
    /// Floating-point operations a second, in units of 10^12, of GEMMs of `rows` rows.
    double products_tflops(spec::Codes codes, double rows) const;
    double products_ms(double parameters, double tokens, spec::Codes codes) const;
    double tiled_products_ms(double parameters, spec::Codes codes) const;
    double bytes_ms(double bytes) const;
    double net_ms(const NetRates& rates) const;
    double head_ms() const;
    double update_ms() const;
    Card card_;
    StepWork work_;
    double head_ = 0;  ///< of a micro-batch
    double once_ = 0;  ///< of a step: the update, and what ranks exchange for it
};

}  // namespace unsloth::planner
