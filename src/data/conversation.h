// Rows of messages as a conversation: OpenAI's and ShareGPT's columns.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "unsloth/data/encoder.h"
#include "unsloth/data/format.h"

namespace unsloth::data {

/// A conversation, and which of its assistant turns are learnt.
struct WeightedConversation {
    Conversation conversation;
    std::vector<bool> learnt;    ///< of each assistant turn, in order
    bool names_weights = false;  ///< some message brings a weight: `learnt` must be matched with the encoder's spans
};

/// "user", "assistant", "system" or "tool" for a speaker of ShareGPT's; BadRow, which begins with `where`, for others.
std::string sharegpt_role(const std::string& name, const std::string& where);

/// A turn {from, value} or {role, content} of ShareGPT's as a message of OpenAI's; BadRow for other shapes.
nlohmann::ordered_json message_of(const nlohmann::ordered_json& turn, const std::string& where);

/// Whether a column that the format itself does not know is wanted: see RowEncoder::reads.
using ReadsColumn = std::function<bool(std::string_view column)>;

/// {messages: [{role, content, weight?, tool_calls?, ...}], tools?}. BadRow for a wrong shape, or a weight other than 0
/// and 1.
WeightedConversation openai_conversation(const nlohmann::ordered_json& row, const ReadsColumn& reads);
/// {conversations: [{from, value} or {role, content}, weight?, tool_calls?, ...], system?, tools?}: human and user are
/// user; gpt, assistant, chatgpt and model are assistant; function_call is the assistant, its value the JSON of a call
/// {name, arguments} or a list of them; system; observation, function and tool are tool. BadRow for others.
WeightedConversation sharegpt_conversation(const nlohmann::ordered_json& row, const ReadsColumn& reads);
/// {prompt, completion} whose values are arrays of messages: the assistant turns of the completion are learnt.
WeightedConversation prompt_completion_conversation(const nlohmann::ordered_json& row, const ReadsColumn& reads);

}  // namespace unsloth::data
