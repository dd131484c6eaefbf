// How many prompt tokens are prefilled in a pass with rows that decode: by what passes like it took.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "unsloth/generate/scheduler.h"
#include "unsloth/planner/decoding_time.h"

namespace unsloth::generate {

/// What the time of a pass depends on.
struct PassWork {
    int64_t tokens = 0, chosen = 0;  ///< in all; those that choose the next one
    int64_t keys = 0;                ///< and values that are read, of each row of its own
    bool together = false;           ///< a prompt's tokens are one row: another kind of pass
    static PassWork of(const std::vector<ScheduledChunk>& parts);
};

/// How long passes take: as the card's rates predict it until there are measurements, then by what nearby ones took of
/// what was predicted for them.
class StepLatencyModel {
  public:
    /// Without a prediction a pass is taken to last in proportion to its tokens, and 32 more.
    explicit StepLatencyModel(std::optional<planner::DecodingTime> predicted = {}) : predicted_(std::move(predicted)) {}

    /// The first passes of a kind do not count: libraries choose algorithms in them, and memory is touched. A kind that
    /// was not met for minutes is forgotten: one that seems too slow would never be tried again.
    void observe(const PassWork& pass, double ms);
    /// Milliseconds; before anything was measured, and without a prediction, of another unit.
    double expected_ms(const PassWork& pass) const;

  private:
    struct Kind {
        int64_t met = 0, met_at = 0;  ///< how often; the pass, of all passes
        std::vector<double> last;     ///< of the latest passes: what they took over what was predicted
    };
    double predicted(const PassWork& pass) const;
    void forget_old();

    std::optional<planner::DecodingTime> predicted_;
    std::array<std::map<int64_t, Kind>, 2>
        kinds_;  ///< of rows alone, and together; by the bucket of its rows, or the prompt's tokens
    std::array<planner::RateBySize, 2> times_as_long_;  ///< the median of Kind::last
    int64_t passes_ = 0;                                ///< that were observed
};

/// As many as make a whole bucket of rows with those that decode, in a pass that is expected to take `longest` times as
/// long as without them at most. They go in as decode rows, so that other passes' CUDA graphs apply. Where fewer than
/// `fewest_as_decode_rows` would (far into a long prompt each reads many keys), up to `most_together` as one row, if
/// such a pass fits; where none does, what is expected to take the least time.
struct ChunkedPrefillBounds {
    double longest = 2.5;  ///< of 3 that a token may wait
    int64_t most = 256, fewest_as_decode_rows = 32, most_together = 128, fewest_together = 16;
};
ChunkedPrefillPolicy chunked_prefill_policy(std::shared_ptr<const StepLatencyModel> times,
                                            const ChunkedPrefillBounds& bounds = {});

}  // namespace unsloth::generate
