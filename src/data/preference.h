// Pairs of answers to one prompt, in the forms that data sets have them.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace unsloth::data {

/// The answers as rows {prompt, completion}, with the row's other columns.
struct Pair {
    nlohmann::ordered_json chosen, rejected;
};

/// Bytes of the prompt that two texts begin with: see RowEncoder::common_prompt.
using CommonPrompt = std::function<std::size_t(const std::string& a, const std::string& b)>;

/// A row {prompt?, chosen, rejected}, or one of the other usual forms: ShareGPT's turns {from, value}; conversations or
/// messages as the prompt; LLaMA-Factory's {instruction, input?, system?, history?, chosen, rejected} (question as
/// instruction); OpenAI's {input: {messages, tools?}, preferred_output, non_preferred_output}. The answers are texts,
/// lists of messages {role, content}, or lists of ids. The prompt is of the same kind, or a text if these are messages.
/// If it is absent, it is the common beginning of both answers: the messages that are equal, the ids, or the text as
/// `common_prompt` says. Messages of the prompt that the answers repeat are dropped from them. BadRow for other forms
/// and for empty answers. If the prompt is absent: also for answers without a common beginning, for one that begins the
/// other, and for messages that part before an answer. A column system stays as it is.
Pair pair_of(const nlohmann::ordered_json& row, const CommonPrompt& common_prompt);

/// Whether a value is a list of ids, which need no tokenizer.
bool is_ids(const nlohmann::ordered_json& value);

/// A row {prompt, completion} of an answer with a verdict that comes as a conversation (messages, or ShareGPT's
/// conversations), whose last message is the answer, or as LLaMA-Factory's {instruction, input?, system?, history?,
/// output}. BadRow where the last message is no assistant's.
nlohmann::ordered_json judged_of(nlohmann::ordered_json row);

/// The verdict in a row's column label, or LLaMA-Factory's kto_tag: a boolean, 0 or 1, or these as texts. BadRow for
/// anything else.
bool verdict_of(const nlohmann::ordered_json& row);

}  // namespace unsloth::data
