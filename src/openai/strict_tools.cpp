// Calls that the model decides about, with arguments that fit their schemas.
#include "unsloth/core/error.h"
#include "unsloth/openai/tool_calls.h"

namespace unsloth::openai {
namespace {

/// A text that is no call by its first character.
grammar::Part text_without_first(char character) {
    const std::string spaces = " \\t\\r\\n", first = cat("\\", std::string(1, character));
    return {grammar::Part::Kind::regex, cat("[", spaces, "]*([^", first, spaces, "](.|[\\r\\n])*)?")};
}

}  // namespace

grammar::Pattern strict_pattern(ToolFormat format, const std::vector<Tool>& tools, bool in_parallel,
                                const std::string& marker) {
    using grammar::Part;
    UNSLOTH_CHECK(format != ToolFormat::harmony, "its calls are messages");
    const bool is_hermes = format == ToolFormat::hermes;
    const grammar::Pattern calls = tool_pattern(format, tools, {ToolChoice::Kind::required}, false);
    const Part text = is_hermes ? Part{Part::Kind::without, "<tool_call>"}
                                : text_without_first(format == ToolFormat::mistral ? '[' : '{');
    grammar::Pattern pattern;
    pattern.alternatives = {{text}};
    for (const std::vector<Part>& call : calls.alternatives) {
        std::vector<Part> parts;
        if (is_hermes) parts.push_back(text);
        parts.push_back({Part::Kind::literal, (format == ToolFormat::mistral ? marker : "") + calls.begin});
        parts.insert(parts.end(), call.begin(), call.end());
        parts.push_back({Part::Kind::literal, calls.end});
        (is_hermes && in_parallel ? pattern.lead : pattern.alternatives).push_back(std::move(parts));
    }
    return pattern;
}

}  // namespace unsloth::openai
