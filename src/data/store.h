// The tokens of many rows, flat.
#pragma once

#include <cstdint>
#include <vector>

#include "unsloth/data/dataset.h"

namespace unsloth {

struct Dataset::Store {
    std::vector<int32_t> ids;              ///< of all rows, one after another
    std::vector<int32_t> labels;           ///< in place, as long as ids
    std::vector<int64_t> offsets{0};       ///< [rows + 1] into ids and labels
    std::vector<int32_t> positions;        ///< of those rows alone that bring their own
    std::vector<int64_t> position_starts;  ///< [rows] into positions; implied: 0, 1, 2, ...
    std::vector<int64_t> source_rows;      ///< [rows]
    std::vector<int32_t> targets;          ///< [rows]
    std::vector<uint8_t> truncated;        ///< [rows]

    static constexpr int64_t implied = -1;

    int64_t rows() const { return static_cast<int64_t>(source_rows.size()); }
    void append(const FormattedRow& row, int64_t source_row);
    void append(const Store& other);
    Sample sample(int64_t i) const;
    DatasetStats count(const std::vector<int64_t>& rows) const;
};

}  // namespace unsloth
