// Pairs of answers, formatted one at a time.
#pragma once

#include <nlohmann/json.hpp>

#include "data/toy.h"
#include "unsloth/data/loader.h"
#include "unsloth/data/reader.h"

namespace unsloth::data {

inline RowOptions options_of(config::Objective objective) {
    RowOptions options;
    options.objective = objective;
    return options;
}

inline const RowOptions dpo = options_of(config::Objective::dpo);

inline FormattedRow pair_row(const std::string& row, const RowOptions& options = dpo) {
    const nlohmann::ordered_json columns = parse_row(row);
    return RowFormatter(detect_format(columns, /*pairs=*/true), options, &toy::encoder).format(columns);
}

inline std::string pair_refusal(const std::string& row, const RowOptions& options = dpo) {
    try {
        pair_row(row, options);
    } catch (const BadRow& bad) {
        return bad.message + "\n" + bad.advice;
    }
    ADD_FAILURE() << row;
    return {};
}

/// The segments' {prompt, answer}, without what is not of bytes.
inline std::vector<std::pair<std::string, std::string>> texts_of_pair(const FormattedRow& row) {
    std::vector<std::pair<std::string, std::string>> segments;
    for (std::size_t t = 0; t < row.ids.size(); ++t) {
        if (row.positions[t] == 0) segments.emplace_back();
        if (row.ids[t] < toy::first_byte) continue;
        const char c = static_cast<char>(row.ids[t] - toy::first_byte);
        (row.labels[t] == ignore_label ? segments.back().first : segments.back().second) += c;
    }
    return segments;
}

using Texts = std::vector<std::pair<std::string, std::string>>;

}  // namespace unsloth::data
