// The rows that `prune` measures a model on.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "unsloth/session/session.h"

namespace unsloth::commands {

/// The rows of data.train_file in batches, with every token a target. A row of one token has no target, and batches
/// have one at least.
class CalibrationRows {
  public:
    /// Input Error "data.no-usable-rows" where no row has two tokens; others as session::read_rows.
    CalibrationRows(const config::Config& config, const session::OpenedModel& opened);

    const data::Dataset& rows() const { return rows_; }
    int64_t most_tokens() const { return most_; }        ///< of a batch
    int64_t most_segments() const { return segments_; }  ///< the same
    std::size_t batches() const { return ranges_.size(); }
    data::Batch batch(std::size_t index) const;

    /// Mean loss over all batches; `before` sees each of them.
    template <class Before>
    double loss(model::Model& model, const Before& before) const;

  private:
    data::Dataset rows_;
    int64_t most_ = 0, segments_ = 1;
    std::vector<std::pair<int64_t, int64_t>> ranges_;
};

template <class Before>
double CalibrationRows::loss(model::Model& model, const Before& before) const {
    double sum = 0;
    int64_t labels = 0;
    for (std::size_t i = 0; i < batches(); ++i) {
        const data::Batch of_rows = batch(i);
        before(of_rows);
        sum += model.score(of_rows).sum(at::kDouble).template item<double>();
        labels += of_rows.labels;
    }
    return sum / static_cast<double>(labels);
}

}  // namespace unsloth::commands
