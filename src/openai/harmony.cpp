#include "unsloth/openai/harmony.h"

#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/openai/error.h"
#include "unsloth/spec/reasoning_names.h"

namespace unsloth::openai {
namespace {

using grammar::Part;

/// A text in which tokens that frame messages stand for their bytes.
Part framed(std::string text) {
    for (const FramingToken& token : framing_tokens)
        for (std::size_t at; (at = text.find(token.text)) != std::string::npos;)
            text.replace(at, std::string_view(token.text).size(), 1, token.byte);
    return {Part::Kind::literal, std::move(text)};
}

Part any_text() {
    return {Part::Kind::regex, "(.|[\\r\\n])*"};
}

}  // namespace

/// Models write the recipient after the channel; templates write it in front.
grammar::Pattern harmony_calls(const std::vector<Tool>& tools, const ToolChoice& choice) {
    grammar::Pattern pattern;
    for (const Tool& tool : tools) {
        if (choice.kind == ToolChoice::Kind::named && tool.name != choice.name) continue;
        pattern.alternatives.push_back(
            {framed(cat("<|channel|>commentary to=functions.", tool.name, " <|constrain|>json<|message|>")),
             tool.parameters.empty() ? Part{Part::Kind::json_object} : Part{Part::Kind::json_schema, tool.parameters}});
    }
    return pattern;
}

grammar::Pattern in_final_channel(grammar::Pattern pattern) {
    for (std::vector<Part>& parts : pattern.alternatives)
        parts.insert(parts.begin(), framed("<|channel|>final<|message|>"));
    return pattern;
}

grammar::Pattern after_analysis(grammar::Pattern pattern) {
    pattern.lead = {{framed("<|channel|>analysis<|message|>"), any_text(), framed("<|end|><|start|>assistant")}};
    return pattern;
}

grammar::Pattern any_final_message() {
    return in_final_channel({.alternatives = {{any_text()}}});
}

nlohmann::ordered_json harmony_row(nlohmann::ordered_json row) {
    for (std::size_t i = 0; i < row["messages"].size(); ++i) {
        nlohmann::ordered_json& message = row["messages"][i];
        const auto calls = message.find("tool_calls");
        if (calls == message.end() || !calls->is_array()) continue;
        const std::string where = cat("messages[", i, "].tool_calls");
        if (calls->size() > 1)
            throw unsupported(cat("'", where, "': a message of harmony has one call, found ", calls->size(),
                                  ". Send a message for each call, followed by its result."),
                              where);
        const auto content = message.find("content");
        if (calls->empty() || content == message.end() || !content->is_string() || *content == "") continue;
        for (const char* name : spec::reasoning_names) {
            const auto reasoning = message.find(name);
            if (reasoning == message.end() || !reasoning->is_string() || *reasoning == "") continue;
            *reasoning = cat(reasoning->get<std::string>(), "\n", content->get<std::string>());
            message["content"] = "";
            break;
        }
    }
    return row;
}

std::string lead_to_final(const std::string& prompt) {
    return prompt.ends_with("<|start|>assistant") ? "<|channel|>final<|message|>" : "";
}

}  // namespace unsloth::openai
