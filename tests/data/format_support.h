// One row at a time.
#pragma once

#include "unsloth/data/format.h"

#include "data/toy.h"
#include "unsloth/data/reader.h"

namespace unsloth::data {

inline constexpr int32_t masked = ignore_label;

inline FormattedRow format_row(config::DataFormat format, const std::string& row, const RowOptions& options = {}) {
    return RowFormatter(format, options, &toy::encoder).format(parse_row(row));
}

inline std::string row_refusal(config::DataFormat kind, const std::string& row, const RowOptions& options = {}) {
    try {
        format_row(kind, row, options);
    } catch (const BadRow& bad) {
        return bad.message + "\n" + bad.advice;
    }
    ADD_FAILURE() << row;
    return {};
}

}  // namespace unsloth::data
