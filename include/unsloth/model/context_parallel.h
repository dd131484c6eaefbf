// The ranks that share each row's tokens (data/context_slice.h). All but attention treats a token alone, or within its
// rank; for attention keys and values of all ranks are gathered, and their gradients summed onto the rank that has the
// token. Gated delta nets pass their states on (model/delta_chain.h). Gradients of trained parameters are sums over
// tokens: a rank has its terms, which the step's sum over all ranks (with those of data parallel) adds up.
#pragma once

#include "unsloth/comm/communicator.h"
#include "unsloth/data/batch.h"
#include "unsloth/ops/context.h"

namespace unsloth::model {

class ContextParallel {
  public:
    ContextParallel() = default;
    /// `ranks`: not owned; nullptr: alone.
    explicit ContextParallel(comm::Communicator* ranks) : ranks_(ranks) {
        if (ranks != nullptr) place_ = {ranks->rank(), ranks->size()};
    }

    /// To plan with: there is no rank to exchange with.
    explicit ContextParallel(data::ContextRank place) : place_(place) {}

    const data::ContextRank& place() const { return place_; }
    bool alone() const { return place_.alone(); }

    /// all_GN becomes the ranks' rows, each rank's at its equal part of G, of which it may fill the first alone; own_TN
    /// are this one's. Contiguous; the rest is undefined.
    void gather(ops::Context& ctx, const at::Tensor& own_TN, const at::Tensor& all_GN, const char* what) const;
    /// The other way: own_TN becomes the sum over the ranks of its rows in all_GN (fp32 or bf16), which is spoiled.
    void sum_onto_owners(ops::Context& ctx, const at::Tensor& all_GN, const at::Tensor& own_TN, const char* what) const;

    /// values becomes what it is on the rank `from`.
    void spread(ops::Context& ctx, const at::Tensor& values, int from, const char* what) const;

  private:
    at::Tensor part(const at::Tensor& all_GN) const;
    data::ContextRank place_;
    comm::Communicator* ranks_ = nullptr;
};

}  // namespace unsloth::model
