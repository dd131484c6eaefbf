// The MLP of a layer whose tokens pass some of many experts: steps 6 to 9 of a layer as mlp.h numbers them.
#pragma once

#include "unsloth/model/decoder_layer.h"

namespace unsloth::model {

/// Those of layer_forward that are wanted. A recompute leaves the router's choices as they are.
void experts_forward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a,
                     const at::Tensor& x_next_tD, spec::LayerSteps steps);

/// Steps 9 to 6 of layer_backward, onto the residual stream's gradient. The router is frozen, and passes on the
/// gradients of the weights that it gave.
void experts_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a);

}  // namespace unsloth::model
