#include "data/tokenized_row.h"

#include <algorithm>
#include <limits>

#include "data/columns.h"
#include "unsloth/core/error.h"
#include "unsloth/data/batch.h"
#include "unsloth/data/format.h"
#include "unsloth/data/reader.h"

namespace unsloth::data {

using Json = nlohmann::ordered_json;

std::vector<int32_t> integers(const Json& value, const char* column) {
    if (!value.is_array())
        throw BadRow{"data.column-type",
                     cat("column \"", column, "\": expected an array of integers, found ", shown(value)), ""};
    std::vector<int32_t> result;
    result.reserve(value.size());
    for (const Json& element : value) {
        const bool integer = element.is_number_integer();
        const bool fits =
            integer &&
            (!element.is_number_unsigned() || element.get<uint64_t>() <= std::numeric_limits<int32_t>::max()) &&
            element.get<int64_t>() >= std::numeric_limits<int32_t>::min();
        if (!fits)
            throw BadRow{"data.column-type",
                         cat(column, "[", result.size(), "]: expected ", integer ? "a 32-bit integer" : "an integer",
                             ", found ", shown(element)),
                         ""};
        result.push_back(element.get<int32_t>());
    }
    return result;
}

namespace {

void check_length(const std::vector<int32_t>& values, const char* column, std::size_t tokens) {
    if (values.size() != tokens)
        throw BadRow{"data.token-columns",
                     cat("\"", column, "\" has ", values.size(), " elements, \"input_ids\" has ", tokens),
                     "They stand side by side: element t belongs to token t (labels are not shifted; -100 is "
                     "not trained)."};
}

/// Tokens that an attention_mask hides are padding: they go, so that no position sees them.
void remove_padding(FormattedRow& row, const std::vector<int32_t>& mask) {
    const auto shown_token = [](int32_t m) { return m != 0; };
    const auto first = std::find_if(mask.begin(), mask.end(), shown_token) - mask.begin();
    const auto last = mask.rend() - std::find_if(mask.rbegin(), mask.rend(), shown_token);
    if (first >= last) throw BadRow{"data.token-columns", "attention_mask hides every token", ""};
    if (std::find(mask.begin() + first, mask.begin() + last, 0) != mask.begin() + last)
        throw BadRow{"data.token-columns", "attention_mask hides tokens between others",
                     "Only padding at the ends may be masked; separate documents by position_ids that begin "
                     "at 0 again."};
    for (auto* values : {&row.ids, &row.labels, &row.positions}) {
        if (values->empty()) continue;
        values->resize(static_cast<std::size_t>(last));
        values->erase(values->begin(), values->begin() + first);
    }
}

/// As in TRL: what a mask has at 0 is no target.
void hide_labels(std::vector<int32_t>& labels, const std::vector<int32_t>& mask, const char* column) {
    for (std::size_t t = 0; t < mask.size(); ++t) {
        if (mask[t] != 0 && mask[t] != 1)
            throw BadRow{"data.token-columns", cat(column, "[", t, "]: expected 0 or 1, found ", mask[t]), ""};
        if (mask[t] == 0) labels[t] = ignore_label;
    }
}

/// `labels_below`: labels are ids below it; 0 as of vocab_size: whatever fits.
void check_ids(const FormattedRow& row, int64_t vocab_size, int64_t labels_below, bool from_tokenizer) {
    const auto limit_of = [](int64_t size) {
        return size > 0 ? size : int64_t{std::numeric_limits<int32_t>::max()} + 1;
    };
    int64_t limit = limit_of(vocab_size);
    const auto outside = [&](int32_t id) { return id < 0 || id >= limit; };
    for (std::size_t t = 0; t < row.ids.size(); ++t)
        if (outside(row.ids[t]))
            throw BadRow{"data.token-columns",
                         cat(from_tokenizer ? "token " : "input_ids[", t, from_tokenizer ? "" : "]", " has id ",
                             row.ids[t], ", outside the model's vocabulary (0 ... ", limit - 1, ")"),
                         from_tokenizer ? "The tokenizer does not belong to this model." : ""};
    limit = limit_of(labels_below);
    for (std::size_t t = 0; t < row.labels.size(); ++t)
        if (row.labels[t] != ignore_label && outside(row.labels[t]))
            throw BadRow{"data.token-columns",
                         cat("labels[", t, "] is ", row.labels[t],
                             ": neither -100 nor an id of the model's vocabulary (0 ... ", limit - 1, ")"),
                         ""};
}

void check_positions(const std::vector<int32_t>& positions) {
    for (std::size_t t = 0; t < positions.size(); ++t) {
        if (positions[t] < 0)
            throw BadRow{"data.token-columns",
                         cat("position_ids[", t, "] is ", positions[t], ": it must not be negative"), ""};
        if (t > 0 && positions[t] != 0 && positions[t] <= positions[t - 1])
            throw BadRow{"data.token-columns",
                         cat("position_ids[", t, "] is ", positions[t], " after ", positions[t - 1],
                             ": positions rise within a segment, and a new segment begins at 0"),
                         ""};
    }
}

}  // namespace

FormattedRow RowFormatter::tokenized(const Json& row) const {
    if (!present(row, "input_ids") && present(row, "completion")) return answer(row);
    FormattedRow result;
    result.ids = integers(required(row, "input_ids", format_), "input_ids");
    if (result.ids.empty()) throw BadRow{"data.empty-row", "\"input_ids\" is empty", ""};
    result.labels = result.ids;
    const auto given = [&](const char* column, std::vector<int32_t>& values) {
        const auto found = row.find(column);
        if (found == row.end() || found->is_null()) return false;
        values = integers(*found, column);
        check_length(values, column, result.ids.size());
        return true;
    };
    given("labels", result.labels);
    given("position_ids", result.positions);
    std::vector<int32_t> mask;
    for (const char* column : {"completion_mask", "assistant_masks", "loss_mask"})
        if (given(column, mask)) hide_labels(result.labels, mask, column);
    if (given("attention_mask", mask)) remove_padding(result, mask);
    check_all_ids(result, false);
    check_positions(result.positions);
    result.segments = segments_at_zero(result.positions);
    if (result.ids.size() > 1 && result.ids[0] == options_.bos_id && result.ids[1] == options_.bos_id)
        result.doubts |= static_cast<uint32_t>(RowDoubt::double_bos);
    finish(result);
    return result;
}

/// With tiles the image token is above the ids that a model gives logits for: it is read, and never trained.
void RowFormatter::check_all_ids(FormattedRow& row, bool from_tokenizer) const {
    const bool tiles = options_.vision && !options_.vision->three_axes;
    if (tiles) std::ranges::replace(row.labels, options_.vision->image_token, ignore_label);
    check_ids(row, options_.vocab_size, tiles ? options_.vision->image_token : options_.vocab_size, from_tokenizer);
}

}  // namespace unsloth::data
