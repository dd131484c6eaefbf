// The input of products that are cut by outputs: a norm of the residual stream, with the adapters' columns next to it.
// Each tensor-parallel rank makes the rows of its slice of a range (model/row_range.h).
#pragma once

#include "unsloth/model/decoder_layer.h"
#include "unsloth/model/site.h"

namespace unsloth::model {

struct NormedInput {
    Group group;
    Place norm;  ///< of the layer
    spec::TensorRole role;
    const char* name;             ///< as an observer knows it
    at::Tensor x_tD;              ///< the residual stream
    at::Tensor weight_D, rstd_t;  ///< the first undefined: the products read the stream as it is
    at::Tensor u_TR;              ///< a copy of the adapters' columns; may be undefined
};
NormedInput input_norm(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a);
NormedInput post_norm(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a);

/// scratch.h_full [T, D+R] = the norm of all ranks' rows at hand and the adapters' columns. h: all that a product reads
/// of it, whose codes are made where there is one rank; of several they are the caller's to make.
void make_input(const LayerContext& c, const NormedInput& in, const weights::Operand& w, const Activation& h);

/// What a layer's first product reads: make_input() of its input norm for all tokens, a tile of ranks' slices at a
/// time, with its codes.
Activation make_mixer_input(const LayerContext& c, Group g, const weights::LayerWeights& w, const LayerSaved& a);

/// Of scratch.h_full, this rank's rows of a gradient of the norm's outputs: onto the gradient of the residual stream,
/// and the norm's outputs in its place. `input_gradient` false: only these.
void norm_backward(const LayerContext& c, const NormedInput& in, bool input_gradient);

/// After input_backward(), which left this rank's terms of the input's gradient in scratch.h_full, and of v in dy_full:
/// onto the gradient of the residual stream, and those of the norm's weight, A and a trained W. `input_gradient` false:
/// the first of these is not needed, and scratch.h_full has nothing.
void input_norm_backward(const LayerContext& c, const NormedInput& in, const at::Tensor& dy_full, bool input_gradient);
/// The same of a layer's input norm, with scratch.dqkv_full, for all tokens as make_mixer_input().
void mixer_input_backward(const LayerContext& c, const weights::LayerWeights& w, const LayerSaved& a,
                          bool input_gradient);

}  // namespace unsloth::model
