// The MLP of a layer whose tokens pass some of many experts: steps 6 to 9 of a layer as mlp.h numbers them.
#pragma once

#include "unsloth/model/decoder_layer.h"
#include "unsloth/model/micro_batch.h"
#include "unsloth/model/network.h"

namespace unsloth::model {

/// Where experts' loads are balanced: before a micro-batch's layers, and after them, before its backward pass: the loss
/// goes to ctx.outcome, and its gradient to where routers find it.
void begin_balance(const MicroBatch& micro);
void add_balance(ops::Context& ctx, const Network& network, const MicroBatch& micro);

/// Those of layer_forward that are wanted. A recompute leaves the router's choices as they are.
void experts_forward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a,
                     const at::Tensor& x_next_tD, spec::LayerSteps steps);

/// Steps 9 to 6 of layer_backward, onto the residual stream's gradient. The router is frozen, and passes on the
/// gradients of the weights that it gave.
void experts_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a);

}  // namespace unsloth::model
