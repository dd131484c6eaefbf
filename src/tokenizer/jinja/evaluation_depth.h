// Counts how deep evaluation is, one level for each statement and expression that is under way.
#pragma once

#include "tokenizer/jinja/evaluator.h"

namespace unsloth::tokenizer::jinja {

class Evaluator::Depth {
  public:
    Depth(Evaluator& evaluator, int line);
    ~Depth() { --evaluator_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

  private:
    Evaluator& evaluator_;
};

}  // namespace unsloth::tokenizer::jinja
