// Messages of a conversation, as chat templates take them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "unsloth/openai/request.h"

namespace unsloth::openai {

/// The checked list. ApiError 400 for what is no message of text, or of images where they are seen, each a part
/// image_url with a data: URL; and for members that no message has. `name` is the field's.
nlohmann::ordered_json read_messages(const nlohmann::ordered_json& value, const std::string& name,
                                     const ParseOptions& options = {});

/// A text, or parts of text one after the other. ApiError 400 for what is neither.
std::string joined_text(const nlohmann::ordered_json& value, const std::string& name, const ParseOptions& options = {});
/// The messages of an `input`: a text, or a list of messages; where images are seen, their parts input_image become
/// image_url. ApiError 400 for what is neither.
nlohmann::ordered_json input_messages(const nlohmann::ordered_json& value, const std::string& name,
                                      const ParseOptions& options = {});
/// JSON Schema of what `joined_text` and `input_messages` read.
nlohmann::ordered_json input_schema();

/// JSON Schema of what `read_messages` reads.
nlohmann::ordered_json messages_schema();

/// Adds what decides about the end of the text. ApiError 400 where the two do not fit, or the last message has no text
/// to continue.
void finish_row(nlohmann::ordered_json& row, bool add_generation_prompt, bool continue_final_message);

}  // namespace unsloth::openai
