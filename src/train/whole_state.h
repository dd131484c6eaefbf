// What all ranks of a pipeline train, as one process has it, on the rank that writes it.
#pragma once

#include <functional>
#include <string>

#include "unsloth/model/model.h"

namespace unsloth::train {

class WholeState {
  public:
    /// Of a pipeline's rank.
    WholeState(model::Model& model, config::Optimizer optimizer) : model_(model), optimizer_(optimizer) {}

    /// Called together by these ranks: what Parameters::saved() holds of all of them comes to the first one, into the
    /// tensors that `to` names there (host memory; undefined: it is dropped). `values_only`: without moments.
    using To = std::function<at::Tensor(const std::string& name)>;
    void collect(const To& to, bool values_only) const;

  private:
    model::Model& model_;
    config::Optimizer optimizer_;
};

}  // namespace unsloth::train
