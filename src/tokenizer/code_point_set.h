// Sets of code points from the sorted ranges of unicode_tables.h.
#pragma once

#include <algorithm>
#include <bitset>
#include <vector>

#include "tokenizer/unicode_tables.h"

namespace unsloth::tokenizer::unicode {

/// The row of a table sorted by its first column that contains `c`, or null.
template <class Row>
const Row* find_range(const std::vector<Row>& table, char32_t c) {
    auto row = std::partition_point(table.begin(), table.end(), [c](const Row& r) { return r.last < c; });
    return row != table.end() && row->first <= c ? &*row : nullptr;
}

/// Membership of the basic plane as bits, because every character outside ASCII is looked up.
class CodePointSet {
  public:
    CodePointSet() = default;
    explicit CodePointSet(const std::vector<Range>& ranges) {
        for (const Range& range : ranges) insert(range.first, range.last);
        seal();
    }
    void insert(char32_t first, char32_t last) {
        for (char32_t c = first; c <= last && c < 0x10000; ++c) basic_.set(c);
        if (last >= 0x10000) beyond_.push_back({std::max<char32_t>(first, 0x10000), last});
    }
    /// After the last insertion.
    void seal() {
        std::sort(beyond_.begin(), beyond_.end(), [](Range a, Range b) { return a.first < b.first; });
        std::vector<Range> merged;  // without overlaps, which the search could not handle
        for (const Range& range : beyond_) {
            if (!merged.empty() && range.first <= merged.back().last + 1) {
                merged.back().last = std::max(merged.back().last, range.last);
            } else {
                merged.push_back(range);
            }
        }
        beyond_ = std::move(merged);
    }
    bool contains(char32_t c) const { return c < 0x10000 ? basic_[c] : find_range(beyond_, c) != nullptr; }

  private:
    std::bitset<0x10000> basic_;
    std::vector<Range> beyond_;
};

}  // namespace unsloth::tokenizer::unicode
