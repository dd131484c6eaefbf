// Measures what the experts of a model add while it scores, and leaves some of them out.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace unsloth::model {

/// What the experts of a layer give for T tokens, of which each passes k: n = T k rows. On the device, and valid during
/// the call.
struct ExpertOutputs {
    at::Tensor ids_Tk;      ///< int32: the experts that the router chose
    at::Tensor weights_Tk;  ///< fp32: what it weighs them by
    at::Tensor places_Tk;   ///< int32: the row of each choice
    at::Tensor outputs_nD;  ///< compute dtype: not weighed yet, with their bias
};

struct ExpertsProbe {
    /// By layer: fp32 [E] on the device, added to the logits of its router. -inf leaves an expert out, 0 changes
    /// nothing. Undefined, or no element: all of the layer's experts take part.
    std::vector<at::Tensor> added_to_logits;
    std::function<void(int layer, const ExpertOutputs& outputs)> see;  ///< of each pass of a layer; may be empty
};

}  // namespace unsloth::model
