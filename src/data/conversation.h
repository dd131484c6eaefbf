// Rows of messages as a conversation: OpenAI's and ShareGPT's columns.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "unsloth/data/encoder.h"
#include "unsloth/data/format.h"

namespace unsloth::data {

/// A conversation, and which of its assistant turns are trained.
struct WeightedConversation {
    Conversation conversation;
    std::vector<bool> in_loss;  ///< of each assistant turn, in order
    bool names_weights =
        false;  ///< some message says if it is trained: `in_loss` must be matched with the encoder's spans
};

/// "user", "assistant", "system" or "tool" for a speaker of ShareGPT's; BadRow, which begins with `where`, for others.
std::string sharegpt_role(const std::string& name, const std::string& where);

/// A turn {from, value} or {role, content} of ShareGPT's as a message of OpenAI's; BadRow for other shapes.
nlohmann::ordered_json message_of(const nlohmann::ordered_json& turn, const std::string& where);

/// Whether a column that the format itself does not know is wanted: see RowEncoder::reads.
using ReadsColumn = std::function<bool(std::string_view column)>;

// In all of these the column system precedes a conversation that does not begin with a system message. The keys
// weight, loss, loss_mask, trainable, train or training, 0 or 1, say whether an assistant message is trained.
// BadRow for a wrong shape, for other values of these keys, and for an alias of a role that has another name.

/// {messages: [{role, content, weight?, tool_calls?, ...}], system?, tools?}.
WeightedConversation openai_conversation(const nlohmann::ordered_json& row, const ReadsColumn& reads);
/// {conversations: [{from, value} or {role, content}, weight?, tool_calls?, ...], system?, tools?}: human and user are
/// user; gpt, assistant, chatgpt and model are assistant; function_call is the assistant, its value the JSON of a call
/// {name, arguments} or a list of them; system; observation, function and tool are tool. BadRow for others.
WeightedConversation sharegpt_conversation(const nlohmann::ordered_json& row, const ReadsColumn& reads);
/// {prompt, completion, system?, tools?} whose values are arrays of messages: the completion's assistant turns are
/// trained.
WeightedConversation prompt_completion_conversation(const nlohmann::ordered_json& row, const ReadsColumn& reads);
/// {instruction, input?, output, history?, system?, tools?}: all answers are trained.
WeightedConversation alpaca_conversation(const nlohmann::ordered_json& row, const ReadsColumn& reads);

/// The messages before an answer: the turns of the column history, pairs of question and answer, then the instruction
/// (or question: `column`) and the input, on lines of their own.
nlohmann::ordered_json instruction_messages(const nlohmann::ordered_json& row, const char* column);

}  // namespace unsloth::data
