// What all ranks of a pipeline train, as one process has it, on the rank that writes it.
#pragma once

#include <functional>
#include <string>

#include "unsloth/comm/group.h"
#include "unsloth/model/model.h"

namespace unsloth::train {

class WholeState {
  public:
    /// Of a pipeline's rank, whose device is this. All outlive this.
    WholeState(comm::Group& group, model::Model& model, config::Optimizer optimizer, at::Device device)
        : group_(group), model_(model), optimizer_(optimizer), device_(device) {}

    /// Called together by the first rank of each stage, where they share the optimizer by all: what
    /// Parameters::saved() holds of all of them comes to rank 0, into the tensors that `to` names there (host memory;
    /// undefined: it is dropped). `values_only`: without moments.
    using To = std::function<at::Tensor(const std::string& name)>;
    void collect(const To& to, bool values_only) const;

  private:
    comm::Group& group_;
    model::Model& model_;
    config::Optimizer optimizer_;
    at::Device device_;
};

}  // namespace unsloth::train
