// What lies outside of the decoder layers, forward and backward: the embeddings; the final norm, lm_head and the loss.
#pragma once

#include "unsloth/model/micro_batch.h"
#include "unsloth/model/network.h"

namespace unsloth::model {

/// The first layer's input from the micro-batch's ids; with `noise` NEFTune's is added (Network::noise_alpha).
void embed(ops::Context& ctx, const Network& network, const MicroBatch& micro, bool noise);
/// Adds the gradient of a trained embedding, from that of the first layer's input.
void embedding_backward(ops::Context& ctx, const Network& network, const MicroBatch& micro);

/// The residual rows with a target, normed: head().h_nD.
void gather_head_rows(ops::Context& ctx, const Network& network, const MicroBatch& micro);
/// Logits [rows, V] of the gathered rows [first, first + rows), at most one chunk.
at::Tensor head_logits(ops::Context& ctx, const Network& network, const MicroBatch& micro, int64_t first, int64_t rows);
/// Turns a chunk's logits into the losses of its rows; with `gradient` the logits become their own gradient (with the
/// step's divisor and scale, ctx.scalars).
void head_loss(ops::Context& ctx, const MicroBatch& micro, int64_t first, const at::Tensor& logits_CV, bool gradient);
/// Adds the micro-batch's loss to ctx.outcome and the gradients of what is trained here, and leaves the gradient of
/// the last layer's output in scratch().g_full. The full [T, V] logits never exist.
void head_forward_backward(ops::Context& ctx, const Network& network, const MicroBatch& micro);

}  // namespace unsloth::model
