// Parts of data sets in the words of Hugging Face's datasets: "train", "train[:20%]", "[100:500]", "train+test[:1%]".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unsloth::config {

/// One split, or a slice of its rows.
struct SplitPart {
    std::string name;                 ///< empty: the split that is read by default
    std::optional<int64_t> from, to;  ///< rows or percent; below 0: counted from the end
    bool percent = false;

    bool whole() const { return !from && !to; }
    /// Whether the number of all rows decides which rows it has.
    bool needs_count() const { return percent || from.value_or(0) < 0 || to.value_or(0) < 0; }
    /// The rows [first, second) of `rows`. Percent become rows rounded to the nearest one, halves to the even one.
    std::pair<int64_t, int64_t> range(int64_t rows) const;
};

/// Parts that `+` joins, in their order; an empty text is one part without a name. Usage Error, beginning with
/// `origin`, for anything else.
std::vector<SplitPart> parse_split(const std::string& text, const std::string& origin);

}  // namespace unsloth::config
