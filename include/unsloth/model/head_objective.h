// What turns the log-probabilities of a micro-batch's targets into a loss and into weights of their rows: the seam
// between the head and the objectives (objective/).
#pragma once

#include "unsloth/model/micro_batch.h"

namespace unsloth::model {

class HeadObjective {
  public:
    virtual ~HeadObjective() = default;
    /// Whether the gradients of rows are multiplied by weights, which weigh() writes.
    virtual bool weighs() const = 0;
    /// Before the passes of a micro-batch: puts what weigh() needs of it beside its tokens. Nothing synchronises.
    virtual void upload(const data::Batch& batch, MicroBatch& micro) = 0;
    /// The micro-batch's head().loss_n hold -log p of its targets: adds its loss to ctx.outcome, and writes the weights
    /// of its rows to head().weight_n. Called once for each micro-batch with targets, in their order.
    virtual void weigh(ops::Context& ctx, const MicroBatch& micro, ops::Site site) = 0;
    /// A micro-batch of other ranks that has no targets on this one.
    virtual void pass_over(ops::Context& ctx) = 0;
};

}  // namespace unsloth::model
