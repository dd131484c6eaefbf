// Moves what layers keep for their backward pass to pinned host memory and back, while other layers compute.
//
// The device holds the matrices of two layers (and the inputs of three, because a layer writes the next one's): while
// layer i computes, layer i - 1 moves. Where inputs wait quantized (spec::RunPlan::inputs_in_fp8), the quantized values
// move instead, and the input is dequantized before its layer's backward pass. The two top layers that offload never
// leave the device: the backward pass comes to them before others could use their place.
#pragma once

#include "unsloth/model/activations.h"
#include "unsloth/model/pass_counts.h"
#include "unsloth/ops/copy_stream.h"

namespace unsloth::model {

class Offload {
  public:
    /// `layers`: how many offload, from the lowest. `lowest`: the layer where backward passes end. `counts`: what is
    /// moved is counted there.
    Offload(ops::Context& ctx, const Activations& activations, int layers, int lowest, PassCounts& counts);

    /// Around each layer of a forward pass, in order of the layers.
    void before_forward(int layer);
    void after_forward(int layer);
    /// Before each layer of a backward pass, from the top: the layer's kept matrices are there for work issued
    /// afterwards.
    void before_backward(int layer);

  private:
    bool moves(int layer) const { return layer >= lowest_ && layer < layers_ - 2; }
    ops::Context& ctx_;
    ops::CopyStream copies_;
    const Activations& activations_;
    int layers_, lowest_;
    PassCounts& counts_;
};

}  // namespace unsloth::model
