// Messages of a conversation, as chat templates take them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace unsloth::openai {

/// The checked list. ApiError 400 for what is no message of text; `name` is the field's.
nlohmann::ordered_json read_messages(const nlohmann::ordered_json& value, const std::string& name);

/// JSON Schema of what `read_messages` reads.
nlohmann::ordered_json messages_schema();

/// Adds what decides about the end of the text. ApiError 400 where the two do not fit, or the last message has no text
/// to continue.
void finish_row(nlohmann::ordered_json& row, bool add_generation_prompt, bool continue_final_message);

}  // namespace unsloth::openai
