#include "unsloth/generate/chunked_prefill.h"

#include <algorithm>

#include "unsloth/generate/decoder.h"

namespace unsloth::generate {
namespace {

constexpr int64_t first_passes = 2;  // of a kind: on a GPU the second one records
constexpr std::size_t kept = 5;
constexpr int64_t remembered = 1 << 14;    // passes: a minute or two
constexpr double as_reading_weights = 32;  // tokens by which a pass lasts as long again as one row, on no known card

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

/// The size that distinguishes passes of a kind: all rows, or those of the prompt.
int64_t size_of(const PassWork& pass) {
    return std::max<int64_t>(1, pass.together ? pass.tokens - pass.chosen : pass.tokens);
}

struct Choice {
    PrefillChunk chunk;
    double ms = 0;
};

}  // namespace

PassWork PassWork::of(const std::vector<ScheduledChunk>& parts) {
    PassWork work;
    for (const ScheduledChunk& part : parts) {
        const int64_t cached = part.sequence->cached, count = part.count;
        const bool is_row = part.decodes() || part.as_decode_rows;
        work.tokens += count;
        work.chosen += part.chooses() ? 1 : 0;
        work.keys += is_row ? count * cached + count * (count + 1) / 2 : cached + count;
        work.together = work.together || !is_row;
    }
    return work;
}

double StepLatencyModel::predicted(const PassWork& pass) const {
    if (predicted_) return predicted_->pass_ms(pass.tokens, pass.chosen, pass.keys);
    return as_reading_weights + static_cast<double>(pass.tokens);
}

void StepLatencyModel::forget_old() {
    for (std::size_t form = 0; form < kinds_.size(); ++form)
        for (auto& [bucket, kind] : kinds_.at(form)) {
            if (passes_ - kind.met_at < remembered || times_as_long_.at(form).size() < 2) continue;
            kind.last.clear();
            times_as_long_.at(form).erase(static_cast<double>(bucket));
        }
}

void StepLatencyModel::observe(const PassWork& pass, double ms) {
    const int64_t bucket = bucket_of(size_of(pass));
    Kind& kind = kinds_.at(pass.together ? 1 : 0)[bucket];
    kind.met_at = ++passes_;
    if (passes_ % remembered == 0) forget_old();
    if (++kind.met <= first_passes) return;
    if (kind.last.size() == kept) kind.last.erase(kind.last.begin());
    kind.last.push_back(ms / predicted(pass));
    times_as_long_.at(pass.together ? 1 : 0)[static_cast<double>(bucket)] = median(kind.last);
}

double StepLatencyModel::expected_ms(const PassWork& pass) const {
    const auto& [as_decode_rows, together] = times_as_long_;
    const bool known = pass.together && !together.empty();
    const auto size = static_cast<double>(known ? size_of(pass) : pass.tokens);
    return predicted(pass) *
           (as_decode_rows.empty() && !known ? 1 : planner::rate_at(known ? together : as_decode_rows, size));
}

ChunkedPrefillPolicy chunked_prefill_policy(std::shared_ptr<const StepLatencyModel> times,
                                            const ChunkedPrefillBounds& bounds) {
    return [times = std::move(times), bounds](int64_t rows, int64_t keys, int64_t cached) {
        const double longest = bounds.longest * times->expected_ms({rows, rows, keys});
        Choice least, as_decode_rows, together;
        const auto consider = [&](Choice& most, const Choice& one) {
            if (least.ms == 0 || one.ms < least.ms) least = one;
            if (one.ms <= longest && (most.ms == 0 || one.chunk.tokens > most.chunk.tokens)) most = one;
        };
        for (int64_t bucket = bucket_of(rows + 1); bucket <= rows + bounds.most; bucket = bucket_of(bucket + 1)) {
            const int64_t tokens = bucket - rows, read = tokens * cached + tokens * (tokens + 1) / 2;
            consider(as_decode_rows,
                     {{tokens, /*as_decode_rows=*/true}, times->expected_ms({bucket, rows, keys + read})});
        }
        for (int64_t tokens = bounds.most_together; tokens >= bounds.fewest_together; tokens /= 2) {
            const PassWork pass{rows + tokens, rows, keys + cached + tokens, /*together=*/true};
            consider(together, {{tokens, /*as_decode_rows=*/false}, times->expected_ms(pass)});
        }
        if (as_decode_rows.ms == 0 && together.ms == 0) return least.chunk;
        const int64_t enough = together.ms > 0 ? std::min(bounds.fewest_as_decode_rows, together.chunk.tokens / 2) : 1;
        return as_decode_rows.ms > 0 && as_decode_rows.chunk.tokens >= enough ? as_decode_rows.chunk : together.chunk;
    };
}

}  // namespace unsloth::generate
