// A gated delta net in the place of a layer's attention (spec::LayerSpec::delta).
#pragma once

#include "unsloth/model/decoder_layer.h"

namespace unsloth::model {

/// Of `steps` qkv and attention: the input's norm and products, then the net up to what its output projection reads.
void delta_forward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a,
                   const spec::LayerSteps& steps);
/// From the gradient of what the output projection read, in scratch.h_full, onto the residual stream's.
void delta_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a, bool input_gradient);

}  // namespace unsloth::model
