// The model outside its decoder layers, forward and backward: the embeddings; the final norm, lm_head and the loss.
#pragma once

#include "unsloth/model/head_objective.h"
#include "unsloth/model/network.h"

namespace unsloth::model {

/// The first layer's input from the micro-batch's ids; with `noise` NEFTune's is added (Network::noise_alpha). Features
/// of its images, if it has some, take the place of their tokens; `adapted`: made with the tower's adapters.
void embed(ops::Context& ctx, const Network& network, const MicroBatch& micro, bool noise, bool adapted);
/// Adds to a layer's output what the tower made of the images for it (VisionSpec::deepstack).
void add_image_features(const MicroBatch& micro, int layer);
/// Before the backward pass of a layer, of a tower that is trained: the gradient of what add_image_features added takes
/// its place.
void take_image_gradients(const Network& network, const MicroBatch& micro, int layer);
/// Adds the gradients of the tower's adapters, from that of the first layer's input and take_image_gradients'.
void tower_backward(ops::Context& ctx, const Network& network, const MicroBatch& micro);
/// Adds the gradient of a trained embedding, from that of the first layer's input.
void embedding_backward(ops::Context& ctx, const Network& network, const MicroBatch& micro);

/// The residual rows with a target, normed: head().h_nD; and lm_head dequantized, where GEMMs cannot read it as stored.
void gather_head_rows(ops::Context& ctx, const Network& network, const MicroBatch& micro);
/// Logits [rows, V] of the gathered rows [first, first + rows), at most one chunk; in the rank's slice of the
/// vocabulary.
at::Tensor head_logits(ops::Context& ctx, const Network& network, const MicroBatch& micro, int64_t first, int64_t rows);
/// Turns a chunk's logits into the losses of its rows: cross-entropy.
void head_loss(ops::Context& ctx, const Network& network, const MicroBatch& micro, int64_t first,
               const at::Tensor& logits_CV, LogitsGradient gradient);
/// The objective's loss of the micro-batch, this rank's gradients of trained parameters, and in scratch().g_full the
/// gradient of the last layer's output. The full [T, V] logits never exist.
void head_forward_backward(ops::Context& ctx, const Network& network, const MicroBatch& micro,
                           HeadObjective& objective);

}  // namespace unsloth::model
