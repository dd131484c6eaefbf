// Rows of a pass: completions of one prompt share its tokens.
#include <algorithm>
#include <functional>
#include <numeric>

#include "unsloth/core/error.h"
#include "unsloth/rollouts/generation.h"

namespace unsloth::rollouts {
namespace {

/// Adds a completion to a sample of its prompt.
void add_completion(data::Sample& sample, const std::vector<int32_t>& prompt, const std::vector<int32_t>& ids) {
    const auto begin = static_cast<int32_t>(sample.ids.size()), length = static_cast<int32_t>(ids.size()),
               shared = static_cast<int32_t>(prompt.size());
    if (sample.segments.empty()) sample.segments.push_back({0, begin});
    sample.segments.push_back({begin, length, 0, shared});
    sample.ids.insert(sample.ids.end(), ids.begin(), ids.end());
    sample.labels.insert(sample.labels.end(), ids.begin(), ids.end());
    sample.positions.resize(sample.ids.size());
    std::iota(sample.positions.begin() + begin, sample.positions.end(), shared);
}

int64_t sum_of_most(std::vector<int64_t> values, int64_t count) {
    count = std::min(count, static_cast<int64_t>(values.size()));
    std::partial_sort(values.begin(), values.begin() + count, values.end(), std::greater<>());
    return std::accumulate(values.begin(), values.begin() + count, int64_t{0});
}

/// Samples that samples_of() makes of completions [first, first + count) of `rows`, which are numbers in a generation.
int64_t samples_among(const std::vector<int64_t>& rows, std::size_t first, std::size_t count, int64_t group_size) {
    int64_t samples = 0;
    for (std::size_t i = first; i < std::min(rows.size(), first + count); ++i)
        if (i == first || rows[i] != rows[i - 1] + 1 || rows[i] % group_size == 0) ++samples;
    return samples;
}

/// The most samples of a pass, of training and of scores.
int64_t most_samples(const RolloutOrder& order, int ranks, std::size_t pass_rows) {
    int64_t most = 1;
    const auto each = static_cast<std::size_t>(order.rows_each / ranks);
    for (int rank = 0; rank < ranks; ++rank) {
        std::vector<int64_t> trained, scored(static_cast<std::size_t>(order.rows() / ranks));
        for (int64_t slice = 0; slice < order.slices; ++slice)
            for (std::size_t j = 0; j < each; ++j)
                trained.push_back(slice * order.rows_each + static_cast<int64_t>(rank * each + j));
        std::iota(scored.begin(), scored.end(), order.rows() * rank / ranks);
        for (std::size_t first = 0; first < scored.size(); first += pass_rows)
            most = std::max(most, samples_among(scored, first, pass_rows, order.group_size));
        for (std::size_t begin = 0; begin < trained.size(); begin += each)  // a step may begin with any slice
            for (std::size_t first = begin; first < trained.size(); first += pass_rows)
                most = std::max(most, samples_among(trained, first, pass_rows, order.group_size));
    }
    return most;
}

}  // namespace

std::vector<data::Sample> samples_of(std::span<const std::shared_ptr<const data::SampledRow>> rows,
                                     std::span<const std::size_t> places, int64_t most) {
    UNSLOTH_CHECK(rows.size() == places.size(), rows.size(), " rows at ", places.size(), " places");
    std::vector<data::Sample> samples;
    int64_t completions = 0;  // of the last sample
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const bool follows =
            i > 0 && completions < most && places[i] == places[i - 1] + 1 && rows[i]->prompt == rows[i - 1]->prompt;
        if (follows) {
            add_completion(samples.back(), rows[i]->prompt, rows[i]->ids);
            ++completions;
        } else {
            samples.push_back(sample_of(rows[i]->prompt, rows[i]->ids, static_cast<int64_t>(places[i])));
            completions = 1;
        }
    }
    return samples;
}

data::BatchLimits pass_limits(const data::Dataset& rows, const RolloutOrder& order, int ranks, int64_t pass_rows) {
    std::vector<int64_t> prompts, completions, wholes;
    // Rows of a group that are a rank's but not one after another have copies of the prompt.
    const int64_t each = order.rows_each / ranks,
                  copies = ranks == 1 ? 1 : std::max<int64_t>(1, (order.group_size + each - 1) / each);
    data::BatchLimits limits{.segments = pass_rows};
    for (int64_t i = 0; i < rows.size(); ++i) {
        completions.push_back(rows.targets(i));
        wholes.push_back(rows.tokens(i));
        limits.longest = std::max(limits.longest, rows.tokens(i));
        if (i % order.group_size == 0) prompts.insert(prompts.end(), copies, rows.tokens(i) - rows.targets(i));
    }
    limits.labels = sum_of_most(std::move(completions), pass_rows);
    if (order.of_sample == 1) {  // no row has another one's prompt
        limits.tokens = sum_of_most(std::move(wholes), pass_rows);
        return limits;
    }
    limits.copies = std::max(limits.copies, order.group_size);
    limits.tokens = limits.labels +
                    sum_of_most(std::move(prompts), most_samples(order, ranks, static_cast<std::size_t>(pass_rows)));
    limits.keys = std::max(limits.tokens, sum_of_most(std::move(wholes), pass_rows));
    return limits;
}

}  // namespace unsloth::rollouts
