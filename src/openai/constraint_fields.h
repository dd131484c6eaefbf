// The fields that say what a completion must look like: response_format, vLLM's structured_outputs, tools.
#pragma once

#include <string>

#include "openai/field_table.h"

namespace unsloth::openai {

/// Each as Other's `read`.
void read_response_format(AnswerRequest& to, const Json& value, const std::string& name);
void read_structured_outputs(AnswerRequest& to, const Json& value, const std::string& name);
void read_tools(AnswerRequest& to, const Json& value, const std::string& name);
void read_tool_choice(AnswerRequest& to, const Json& value, const std::string& name);
/// Each as Other's `schema`.
Json response_format_schema();
Json structured_outputs_schema();
Json tools_schema();
Json tool_choice_schema();
/// After all fields were read. `has_choice`: tool_choice was among them.
void check_constraints(AnswerRequest& request, bool has_choice);

}  // namespace unsloth::openai
