#include "data/preference.h"

#include <algorithm>
#include <string>

#include "data/columns.h"
#include "data/conversation.h"
#include "unsloth/core/error.h"
#include "unsloth/data/format.h"
#include "unsloth/data/reader.h"
#include "unsloth/tokenizer/ordered_row.h"

namespace unsloth::data {
namespace {

using Json = nlohmann::ordered_json;

enum class Kind { text, messages, ids };

Kind kind_of(const Json& value, const char* column) {
    if (value.is_string()) return Kind::text;
    if (is_ids(value)) return Kind::ids;
    if (value.is_array() && !value.empty() && value.front().is_object()) return Kind::messages;
    const bool empty = value.is_array() && value.empty();
    throw BadRow{"data.column-type",
                 cat("column \"", column, "\": expected a text, messages {role, content} or ids, found ",
                     empty ? "an empty list" : shown(value)),
                 empty ? "There is nothing in it to prefer, or to reject." : ""};
}

/// A column's value, with messages that a table holds as their JSON text parsed, and a single message as a list.
Json value_of(const Json& row, const char* column) {
    const Json& value = required(row, column, config::DataFormat::preference);
    if (value.is_object()) return Json::array({value});
    if (!value.is_string() || !value.get_ref<const std::string&>().starts_with('[')) return value;
    Json parsed = tokenizer::try_parse_ordered(value.get_ref<const std::string&>());
    const bool messages = parsed.is_array() && !parsed.empty() && parsed.front().is_object();
    return messages ? parsed : value;
}

std::size_t common_elements(const Json& a, const Json& b) {
    return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

Json elements(const Json& list, std::size_t begin, std::size_t end) {
    Json part = Json::array();
    for (std::size_t i = begin; i < end; ++i) part.push_back(list[i]);
    return part;
}

bool says_nothing(const Json& answer) {
    if (answer.is_string()) return answer.get_ref<const std::string&>().empty();
    const auto silent = [](const Json& message) {
        const auto content = message.is_object() ? message.find("content") : message.end();
        return message.is_object() && !message.contains("tool_calls") && !message.contains("function_call") &&
               (content == message.end() || content->is_null() || *content == "");
    };
    return std::all_of(answer.begin(), answer.end(), silent);
}

Json side(const Json& row, const Json& prompt, Json answer, const char* column) {
    if (says_nothing(answer))
        throw BadRow{"data.empty-answer", cat("the ", column, " answer is empty"),
                     "Both answers of a pair must say something."};
    Json result = row;
    result.erase("chosen");
    result.erase("rejected");
    result["prompt"] = prompt;
    result["completion"] = std::move(answer);
    return result;
}

[[noreturn]] void no_prompt(const Json& row) {
    throw BadRow{"data.no-prompt",
                 cat("the row has no prompt, and its answers have no common beginning (found: ", column_list(row), ")"),
                 "Add a column prompt, or the messages before the answers to both of them."};
}

/// Where answers part, with the role of each there.
void require_answers(const Json& chosen, const Json& rejected, std::size_t at) {
    const auto is_answer = [&](const Json& messages) {
        return messages[at].is_object() && messages[at].contains("role") && messages[at]["role"] == "assistant";
    };
    if (is_answer(chosen) && is_answer(rejected)) return;
    throw BadRow{"data.pair-mismatch",
                 cat("chosen[", at, "] and rejected[", at,
                     "] differ, and are not both of the assistant: the answers "
                     "are to different prompts"),
                 "The messages before the answers must be the same in both."};
}

/// What both answers begin with, taken from them.
Json implicit_prompt(const Json& row, Kind kind, Json& chosen, Json& rejected, const CommonPrompt& common_prompt) {
    const bool texts = kind == Kind::text;
    const std::size_t end =
        texts ? common_prompt(chosen.get_ref<const std::string&>(), rejected.get_ref<const std::string&>())
              : common_elements(chosen, rejected);
    if (end == 0) no_prompt(row);
    const auto size_of = [&](const Json& answer) {
        return texts ? answer.get_ref<const std::string&>().size() : answer.size();
    };
    for (const bool first : {true, false})
        if (size_of(first ? chosen : rejected) == end)
            throw BadRow{"data.no-prompt",
                         cat("the row has no prompt, and the ", first ? "chosen" : "rejected",
                             " answer is what the other one begins with: where the prompt ends is unknown"),
                         "Add a column prompt."};
    if (kind == Kind::messages) require_answers(chosen, rejected, end);
    const auto cut = [&](const Json& whole, std::size_t begin, std::size_t cut_end) -> Json {
        if (!texts) return elements(whole, begin, cut_end);
        return whole.get_ref<const std::string&>().substr(begin, cut_end - begin);
    };
    Json prompt = cut(chosen, 0, end);
    chosen = cut(chosen, end, size_of(chosen));
    rejected = cut(rejected, end, size_of(rejected));
    return prompt;
}

}  // namespace

bool is_ids(const Json& value) {
    return value.is_array() && !value.empty() && value.front().is_number_integer();
}

namespace {

/// A column's messages in OpenAI's words, where they are ShareGPT's.
void name_roles(Json& row, const char* column) {
    if (!holds(row, column)) return;
    Json value = value_of(row, column);
    if (!value.is_array()) return;
    for (std::size_t i = 0; i < value.size(); ++i)
        if (value[i].is_object() && value[i].contains("from"))
            value[i] = message_of(value[i], cat(column, "[", i, "]"));
    row[column] = std::move(value);
}

/// OpenAI's rows: {"input": {"messages", "tools"?}, "preferred_output", "non_preferred_output"}.
void name_openai_columns(Json& row) {
    if (!holds(row, "preferred_output") || holds(row, "chosen")) return;
    const Json input = required(row, "input", config::DataFormat::preference);
    if (!input.is_object() || !input.contains("messages"))
        throw BadRow{"data.column-type",
                     cat("column \"input\": expected an object {\"messages\"}, found ", shown(input)), ""};
    row["prompt"] = input["messages"];
    if (input.contains("tools") && !holds(row, "tools")) row["tools"] = input["tools"];
    row["chosen"] = required(row, "preferred_output", config::DataFormat::preference);
    row["rejected"] = required(row, "non_preferred_output", config::DataFormat::preference);
    for (const char* column : {"input", "preferred_output", "non_preferred_output"}) row.erase(column);
}

/// The conversation before the answers, from columns that say it in other ways: conversations or messages, or an
/// instruction (a question) with its input, after earlier turns; empty: none of them.
Json prompt_messages(const Json& row) {
    for (const char* column : {"conversations", "messages"})
        if (holds(row, column)) return value_of(row, column);
    for (const char* column : {"instruction", "question"})
        if (holds(row, column) || (row.contains(column) && holds(row, "input")))
            return instruction_messages(row, column);
    return Json::array();
}

/// Gives a row without a prompt the one that its other columns hold, and its answers the form of messages.
void find_prompt(Json& row) {
    const Json chosen = value_of(row, "chosen"), rejected = value_of(row, "rejected");
    const Kind kind = kind_of(chosen, "chosen");
    // Whole conversations bring their prompt themselves.
    if (kind == Kind::ids || (kind == Kind::messages && rejected.is_array() && common_elements(chosen, rejected) > 0))
        return;
    Json prompt = prompt_messages(row);
    if (prompt.empty()) return;
    row["prompt"] = std::move(prompt);
    for (const char* column : {"chosen", "rejected"})
        if (const Json answer = value_of(row, column); answer.is_string() && answer != "")
            row[column] = Json::array({Json{{"role", "assistant"}, {"content", answer}}});
    for (const char* column : {"instruction", "question", "input", "history"}) row.erase(column);
}

/// A row of any of the forms that data sets have, with the columns prompt, chosen and rejected.
Json in_our_columns(Json row) {
    name_openai_columns(row);
    for (const char* column : {"conversations", "messages", "prompt", "chosen", "rejected"}) name_roles(row, column);
    if (!holds(row, "prompt")) find_prompt(row);
    for (const char* column : {"conversations", "messages"}) row.erase(column);  // a template has its own `messages`
    return row;
}

}  // namespace

Pair pair_of(const Json& given, const CommonPrompt& common_prompt) {
    const Json row = in_our_columns(given);
    Json chosen = value_of(row, "chosen"), rejected = value_of(row, "rejected");
    const Kind kind = kind_of(chosen, "chosen");
    if (kind != kind_of(rejected, "rejected"))
        throw BadRow{"data.pair-mismatch", "\"chosen\" and \"rejected\" are of different kinds",
                     "Both are texts, or messages, or ids."};
    if (chosen == rejected)
        throw BadRow{"data.pair-mismatch",
                     "the chosen and the rejected answer are the same: there is nothing to prefer", ""};
    Json prompt = holds(row, "prompt") ? value_of(row, "prompt") : Json();
    const bool text_with_messages = kind == Kind::messages && prompt.is_string();
    if (prompt.is_null() || (text_with_messages && common_elements(chosen, rejected) > 0)) {
        prompt = implicit_prompt(row, kind, chosen, rejected, common_prompt);
    } else if (text_with_messages) {
        prompt = Json::array({Json{{"role", "user"}, {"content", prompt}}});
    } else if (kind != kind_of(prompt, "prompt")) {
        throw BadRow{"data.pair-mismatch", "\"prompt\" is of another kind than the answers",
                     "All are texts, or messages, or ids."};
    } else if (kind == Kind::messages && common_elements(prompt, chosen) == prompt.size() &&
               common_elements(prompt, rejected) == prompt.size()) {
        chosen = elements(chosen, prompt.size(), chosen.size());
        rejected = elements(rejected, prompt.size(), rejected.size());
    }
    return {side(row, prompt, std::move(chosen), "chosen"), side(row, prompt, std::move(rejected), "rejected")};
}

Json judged_of(Json row) {
    for (const char* column : {"conversations", "messages"}) {
        if (!holds(row, column)) continue;
        name_roles(row, column);
        const Json messages = value_of(row, column);
        const Json* const last =
            kind_of(messages, column) == Kind::messages && messages.back().is_object() ? &messages.back() : nullptr;
        if (last == nullptr || !last->contains("role") || (*last)["role"] != "assistant")
            throw BadRow{"data.message-shape", cat("column \"", column, "\" does not end with an assistant's message"),
                         "The verdict is on the last answer."};
        row["completion"] = Json::array({*last});
        row[column] = elements(messages, 0, messages.size() - 1);
        row["prompt"] = prompt_messages(row);
        break;
    }
    if (!present(row, "completion") && present(row, "output")) {
        const std::string output = as_string(row["output"], "column \"output\"");
        row["prompt"] = prompt_messages(row);
        row["completion"] = Json::array({Json{{"role", "assistant"}, {"content", output}}});
    }
    // A template has variables of its own.
    for (const char* column : {"conversations", "messages", "instruction", "input", "output", "history"})
        row.erase(column);
    return row;
}

bool verdict_of(const Json& row) {
    const char* const column = holds(row, "label") || !holds(row, "kto_tag") ? "label" : "kto_tag";
    if (!row.contains(column))
        throw BadRow{"data.no-verdict",
                     "the row has no verdict on its answer, which training.objective kto learns from",
                     "A column \"label\" (or \"kto_tag\") says true or false; data.columns renames columns."};
    const Json& label = row.at(column);
    for (const Json& yes : {Json(true), Json(1), Json("true"), Json("True"), Json("1")})
        if (label == yes) return true;
    for (const Json& no : {Json(false), Json(0), Json("false"), Json("False"), Json("0")})
        if (label == no) return false;
    throw BadRow{"data.no-verdict", cat("column \"", column, "\": expected true or false, found ", shown(label)),
                 "It says whether the completion is a good answer."};
}

/// Whether a row of an instruction has the form of sections, as the user chose, and answers that are texts.
bool RowFormatter::takes_sections(const Json& row) const {
    const auto is_text = [&](const char* column) { return !row.contains(column) || row[column].is_string(); };
    return encoder_ != nullptr && encoder_->instruction_form() == InstructionForm::sections &&
           holds(row, "instruction") && !holds(row, "prompt") && !holds(row, "messages") &&
           !holds(row, "conversations") && is_text("chosen") && is_text("rejected");
}

/// The row of an instruction with the text of a column as its answer.
FormattedRow RowFormatter::instructed(const Json& row, const char* column) const {
    Json one = row;
    one["output"] = required(row, column, format_);
    if (says_nothing(one["output"]))
        throw BadRow{"data.empty-answer", cat("the ", column, " answer is empty"), "An answer must say something."};
    std::vector<bool> in_loss;
    EncodedRow ids = encode_instruction(one, in_loss);
    return encoded(std::move(ids), in_loss);
}

RowFormatter RowFormatter::without_bounds() const {
    RowFormatter same = *this;
    same.options_.max_seq_length = same.options_.max_positions = same.options_.max_prompt_length = 0;
    return same;
}

/// As TRL did while it had max_prompt_length: if a prompt with its longest answer is too long, the prompt is cut to
/// max_prompt_length, and then the answers to max_seq_length - max_prompt_length.
void RowFormatter::shorten_prompts(std::initializer_list<FormattedRow*> answers) const {
    const auto limit = static_cast<std::size_t>(options_.max_seq_length),
               most = std::min(static_cast<std::size_t>(options_.max_prompt_length), limit > 0 ? limit - 1 : 0);
    const auto is_long = [&](const FormattedRow* row) { return limit > 0 && row->ids.size() > limit; };
    if (std::none_of(answers.begin(), answers.end(), is_long)) {
        for (FormattedRow* row : answers) finish(*row);
        return;
    }
    std::vector<std::size_t> prompts;
    for (FormattedRow* row : answers) {
        if (!row->images.empty())
            throw BadRow{"data.row-too-long",
                         cat("the row has images and ", row->ids.size(), " tokens, and model.max_seq_length is ", limit,
                             ": preference.max_prompt_length would cut its prompt"),
                         "Raise model.max_seq_length, or leave max_prompt_length out."};
        const auto target =
            std::find_if(row->labels.begin(), row->labels.end(), [](int32_t label) { return label != ignore_label; });
        const auto prompt = static_cast<std::size_t>(target - row->labels.begin()), kept = std::min(prompt, most);
        const bool end = options_.truncation_mode == config::TruncationMode::keep_end;
        const auto first = static_cast<std::ptrdiff_t>(end ? 0 : kept);
        for (auto* values : {&row->ids, &row->labels})
            values->erase(values->begin() + first,
                          values->begin() + first + static_cast<std::ptrdiff_t>(prompt - kept));
        row->truncated = kept < prompt;
        prompts.push_back(kept);
    }
    const bool cuts =
        options_.long_rows != config::LongRows::drop && std::any_of(answers.begin(), answers.end(), is_long);
    for (std::size_t i = 0; FormattedRow* row : answers) {
        const std::size_t most_tokens = prompts[i++] + limit - most;
        const bool cut = cuts && row->ids.size() > most_tokens;
        for (auto* values : {&row->ids, &row->labels})
            if (cut) values->resize(most_tokens);
        row->truncated = row->truncated || cut;
        finish(*row);
    }
}

FormattedRow RowFormatter::pair(const Json& row, const std::filesystem::path& folder) const {
    if (options_.max_prompt_length == 0) return joined(both_answers(row, folder));
    std::pair<FormattedRow, FormattedRow> answers = without_bounds().both_answers(row, folder);
    shorten_prompts({&answers.first, &answers.second});
    return joined(answers);
}

std::pair<FormattedRow, FormattedRow> RowFormatter::both_answers(const Json& row,
                                                                 const std::filesystem::path& folder) const {
    if (takes_sections(row)) return {instructed(row, "chosen"), instructed(row, "rejected")};
    const Pair sides = pair_of(row, [&](const std::string& a, const std::string& b) {
        require_encoder();
        return encoder_->common_prompt(a, b);
    });
    return {answer(sides.chosen, folder), answer(sides.rejected, folder)};
}

FormattedRow RowFormatter::joined(const std::pair<FormattedRow, FormattedRow>& answers) const {
    const auto& [chosen, rejected] = answers;
    const auto require_targets = [&](const FormattedRow& side, const char* name) {
        if (side.targets > 0 || side.too_long) return;
        if (side.truncated)
            throw BadRow{"data.row-too-long",
                         cat("nothing is left of the ", name, " answer: the prompt alone fills the ",
                             options_.max_seq_length, " tokens that a row may have"),
                         "Raise model.max_seq_length, or bound the prompt with preference.max_prompt_length; "
                         "data.overflow_strategy: drop leaves such pairs out."};
        throw BadRow{"data.empty-answer", cat("the ", name, " answer has no token to learn"), ""};
    };
    require_targets(chosen, "chosen");
    require_targets(rejected, "rejected");
    if (chosen.ids == rejected.ids)
        throw BadRow{"data.pair-mismatch",
                     cat("the chosen and the rejected answer are the same",
                         chosen.truncated ? cat(" once they are cut at ", options_.max_seq_length, " tokens") : ""),
                     chosen.truncated ? "Raise model.max_seq_length." : ""};
    FormattedRow both = chosen;
    both.ids.insert(both.ids.end(), rejected.ids.begin(), rejected.ids.end());
    both.labels.insert(both.labels.end(), rejected.labels.begin(), rejected.labels.end());
    for (const FormattedRow* side : {&chosen, &rejected})
        for (std::size_t t = 0; t < side->ids.size(); ++t) both.positions.push_back(static_cast<int32_t>(t));
    const auto first = static_cast<int32_t>(chosen.ids.size()), second = static_cast<int32_t>(rejected.ids.size());
    both.segments = {{0, first}, {first, second}};
    for (Image image : rejected.images) {
        image.first += first;
        both.images.push_back(std::move(image));
    }
    both.sources.insert(both.sources.end(), rejected.sources.begin(), rejected.sources.end());
    both.truncated = chosen.truncated || rejected.truncated;
    both.too_long = chosen.too_long || rejected.too_long;
    both.targets = chosen.targets + rejected.targets;
    both.doubts = chosen.doubts | rejected.doubts;
    return both;
}

FormattedRow RowFormatter::judged(const Json& given, const std::filesystem::path& folder) const {
    if (options_.max_prompt_length > 0) {
        FormattedRow result = without_bounds().judged(given, folder);
        shorten_prompts({&result});
        return result;
    }
    if (!given.contains("completion") && takes_sections(given)) {
        FormattedRow result = instructed(given, "output");
        result.desirable = verdict_of(given);
        return result;
    }
    const Json row = format_ == config::DataFormat::tokenized || format_ == config::DataFormat::prompt_completion
                         ? given
                         : judged_of(given);
    if (says_nothing(required(row, "completion", config::DataFormat::prompt_completion)))
        throw BadRow{"data.empty-answer", "the completion is empty", "A verdict is on something that is said."};
    FormattedRow result = answer(row, folder);
    result.desirable = verdict_of(row);
    return result;
}

}  // namespace unsloth::data
