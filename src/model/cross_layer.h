// The part of a crossing layer (spec::LayerSpec) that replaces a layer's first four steps: queries of tokens attend
// to keys and values of image features, which all such layers share. The rest is as in any other layer, with
// gates.
#pragma once

#include "unsloth/model/decoder_layer.h"

namespace unsloth::model {

/// Of `steps` qkv and attention; and the gates, which what follows reads.
void cross_forward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a,
                   const spec::LayerSteps& steps);

/// From the gradient of attention's output in scratch.h_full to that of the layer's input in scratch.g_full, and to
/// its adapters' gradients. Where the tower is trained, the features' gradient is added to TokenInputs::dfeatures_SD,
/// which the highest such layer writes.
void cross_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a, bool input_gradient);

}  // namespace unsloth::model
