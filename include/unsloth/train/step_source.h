// Where a run's steps come from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "unsloth/data/loader.h"
#include "unsloth/data/prefetch.h"

namespace unsloth::train {

/// Of a checkpoint: what StepSource::progress() said.
inline constexpr const char* rollout_file = "rollouts.json";

/// A signal came before the next step was ready; the step was not begun. Of several ranks all stop.
struct StoppedBySignal {
    int signal = 0;
};

/// Gives the steps of a run in their order.
class StepSource {
  public:
    virtual ~StepSource() = default;
    /// This rank's micro-batches of step number `step`, from 1. The step before was issued, and may not be done: work
    /// on the model follows it on the stream. Throws a StoppedBySignal where the step takes work that a signal ends.
    virtual data::StepBatch next(int64_t step) = 0;
    /// The source's state for a checkpoint after the last requested step; empty: the step's number says all. The next
    /// step was not asked for.
    virtual std::string progress() const { return {}; }
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
