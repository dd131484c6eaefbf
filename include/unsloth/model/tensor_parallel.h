// The ranks that compute a model's layers together, each with its slices of the matrices (spec/slice.h).
//
// Activations between the GEMMs are cut by rows (sequence parallel: Korthikanti et al., arXiv 2205.05198): of each tile
// of a micro-batch's tokens (model/row_range.h) a rank has an equal slice of the residual stream, its gradient, and the
// norms. A GEMM that is cut by outputs reads all rows, from an all-gather; of one that is cut by inputs the ranks'
// terms are summed onto the rows' ranks, by a reduce-scatter; the backward pass swaps the two.
//
// A rank's gradients of trained parameters are its terms of them: the flat buffer has every rank's whole, and what
// others compute of it is 0 there, so that one sum over all ranks (with those of data parallel) makes them whole. The
// first rank adds what is equal on all of them (biases after a sum, the final norm).
#pragma once

#include "unsloth/comm/communicator.h"
#include "unsloth/ops/context.h"
#include "unsloth/spec/slice.h"

namespace unsloth::model {

class TensorParallel {
  public:
    TensorParallel() = default;
    /// `ranks`: not owned; nullptr: alone.
    explicit TensorParallel(comm::Communicator* ranks) : ranks_(ranks) {
        if (ranks != nullptr) place_ = {ranks->rank(), ranks->size()};
    }

    /// To plan with: there is no rank to exchange with.
    explicit TensorParallel(spec::TensorRank place) : place_(place) {}

    const spec::TensorRank& place() const { return place_; }
    bool alone() const { return place_.alone(); }
    bool first() const { return place_.first(); }
    comm::Communicator* ranks() const { return ranks_; }  ///< nullptr: alone, or to plan with

    /// This rank's slice of all ranks' rows, whose number is a multiple of the ranks'; undefined of what is undefined.
    at::Tensor own(const at::Tensor& rows) const;

    /// Contiguous, fp32 or bf16: becomes the sum over the ranks. Nothing where there is one.
    void sum(ops::Context& ctx, const at::Tensor& terms, const char* what) const;
    /// Contiguous: the rows become all ranks', each one's own slice from it. Nothing where there is one.
    void gather(ops::Context& ctx, const at::Tensor& rows, const char* what) const;
    /// Contiguous, fp32 or bf16: `own` becomes this rank's slice of the sum over the ranks of `terms`; it may be that
    /// slice of them. Among several ranks alone.
    void reduce_scatter(ops::Context& ctx, const at::Tensor& terms, const at::Tensor& own, const char* what) const;

  private:
    spec::TensorRank place_;
    comm::Communicator* ranks_ = nullptr;
};

}  // namespace unsloth::model
