#include "unsloth/data/format.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "data/columns.h"
#include "data/conversation.h"
#include "data/preference.h"
#include "data/row_images.h"
#include "data/tokenized_row.h"
#include "unsloth/core/error.h"
#include "unsloth/data/batch.h"
#include "unsloth/data/reader.h"

namespace unsloth::data {
namespace {

using Json = nlohmann::ordered_json;

void truncate(FormattedRow& row, std::size_t limit) {
    for (auto* values : {&row.ids, &row.labels, &row.positions})
        if (values->size() > limit) values->resize(limit);
    row.segments = cut(row.segments, 0, limit);
    row.truncated = true;
}

/// Tokens [begin, end) of a row. The positions of the segment that is cut begin at 0.
FormattedRow slice(const FormattedRow& row, std::size_t begin, std::size_t end) {
    const auto part = [&](const std::vector<int32_t>& values) {
        const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin);
        return values.empty() ? values : std::vector<int32_t>(first, first + static_cast<std::ptrdiff_t>(end - begin));
    };
    FormattedRow piece;
    piece.ids = part(row.ids);
    piece.labels = part(row.labels);
    piece.positions = part(row.positions);
    piece.segments = cut(row.segments, begin, end);
    if (piece.positions.empty()) return piece;
    const int32_t base = piece.positions.front();
    const auto first = static_cast<std::size_t>(listed(piece.segments, piece.ids.size()).front().length);
    for (std::size_t t = 0; t < first; ++t) piece.positions[t] -= base;
    return piece;
}

}  // namespace

std::string format_name(config::DataFormat format) {
    switch (format) {
        case config::DataFormat::automatic:
            return "auto";
        case config::DataFormat::tokenized:
            return "tokenized";
        case config::DataFormat::alpaca:
            return "alpaca";
        case config::DataFormat::messages:
            return "messages";
        case config::DataFormat::sharegpt:
            return "sharegpt";
        case config::DataFormat::prompt_completion:
            return "prompt_completion";
        case config::DataFormat::preference:
            return "preference";
        case config::DataFormat::text:
            return "text";
        case config::DataFormat::decision:
            return "decision";
    }
    UNSLOTH_CHECK(false, "format ", static_cast<int>(format));
}

config::DataFormat detect_format(const Json& row, bool pairs) {
    const auto of_ids = [&](const char* column) { return present(row, column) && is_ids(row[column]); };
    const bool is_pair = (present(row, "chosen") && present(row, "rejected")) ||
                         (present(row, "preferred_output") && present(row, "non_preferred_output"));
    const auto of_pair = of_ids("chosen") ? config::DataFormat::tokenized : config::DataFormat::preference;
    if (present(row, "input_ids")) return config::DataFormat::tokenized;
    if (present(row, "input") && present(row, "question") && row["question"].is_object() &&
        (present(row, "answer") || present(row, "probabilities")))
        return config::DataFormat::decision;
    if (pairs && is_pair) return of_pair;
    if (present(row, "messages")) return config::DataFormat::messages;
    if (present(row, "conversations")) return config::DataFormat::sharegpt;
    if (is_pair) return of_pair;
    if (present(row, "instruction") && present(row, "output")) return config::DataFormat::alpaca;
    if (present(row, "prompt") && present(row, "completion"))
        return of_ids("completion") ? config::DataFormat::tokenized : config::DataFormat::prompt_completion;
    if (present(row, "text")) return config::DataFormat::text;

    std::string advice =
        "Known are {input_ids, labels?, position_ids?}, {messages: [{role, content}]}, {conversations: [{from, "
        "value}]}, "
        "{instruction, input?, output, system?}, {prompt, completion}, {chosen, rejected}, {input, question, answer} "
        "and {text}. data.columns "
        "renames columns";
    const auto rename = [&](const char* first, const char* second) {
        advice += cat(": data.columns: {\"instruction\": \"", first, "\", \"output\": \"", second, "\"}");
    };
    const auto first_of = [&](std::initializer_list<const char*> names) -> const char* {
        const auto found =
            std::find_if(names.begin(), names.end(), [&](const char* name) { return present(row, name); });
        return found == names.end() ? nullptr : *found;
    };
    const char* const asked = first_of({"instruction", "question", "query", "prompt", "input", "user"});
    const char* const answered =
        first_of({"output", "response", "answer", "completion", "chosen", "answers", "target", "assistant"});
    if (asked != nullptr && answered != nullptr) rename(asked, answered);
    std::string columns;
    for (const auto& [name, value] : row.items())
        columns += cat(columns.empty() ? "" : ", ", name, value.is_null() ? " (null)" : "");
    throw BadRow{"data.unknown-format",
                 cat("cannot tell the format from the columns (", columns.empty() ? "none" : columns, ")"),
                 advice + "."};
}

RowFormatter::RowFormatter(config::DataFormat format, const RowOptions& options, const RowEncoder* encoder)
    : format_(format), options_(options), encoder_(encoder) {
    UNSLOTH_CHECK(format != config::DataFormat::automatic, "the format must be known by now");
    check_kind();
    if (format != config::DataFormat::tokenized && encoder == nullptr)
        throw Error("tokenizer.not-found",
                    cat("rows of format ", format_name(format), " need a tokenizer, and the model folder has none"),
                    "Put the model's tokenizer.json next to its weights, or bring rows {input_ids, labels}.");
}

/// Whether the objective learns from rows of the format.
void RowFormatter::check_kind() const {
    using config::DataFormat;
    using config::ExampleKind;
    const config::ObjectiveTraits& traits = config::traits_of(options_.objective);
    const DataFormat format = format_;
    if ((traits.examples == ExampleKind::decisions) != (format == DataFormat::decision))
        throw Error("data.wrong-objective",
                    cat("training.objective is ", traits.name, ", and the rows are of format ", format_name(format)),
                    "Rows of format decision are {input, question, answer} or {input, question, probabilities}. "
                    "training.objective decision takes these, and no others.");
    if (!compares_completions(options_.objective) && format == DataFormat::preference)
        throw Error(
            "data.wrong-objective",
            cat("rows of format preference (chosen, rejected) are for training.objective dpo or orpo, and it is ",
                traits.name),
            "To fine-tune on the chosen answers alone: data.columns: {\"completion\": \"chosen\"} together with a "
            "column "
            "prompt.");
    if (traits.examples == ExampleKind::pairs && format != DataFormat::preference && format != DataFormat::tokenized)
        throw Error("data.wrong-objective",
                    cat("training.objective dpo and orpo learn from pairs of answers, and the rows are of format ",
                        format_name(format)),
                    "Rows of pairs are {prompt, chosen, rejected}; data.columns renames columns.");
    if (traits.examples == ExampleKind::judged && (format == DataFormat::preference || format == DataFormat::text))
        throw Error("data.wrong-objective",
                    cat("training.objective kto learns from answers with a verdict, and the rows are of format ",
                        format_name(format)),
                    "Rows for it are {prompt, completion, label}, or conversations and instructions with a column "
                    "label or kto_tag; data.columns renames columns.");
}

FormattedRow RowFormatter::format(const Json& row, const std::filesystem::path& folder) const {
    const bool talks = format_ == config::DataFormat::messages || format_ == config::DataFormat::sharegpt ||
                       format_ == config::DataFormat::prompt_completion;
    switch (config::traits_of(options_.objective).examples) {
        case config::ExampleKind::targets:
            return talks && has_image_places(row) ? with_images(row, folder) : supervised(row);
        case config::ExampleKind::pairs:
            return pair(row, folder);
        case config::ExampleKind::judged:
            return judged(row, folder);
        case config::ExampleKind::decisions:
            return decision(row);
        case config::ExampleKind::prompts:
            throw BadRow{"data.wrong-objective", "rows for training.objective grpo are prompts, which a run completes",
                         "Examples are made of "
                         "them while it trains."};
    }
    UNSLOTH_CHECK(false, "objective ", static_cast<int>(options_.objective));
}

void RowFormatter::require_encoder() const {
    if (encoder_ == nullptr)
        throw BadRow{"data.mixed-formats", "the row is of text, and those before it were of ids",
                     "All rows of a file are of one form."};
}

/// A row {prompt, completion} whose completion is trained.
FormattedRow RowFormatter::answer(const Json& row, const std::filesystem::path& folder) const {
    if (has_image_places(row)) return with_images(row, folder);
    const Json& completion = required(row, "completion", format_);
    std::vector<bool> in_loss;
    if (!is_ids(completion)) {
        require_encoder();
        EncodedRow ids = encode_prompt_completion(row, in_loss);
        return encoded(std::move(ids), in_loss);
    }
    EncodedRow ids;
    ids.ids = integers(required(row, "prompt", format_), "prompt");
    const auto begin = static_cast<int32_t>(ids.ids.size());
    for (const int32_t id : integers(completion, "completion")) ids.ids.push_back(id);
    ids.trained.emplace_back(begin, static_cast<int32_t>(ids.ids.size()));
    return encoded(std::move(ids));
}

FormattedRow RowFormatter::supervised(const Json& row) const {
    std::vector<bool> in_loss;
    switch (format_) {
        case config::DataFormat::tokenized:
            return tokenized(row);
        case config::DataFormat::alpaca: {
            EncodedRow ids = encode_instruction(row, in_loss);
            return encoded(std::move(ids), in_loss);
        }
        case config::DataFormat::prompt_completion:
        case config::DataFormat::messages:
        case config::DataFormat::sharegpt: {
            EncodedRow ids = conversation(row, in_loss);
            return encoded(std::move(ids), in_loss);
        }
        case config::DataFormat::text: {
            EncodedRow ids = encoder_->text(as_string(required(row, "text", format_), "column \"text\""));
            ids.doubts |= unread_columns(row, {});
            return encoded(std::move(ids));
        }
        case config::DataFormat::preference:
        case config::DataFormat::decision:
        case config::DataFormat::automatic:
            break;
    }
    UNSLOTH_CHECK(false, "format ", static_cast<int>(format_));
}

/// A row of messages, or of a prompt and a completion.
EncodedRow RowFormatter::conversation(const Json& row, std::vector<bool>& in_loss) const {
    if (format_ == config::DataFormat::prompt_completion) return encode_prompt_completion(row, in_loss);
    const bool openai = format_ == config::DataFormat::messages;
    EncodedRow ids =
        encode_conversation(openai ? openai_conversation(row, reads()) : sharegpt_conversation(row, reads()), in_loss);
    ids.doubts |= unread_columns(row, {"system", "tools"});
    return ids;
}

std::function<bool(std::string_view)> RowFormatter::reads() const {
    return [this](std::string_view column) { return column != provenance_column && encoder_->reads(column); };
}

EncodedRow RowFormatter::encode_instruction(const Json& row, std::vector<bool>& in_loss) const {
    const auto of_sections = [&] {
        for (const char* column : {"history", "tools"})
            if (says_something(row, column))
                throw BadRow{"template.omits-content",
                             cat("column \"", column, "\": the \"### Instruction:\" prompt has no place for it"),
                             "data.template default gives such rows to the model's chat template, as messages."};
        AlpacaFields fields;
        fields.instruction = as_string(required(row, "instruction", format_), "column \"instruction\"");
        fields.output = as_string(required(row, "output", format_), "column \"output\"");
        fields.input = optional_string(row, "input");
        fields.system = optional_string(row, "system");
        return encoder_->alpaca(fields);
    };
    const bool talks = encoder_->instruction_form() == InstructionForm::conversation;
    EncodedRow ids = talks ? encode_conversation(alpaca_conversation(row, reads()), in_loss) : of_sections();
    ids.doubts |= unread_columns(row, {"system", "history", "tools"});
    return ids;
}

EncodedRow RowFormatter::encode_prompt_completion(const Json& row, std::vector<bool>& in_loss) const {
    const Json& prompt = required(row, "prompt", format_);
    const Json& completion = required(row, "completion", format_);
    const bool talks = holds_messages(prompt) || holds_messages(completion);
    EncodedRow ids = talks ? encode_conversation(prompt_completion_conversation(row, reads()), in_loss)
                           : encoder_->prompt_completion(as_string(prompt, "column \"prompt\""),
                                                         as_string(completion, "column \"completion\""));
    ids.doubts |= talks ? unread_columns(row, {"system", "tools"}) : unread_columns(row, {});
    return ids;
}

/// `in_loss`: whether each trained span still counts for the loss; empty: all do.
EncodedRow RowFormatter::encode_conversation(WeightedConversation row, std::vector<bool>& in_loss) const {
    const Conversation& conversation = row.conversation;
    EncodedRow ids =
        conversation.row ? encoder_->whole_conversation(conversation) : encoder_->messages(conversation.turns);
    if (!row.names_weights && !options_.train_on_last_turn_only) return ids;
    if (ids.trained.size() != row.in_loss.size())
        throw BadRow{"template.unclear-turns",
                     cat("the chat template marks ", ids.trained.size(), " of the ", row.in_loss.size(),
                         " assistant turns as trained: weights of messages cannot be matched with them"),
                     "Remove the weights and data.train_on_last_turn_only, or choose another data.template."};
    in_loss = std::move(row.in_loss);
    if (options_.train_on_last_turn_only && !in_loss.empty()) std::fill(in_loss.begin(), in_loss.end() - 1, false);
    return ids;
}

FormattedRow RowFormatter::encoded(EncodedRow row, const std::vector<bool>& in_loss) const {
    if (row.ids.empty()) throw BadRow{"data.empty-row", "the row gives no tokens", ""};
    FormattedRow result;
    result.ids = std::move(row.ids);
    result.doubts = row.doubts;
    if (options_.train_on_prompt)
        result.labels = result.ids;
    else
        result.labels.assign(result.ids.size(), ignore_label);
    for (std::size_t span = 0; span < row.trained.size(); ++span) {
        const auto [begin, end] = row.trained[span];
        UNSLOTH_CHECK(0 <= begin && begin <= end && end <= static_cast<int32_t>(result.ids.size()), "trained span [",
                      begin, ", ", end, ") of ", result.ids.size(), " tokens");
        if (in_loss.empty() || in_loss[span])
            std::copy(result.ids.begin() + begin, result.ids.begin() + end, result.labels.begin() + begin);
        else
            std::fill(result.labels.begin() + begin, result.labels.begin() + end, ignore_label);
    }
    result.images = std::move(row.images);
    result.sources = std::move(row.sources);
    for (const Image& image : result.images)
        std::fill_n(result.labels.begin() + image.first, options_.vision->tokens_of(image), ignore_label);
    check_all_ids(result, true);
    finish(result);
    return result;
}

bool RowFormatter::splits() const {
    return options_.long_rows == config::LongRows::split ||
           (options_.long_rows == config::LongRows::automatic && format_ == config::DataFormat::text);
}

void RowFormatter::for_each_piece(const FormattedRow& row, const std::function<void(const FormattedRow&)>& use) const {
    const auto limit = static_cast<std::size_t>(options_.max_seq_length), size = row.ids.size();
    UNSLOTH_CHECK(limit > 1 && size > limit, size, " tokens in pieces of ", limit);
    const auto begins_segment = [&](std::size_t t) {
        return std::any_of(row.segments.begin(), row.segments.end(),
                           [&](const Segment& segment) { return segment.begin == static_cast<int32_t>(t); });
    };
    int32_t number = 0;
    for (std::size_t begin = 0, end = 0; end < size;) {
        begin = end == 0 || begins_segment(end) ? end : end - 1;
        const bool repeats = begin < end;
        end = std::min(begin + limit, size);
        FormattedRow piece = slice(row, begin, end);
        if (repeats) piece.labels.front() = ignore_label;
        piece.targets = count_targets(piece.labels, piece.segments);
        piece.split = true;
        check_reach(piece);
        if (row.targets > 0 && piece.targets == 0) continue;
        if (static_cast<int64_t>(piece.ids.size()) < options_.min_length) continue;
        piece.piece = number++;
        use(piece);
    }
}

void RowFormatter::finish(FormattedRow& row) const {
    const auto limit = static_cast<std::size_t>(options_.max_seq_length);
    const bool long_row = options_.max_seq_length > 0 && row.ids.size() > limit;
    row.too_short = static_cast<int64_t>(row.ids.size()) < options_.min_length;
    row.too_long = long_row && limit > 1 && (splits() || options_.long_rows == config::LongRows::drop);
    if (row.too_long && splits() && !row.images.empty())
        throw BadRow{"data.row-too-long",
                     cat("the row has images and ", row.ids.size(), " tokens, and model.max_seq_length is ", limit),
                     "Rows with images are not split: raise it, or set data.overflow_strategy to drop."};
    if (long_row && !row.too_long) {
        truncate(row, limit);
        cut_images(row);
    }
    if (!row.too_long) check_reach(row);
    row.targets = count_targets(row.labels, row.segments);
}

void RowFormatter::check_reach(const FormattedRow& row) const {
    const int64_t last = row.positions.empty() ? static_cast<int64_t>(row.ids.size()) - 1
                                               : *std::max_element(row.positions.begin(), row.positions.end());
    if (options_.max_positions > 0 && last >= options_.max_positions)
        throw BadRow{"data.row-too-long",
                     cat("the row has ", row.ids.size(), " tokens and reaches position ", last, "; the model allows ",
                         options_.max_positions, " positions (max_position_embeddings)"),
                     cat("Set model.max_seq_length to ", options_.max_positions,
                         " or less, so that rows are cut or split (data.overflow_strategy), or scale the positions "
                         "(model.rope_scaling).")};
}

}  // namespace unsloth::data
