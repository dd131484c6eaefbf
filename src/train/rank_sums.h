// What the ranks of a step add up: gradients and loss, and what all of them must know of each other.
#pragma once

#include <vector>

#include "unsloth/comm/group.h"
#include "unsloth/model/model.h"

namespace unsloth::train {

class RankSums {
  public:
    /// Of ranks that share a model one's loss counts (Model::speaks).
    RankSums(ops::Context& ctx, comm::Group& group, model::Model& model);

    /// Host memory of one step in flight, pinned on CUDA: this rank's flags, and what comes back summed.
    struct Host {
        at::Tensor flags, sums;
    };
    Host make_host() const;

    /// Issues a step's sums: of the gradients (ParameterStore::reduce), of the loss in `outcome`; and tells all ranks
    /// of a signal that one was sent, of a save that one asks for, of how long each worked (`own_seconds`: this one, in
    /// the last step that it knows of), and of a value that is not finite: sums need not show it, and those of the next
    /// step do not. Nothing synchronises.
    void issue(Host& host, const at::Tensor& outcome, int64_t step, bool save_due, double own_seconds);

    /// What issue() brought back, once the step is done.
    struct Agreed {
        int signal = 0;  ///< that some rank was sent before it issued the step
        bool save_due = false;
        std::vector<double> seconds;  ///< of each rank, as it said
    };
    static Agreed agreed(const Host& host);

  private:
    ops::Context& ctx_;
    comm::Group& group_;
    model::Model& model_;
    at::Tensor sums_;  ///< fp32: the loss; how many ranks met a value that is not finite, ask for a save, were sent
                       ///< each stop signal; each rank's seconds
    at::Tensor bad_here_, bad_anywhere_, bad_elsewhere_;  ///< bool [1]
};

}  // namespace unsloth::train
