// The ranks that compute a model's layers together, each with its slices of the matrices (spec/slice.h).
//
// Activations, their gradients, and the scratch beside them are the same on all of them, bit for bit, but between a
// product that is cut by outputs and the next one that is cut by inputs. A rank's gradients of trained parameters are
// its terms of them: the flat buffer has every rank's whole, and what others compute of it is 0 there, so that one sum
// over all ranks (with those of data parallel) makes them whole. What comes out alike on all of them (norms of the
// residual stream, biases behind a sum, embeddings) is the first one's to add.
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

    const spec::TensorRank& place() const { return place_; }
    bool alone() const { return place_.alone(); }
    bool first() const { return place_.first(); }

    /// Contiguous, fp32 or bf16: becomes the sum over the ranks. Nothing where there is one, or where `terms` is
    /// undefined.
    void sum(ops::Context& ctx, const at::Tensor& terms, const char* what) const;
    /// all_S[s] becomes the rank s's, from this one's at its place.
    void gather(ops::Context& ctx, const at::Tensor& all_S, const char* what) const;

  private:
    spec::TensorRank place_;
    comm::Communicator* ranks_ = nullptr;
};

}  // namespace unsloth::model
