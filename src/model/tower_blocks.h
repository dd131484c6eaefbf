// A tower's blocks backward, whatever its images are made of: each is computed again from what entered it.
#pragma once

#include <vector>

#include "model/tower_parts.h"
#include "unsloth/model/activations.h"
#include "unsloth/ops/range_attention.h"
#include "unsloth/ops/vision.h"
#include "unsloth/weights/parameters.h"

namespace unsloth::model {

/// The backward pass of `rows` rows of the tower, P.
class BlocksBackward {
  public:
    BlocksBackward(ops::Context& ctx, const spec::VisionSpec& spec, const VisionBuffers& b,
                   const weights::Parameters& parameters, int64_t rows);

    /// The residual stream's gradient, [P, C].
    const at::Tensor& g() const { return g_PC_; }
    /// Turns it from that of the block's output into that of its input, and adds the gradients of the block's adapters.
    /// `lowest`: nothing below is trained, and the last step is skipped. Without tiles heads rotate by b.cos and
    /// b.sin.
    void block(const weights::VisionBlock& w, const at::Tensor& x_PC, const std::vector<ops::AttentionRange>& ranges,
               bool lowest) const;

    void normalise(const weights::VisionNorm& w, const at::Tensor& x, const at::Tensor& y,
                   const at::Tensor& rstd) const;
    /// dx +=
    void normalise_backward(const weights::VisionNorm& w, const at::Tensor& dy, const at::Tensor& x,
                            const at::Tensor& rstd, const at::Tensor& dx) const;
    /// out = activation(x)
    void activate(const at::Tensor& x, ops::Gelu form, const at::Tensor& out) const;
    void multiply(const weights::VisionLinear& w, const at::Tensor& x, const at::Tensor& out, bool adds = false) const;
    /// The gradients of the adapters, and dx = that of the input; undefined: it is not wanted.
    void multiply_backward(const weights::VisionLinear& w, const at::Tensor& dy, const at::Tensor& x,
                           const at::Tensor& dx) const;
    /// Adds the gradients of A, to `da`, and of B. The result is v = dy (scale B), in b.v.
    at::Tensor adapter_backward(const weights::VisionAdapter& adapter, const at::Tensor& dy, const at::Tensor& x,
                                const at::Tensor& da) const;

  private:
    at::Tensor rows(const at::Tensor& flat, int64_t columns) const { return matrix_of(flat, rows_, columns); }
    void rotate(const at::Tensor& qkv_PN, bool backward) const;
    at::Tensor lse() const;
    void mlp(const weights::VisionBlock& w, const at::Tensor& x_PC) const;

    ops::Context& ctx_;
    const spec::VisionSpec& spec_;
    const VisionBuffers& b_;
    const TowerBackward& back_;
    const weights::Parameters& parameters_;
    const int64_t rows_;
    const ops::Gelu gelu_;
    const at::Tensor g_PC_;
};

}  // namespace unsloth::model
