// Calls of tools in a conversation: the form of their arguments, and whether a template writes them at all.
#pragma once

#include <string>

#include "tokenizer/assistant_turns.h"

namespace unsloth::tokenizer {

/// OpenAI's `arguments` are an object's JSON text. Where the template does not write such a text as it is (it quotes
/// it, goes through its keys, or refuses it) they become objects. Input Error for a text that is none.
void parse_arguments(TemplateInput& input);

/// What `text`, the rendering of `input`, would be the same without: "tools", "messages[3].tool_calls"; empty when the
/// template writes all of it.
std::string left_out_tools(const TemplateInput& input, const std::string& text);

}  // namespace unsloth::tokenizer
