#include "data/store.h"

#include <algorithm>
#include <numeric>

#include "unsloth/core/error.h"

namespace unsloth {
namespace {

template <class T>
void extend(std::vector<T>& to, const std::vector<T>& from) {
    to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

void Dataset::Store::append(const FormattedRow& row, int64_t source_row) {
    UNSLOTH_CHECK(row.labels.size() == row.ids.size(), "row ", source_row);
    UNSLOTH_CHECK(row.positions.empty() || row.positions.size() == row.ids.size(), "row ", source_row);
    extend(ids, row.ids);
    extend(labels, row.labels);
    offsets.push_back(static_cast<int64_t>(ids.size()));
    position_starts.push_back(row.positions.empty() ? implied : static_cast<int64_t>(positions.size()));
    extend(positions, row.positions);
    source_rows.push_back(source_row);
    targets.push_back(static_cast<int32_t>(row.targets));
    truncated.push_back(row.truncated);
}

void Dataset::Store::append(const Store& other) {
    const auto tokens_before = static_cast<int64_t>(ids.size());
    const auto positions_before = static_cast<int64_t>(positions.size());
    for (std::size_t i = 1; i < other.offsets.size(); ++i)
        offsets.push_back(tokens_before + other.offsets[i]);
    for (const int64_t start : other.position_starts)
        position_starts.push_back(start == implied ? implied : positions_before + start);
    extend(ids, other.ids);
    extend(labels, other.labels);
    extend(positions, other.positions);
    extend(source_rows, other.source_rows);
    extend(targets, other.targets);
    extend(truncated, other.truncated);
}

Sample Dataset::Store::sample(int64_t i) const {
    const auto at = static_cast<std::size_t>(i);
    const int64_t begin = offsets[at], end = offsets[at + 1];
    Sample sample;
    sample.row = source_rows[at];
    sample.ids.assign(ids.begin() + begin, ids.begin() + end);
    sample.labels.assign(labels.begin() + begin, labels.begin() + end);
    sample.positions.resize(sample.ids.size());
    if (position_starts[at] == implied)
        std::iota(sample.positions.begin(), sample.positions.end(), 0);
    else
        std::copy_n(positions.begin() + position_starts[at], end - begin, sample.positions.begin());
    return sample;
}

DatasetStats Dataset::Store::count(const std::vector<int64_t>& chosen) const {
    DatasetStats stats;
    stats.rows = static_cast<int64_t>(chosen.size());
    for (const int64_t i : chosen) {
        const auto at = static_cast<std::size_t>(i);
        const int64_t length = offsets[at + 1] - offsets[at];
        stats.tokens += length;
        stats.longest = std::max(stats.longest, length);
        stats.trained_tokens += targets[at];
        stats.truncated_rows += truncated[at];
    }
    return stats;
}

}  // namespace unsloth
