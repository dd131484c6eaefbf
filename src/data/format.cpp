#include "unsloth/data/format.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/data/batch.h"
#include "unsloth/data/reader.h"

namespace unsloth {
namespace {

using Json = nlohmann::json;

std::string column_list(const Json& row) {
    std::string names;
    for (const auto& [name, value] : row.items()) names += cat(names.empty() ? "" : ", ", name);
    return names.empty() ? "none" : names;
}

bool has(const Json& row, const char* column) {
    return row.contains(column);
}

/// A value as it may stand in an error message: short, whatever the row holds.
std::string shown(const Json& value) {
    if (value.is_array()) return cat("an array of ", value.size());
    if (value.is_object()) return "an object";
    std::string text = value.dump();
    constexpr std::size_t limit = 40;
    return text.size() <= limit ? text
           : value.is_string()  ? cat("a string of ", text.size(), " bytes")
                                : text.substr(0, limit);
}

const Json& required(const Json& row, const char* column, DataFormat format) {
    const auto found = row.find(column);
    if (found == row.end())
        throw BadRow{
            cat("column \"", column, "\" is missing; a row of format ", format_name(format),
                " needs it (found: ", column_list(row), ")"),
            "All rows of a file must have the format of the first, or the one that data.format names."};
    return *found;
}

const std::string& as_string(const Json& value, const std::string& where) {
    if (!value.is_string()) throw BadRow{cat(where, ": expected a string, found ", shown(value)), ""};
    return value.get_ref<const std::string&>();
}

/// A column that may be absent or null.
std::string optional_string(const Json& row, const char* column) {
    const auto found = row.find(column);
    if (found == row.end() || found->is_null()) return {};
    return as_string(*found, cat("column \"", column, "\""));
}

std::vector<int32_t> integers(const Json& value, const char* column) {
    if (!value.is_array())
        throw BadRow{cat("column \"", column, "\": expected an array of integers, found ", shown(value)), ""};
    std::vector<int32_t> result;
    result.reserve(value.size());
    for (const Json& element : value) {
        const bool integer = element.is_number_integer();
        const bool fits = integer &&
                          (!element.is_number_unsigned() ||
                           element.get<uint64_t>() <= std::numeric_limits<int32_t>::max()) &&
                          element.get<int64_t>() >= std::numeric_limits<int32_t>::min();
        if (!fits)
            throw BadRow{cat(column, "[", result.size(), "]: expected ",
                             integer ? "a 32-bit integer" : "an integer", ", found ", shown(element)),
                         ""};
        result.push_back(element.get<int32_t>());
    }
    return result;
}

void check_length(const std::vector<int32_t>& values, const char* column, std::size_t tokens) {
    if (values.size() != tokens)
        throw BadRow{cat("\"", column, "\" has ", values.size(), " elements, \"input_ids\" has ", tokens),
                     "They stand side by side: element t belongs to token t (labels are not shifted; -100 is "
                     "not trained)."};
}

/// Tokens that an attention_mask hides are padding: they go, so that no position sees them.
void remove_padding(FormattedRow& row, const std::vector<int32_t>& mask) {
    const auto shown_token = [](int32_t m) { return m != 0; };
    const auto first = std::find_if(mask.begin(), mask.end(), shown_token) - mask.begin();
    const auto last = mask.rend() - std::find_if(mask.rbegin(), mask.rend(), shown_token);
    if (first >= last) throw BadRow{"attention_mask hides every token", ""};
    if (std::find(mask.begin() + first, mask.begin() + last, 0) != mask.begin() + last)
        throw BadRow{"attention_mask hides tokens between others",
                     "Only padding at the ends may be masked; separate documents by position_ids that begin "
                     "at 0 again."};
    for (auto* values : {&row.ids, &row.labels, &row.positions}) {
        if (values->empty()) continue;
        values->resize(static_cast<std::size_t>(last));
        values->erase(values->begin(), values->begin() + first);
    }
}

void check_ids(const FormattedRow& row, int64_t vocab_size, bool from_tokenizer) {
    const int64_t limit = vocab_size > 0 ? vocab_size : int64_t{std::numeric_limits<int32_t>::max()} + 1;
    const auto outside = [&](int32_t id) { return id < 0 || id >= limit; };
    for (std::size_t t = 0; t < row.ids.size(); ++t)
        if (outside(row.ids[t]))
            throw BadRow{
                cat(from_tokenizer ? "token " : "input_ids[", t, from_tokenizer ? "" : "]", " has id ",
                    row.ids[t], ", outside the model's vocabulary (0 ... ", limit - 1, ")"),
                from_tokenizer ? "The tokenizer does not belong to this model." : ""};
    for (std::size_t t = 0; t < row.labels.size(); ++t)
        if (row.labels[t] != ignore_label && outside(row.labels[t]))
            throw BadRow{cat("labels[", t, "] is ", row.labels[t],
                             ": neither -100 nor an id of the model's vocabulary (0 ... ", limit - 1, ")"),
                         ""};
}

void check_positions(const std::vector<int32_t>& positions) {
    for (std::size_t t = 0; t < positions.size(); ++t) {
        if (positions[t] < 0)
            throw BadRow{cat("position_ids[", t, "] is ", positions[t], ": it must not be negative"), ""};
        if (t > 0 && positions[t] != 0 && positions[t] <= positions[t - 1])
            throw BadRow{cat("position_ids[", t, "] is ", positions[t], " after ", positions[t - 1],
                             ": positions rise within a segment, and a new segment begins at 0"),
                         ""};
    }
}

/// Targets of a row whose positions may be implied.
int64_t targets_of(const FormattedRow& row) {
    if (!row.positions.empty()) return count_targets(row.labels, row.positions);
    return std::count_if(row.labels.begin() + 1, row.labels.end(),
                         [](int32_t label) { return label != ignore_label; });
}

void cut(FormattedRow& row, int64_t max_seq_length) {
    const auto limit = static_cast<std::size_t>(max_seq_length);
    if (max_seq_length <= 0 || row.ids.size() <= limit) return;
    for (auto* values : {&row.ids, &row.labels, &row.positions})
        if (values->size() > limit) values->resize(limit);
    row.truncated = true;
}

}  // namespace

std::string format_name(DataFormat format) {
    switch (format) {
        case DataFormat::automatic:
            return "auto";
        case DataFormat::tokenized:
            return "tokenized";
        case DataFormat::alpaca:
            return "alpaca";
        case DataFormat::messages:
            return "messages";
        case DataFormat::text:
            return "text";
    }
    UNSLOTH_CHECK(false, "format ", static_cast<int>(format));
}

DataFormat detect_format(const Json& row) {
    if (has(row, "input_ids")) return DataFormat::tokenized;
    if (has(row, "messages")) return DataFormat::messages;
    if (has(row, "instruction") && has(row, "output")) return DataFormat::alpaca;
    if (has(row, "text")) return DataFormat::text;

    std::string advice =
        "Known are {input_ids, labels?, position_ids?}, {messages: [{role, content}]}, {instruction, input?, "
        "output, "
        "system?} and {text}.";
    if (has(row, "conversations"))
        advice +=
            " ShareGPT rows: jq -c '{messages: [.conversations[] | {role: ({human: \"user\", gpt: "
            "\"assistant\"}"
            "[.from] // .from), content: .value}]}' FILE > OUT";
    else if (has(row, "chosen") && has(row, "rejected"))
        advice += " These look like preference pairs, which are not for supervised fine-tuning.";
    else if (has(row, "prompt") && has(row, "completion"))
        advice += " Rename: jq -c '{instruction: .prompt, output: .completion}' FILE > OUT";
    else if (has(row, "question") && has(row, "answer"))
        advice += " Rename: jq -c '{instruction: .question, output: .answer}' FILE > OUT";
    throw BadRow{cat("cannot tell the format from the columns (", column_list(row), ")"), advice};
}

RowFormatter::RowFormatter(DataFormat format, const RowOptions& options, const RowEncoder* encoder)
    : format_(format), options_(options), encoder_(encoder) {
    UNSLOTH_CHECK(format != DataFormat::automatic, "the format must be known by now");
    if (format != DataFormat::tokenized && encoder == nullptr)
        throw input_error(
            cat("rows of format ", format_name(format), " need a tokenizer, and the model folder has none"),
            "Put the model's tokenizer.json beside its weights, or bring rows {input_ids, labels}.");
}

FormattedRow RowFormatter::format(const Json& row) const {
    switch (format_) {
        case DataFormat::tokenized:
            return tokenized(row);
        case DataFormat::alpaca:
            return encoded(encode_alpaca(row));
        case DataFormat::messages:
            return encoded(encode_messages(row));
        case DataFormat::text:
            return encoded(encoder_->text(as_string(required(row, "text", format_), "column \"text\"")));
        case DataFormat::automatic:
            break;
    }
    UNSLOTH_CHECK(false, "format ", static_cast<int>(format_));
}

EncodedRow RowFormatter::encode_alpaca(const Json& row) const {
    AlpacaFields fields;
    fields.instruction = as_string(required(row, "instruction", format_), "column \"instruction\"");
    fields.output = as_string(required(row, "output", format_), "column \"output\"");
    fields.input = optional_string(row, "input");
    fields.system = optional_string(row, "system");
    return encoder_->alpaca(fields);
}

EncodedRow RowFormatter::encode_messages(const Json& row) const {
    const Json& messages = required(row, "messages", format_);
    if (!messages.is_array() || messages.empty())
        throw BadRow{cat("column \"messages\": expected an array of {role, content}, found ",
                         messages.is_array() ? "an empty one" : shown(messages)),
                     ""};
    std::vector<Message> turns;
    for (const Json& message : messages) {
        const std::string where = cat("messages[", turns.size(), "]");
        if (!message.is_object())
            throw BadRow{cat(where, ": expected an object {role, content}, found ", shown(message)), ""};
        for (const char* key : {"role", "content"})
            if (!message.contains(key))
                throw BadRow{cat(where, ": \"", key, "\" is missing (found: ", column_list(message), ")"),
                             ""};
        turns.push_back(
            {as_string(message["role"], where + ".role"), as_string(message["content"], where + ".content")});
    }
    return encoder_->messages(turns);
}

FormattedRow RowFormatter::tokenized(const Json& row) const {
    FormattedRow result;
    result.ids = integers(required(row, "input_ids", format_), "input_ids");
    if (result.ids.empty()) throw BadRow{"\"input_ids\" is empty", ""};
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
    if (given("attention_mask", mask)) remove_padding(result, mask);
    check_ids(result, options_.vocab_size, false);
    check_positions(result.positions);
    finish(result);
    return result;
}

FormattedRow RowFormatter::encoded(EncodedRow row) const {
    if (row.ids.empty()) throw BadRow{"the row gives no tokens", ""};
    FormattedRow result;
    result.ids = std::move(row.ids);
    if (options_.train_on_prompt) {
        result.labels = result.ids;
    } else {
        result.labels.assign(result.ids.size(), ignore_label);
        for (const auto& [begin, end] : row.trained) {
            UNSLOTH_CHECK(0 <= begin && begin <= end && end <= static_cast<int32_t>(result.ids.size()),
                          "trained span [", begin, ", ", end, ") of ", result.ids.size(), " tokens");
            std::copy(result.ids.begin() + begin, result.ids.begin() + end, result.labels.begin() + begin);
        }
    }
    check_ids(result, options_.vocab_size, true);
    finish(result);
    return result;
}

void RowFormatter::finish(FormattedRow& row) const {
    cut(row, options_.max_seq_length);
    const int64_t last = row.positions.empty()
                             ? static_cast<int64_t>(row.ids.size()) - 1
                             : *std::max_element(row.positions.begin(), row.positions.end());
    if (options_.max_positions > 0 && last >= options_.max_positions)
        throw BadRow{
            cat("the row has ", row.ids.size(), " tokens and reaches position ", last, "; the model allows ",
                options_.max_positions, " positions (max_position_embeddings)"),
            cat("Set model.max_seq_length to ", options_.max_positions, " or less, so that rows are cut.")};
    row.targets = targets_of(row);
}

}  // namespace unsloth
