// What turns the log-probabilities of a micro-batch's targets into a loss and into weights of their rows: the seam
// between the head and the objectives (objective/).
#pragma once

#include "unsloth/model/micro_batch.h"

namespace unsloth::model {

/// What becomes of a chunk's logits: they stay, or become their own gradient (with the step's divisor and scale,
/// ctx.scalars), each row's times head().weight_n or as it is.
enum class LogitsGradient : uint8_t { none, plain, weighted };

struct Network;

class HeadObjective {
  public:
    virtual ~HeadObjective() = default;
    /// Turns a chunk of the micro-batch's logits, rows [first, first + C) of those with a target, into -log p of the
    /// targets, in head().loss_n, and as `gradient` says into the loss's gradient. Chunks come in their order.
    virtual void chunk_loss(ops::Context& ctx, const Network& network, const MicroBatch& micro, int64_t first,
                            const at::Tensor& logits_CV, LogitsGradient gradient);
    /// Whether the gradients of rows are multiplied by weights, which weigh() writes.
    virtual bool weighs() const = 0;
    /// Whether chunk_loss() needs the weights when it makes the gradient: the head's products are computed twice then.
    virtual bool weighs_before_gradient() const { return false; }
    /// Before the passes of a micro-batch: uploads what weigh() needs, in addition to its tokens. Nothing synchronises.
    virtual void upload(const data::Batch& batch, MicroBatch& micro) = 0;
    /// The micro-batch's head().loss_n hold -log p of its targets: adds its loss to ctx.outcome, and writes the weights
    /// of its rows to head().weight_n. Called once for each micro-batch with targets, in their order.
    virtual void weigh(ops::Context& ctx, const MicroBatch& micro, ops::Site site) = 0;
    /// A micro-batch of other ranks that has no targets on this one.
    virtual void pass_over(ops::Context& ctx) = 0;
};

}  // namespace unsloth::model
