// Where a run's steps come from.
#pragma once

#include <cstdint>
#include <optional>

#include "unsloth/data/loader.h"
#include "unsloth/data/prefetch.h"

namespace unsloth::train {

/// Gives the steps of a run in their order.
class StepSource {
  public:
    virtual ~StepSource() = default;
    /// This rank's micro-batches of step number `step`, from 1. The step before was issued, and may not be done: work
    /// on the model follows it on the stream.
    virtual data::StepBatch next(int64_t step) = 0;
};

/// Steps of training rows. A thread makes them ahead of use, from the first call on.
class RowSource final : public StepSource {
  public:
    /// Steps up to number `last` of `rows`, which outlive this and have no other user meanwhile.
    RowSource(data::StepLoader& rows, int64_t last) : rows_(rows), last_(last) {}
    data::StepBatch next(int64_t step) override;

  private:
    data::StepLoader& rows_;
    int64_t last_;
    int64_t expected_ = 0;  ///< the number of the next step, once the first was asked for
    std::optional<data::Prefetcher> ahead_;
};

}  // namespace unsloth::train
