#include "openai/constraint_fields.h"

#include <algorithm>

namespace unsloth::openai {
namespace {

using grammar::Part;

constexpr std::size_t most_tools = 512, most_texts = 4096, longest_name = 64;

void constrain(AnswerRequest& to, grammar::Pattern pattern, const std::string& name) {
    if (to.pattern)
        throw invalid(cat("'", name, "' and '", to.pattern_field, "' both constrain the output. Use one of them."),
                      name);
    to.pattern = std::move(pattern);
    to.pattern_field = name;
}

grammar::Pattern alone(Part::Kind kind, std::string text) {
    return {.alternatives = {{{kind, std::move(text)}}}};
}

std::string schema_text(const Json& value, const std::string& name) {
    if (!value.is_object()) refuse_type(name, "a JSON schema, an object", value);
    return value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

/// The member, which must be there.
const Json& member(const Json& object, const char* key, const std::string& name) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null())
        throw ApiError(400, cat("Missing required parameter: '", name, ".", key, "'."), cat(name, ".", key),
                       "missing_required_parameter");
    return *found;
}

/// An optional boolean.
bool flag_of(const Json& object, const char* key, const std::string& name) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) return false;
    if (!found->is_boolean()) refuse_type(cat(name, ".", key), "a boolean", *found);
    return found->get<bool>();
}

/// An optional text.
void check_text(const Json& object, const char* key, const std::string& name) {
    const auto found = object.find(key);
    if (found != object.end() && !found->is_null() && !found->is_string())
        refuse_type(cat(name, ".", key), "a string", *found);
}

const std::string& text_of(const Json& value, const std::string& name) {
    if (!value.is_string()) refuse_type(name, "a string", value);
    return value.get_ref<const std::string&>();
}

grammar::Pattern choice_of(const Json& value, const std::string& name) {
    if (!value.is_array()) refuse_type(name, "a list of strings", value);
    if (value.empty() || value.size() > most_texts) refuse_range(name, cat("1 to ", most_texts, " texts"), value);
    grammar::Pattern pattern;
    for (const Json& one : value) {
        if (text_of(one, name).empty()) refuse_range(name, "texts that are not empty", value);
        pattern.alternatives.push_back({{Part::Kind::literal, one.get<std::string>()}});
    }
    return pattern;
}

}  // namespace

void read_response_format(AnswerRequest& to, const Json& value, const std::string& name) {
    if (!value.is_object()) refuse_type(name, "an object", value);
    const std::string& type = text_of(member(value, "type", name), name + ".type");
    if (type == "text" || type == "json_object") {
        allow_only(value, {"type"}, name);
        if (type == "json_object") constrain(to, alone(Part::Kind::json_object, ""), name);
    } else if (type == "json_schema") {
        allow_only(value, {"type", "json_schema"}, name);
        const std::string inner = name + ".json_schema";
        const Json& object = member(value, "json_schema", name);
        allow_only(object, {"name", "description", "schema", "strict"}, inner);
        text_of(member(object, "name", inner), inner + ".name");
        check_text(object, "description", inner);
        flag_of(object, "strict", inner);  // the output is always strictly of the schema
        constrain(to, alone(Part::Kind::json_schema, schema_text(member(object, "schema", inner), inner + ".schema")),
                  inner + ".schema");
    } else {
        throw unsupported(cat("'", name, ".type': text, json_object and json_schema are supported, found '",
                              type.substr(0, 40), "'."),
                          name + ".type");
    }
}

void read_structured_outputs(AnswerRequest& to, const Json& value, const std::string& name) {
    if (!value.is_object()) refuse_type(name, "an object", value);
    for (const auto& [key, given] : value.items()) {
        const std::string inner = cat(name, ".", key.substr(0, 100));
        if (given.is_null()) continue;
        if (key == "json") {
            const std::string schema = given.is_string() ? given.get<std::string>() : schema_text(given, inner);
            constrain(to, alone(Part::Kind::json_schema, schema), inner);
        } else if (key == "json_object") {
            if (!given.is_boolean()) refuse_type(inner, "a boolean", given);
            if (given.get<bool>()) constrain(to, alone(Part::Kind::json_object, ""), inner);
        } else if (key == "regex") {
            constrain(to, alone(Part::Kind::regex, text_of(given, inner)), inner);
        } else if (key == "choice") {
            constrain(to, choice_of(given, inner), inner);
        } else {
            throw unsupported(cat("'", inner, "': json, json_object, regex and choice are supported."), inner);
        }
    }
}

void read_tools(AnswerRequest& to, const Json& value, const std::string& name) {
    if (!value.is_array()) refuse_type(name, "a list of tools", value);
    if (value.size() > most_tools) refuse_range(name, cat("at most ", most_tools, " tools"), value);
    for (std::size_t i = 0; i < value.size(); ++i) {
        const std::string inner = cat(name, "[", i, "]");
        allow_only(value[i], {"type", "function"}, inner);
        if (text_of(member(value[i], "type", inner), inner + ".type") != "function")
            throw unsupported(cat("'", inner, ".type': only function is supported."), inner + ".type");
        const std::string function = inner + ".function";
        const Json& object = member(value[i], "function", inner);
        allow_only(object, {"name", "description", "parameters", "strict"}, function);
        check_text(object, "description", function);
        Tool tool{text_of(member(object, "name", function), function + ".name"), "",
                  flag_of(object, "strict", function)};
        const auto usable = [](char c) {
            return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
                   c == '.';
        };
        if (tool.name.empty() || tool.name.size() > longest_name || !std::ranges::all_of(tool.name, usable))
            throw invalid(cat("Invalid value for '", function, ".name': expected 1 to ", longest_name,
                              " letters, digits, '_', '-' and '.'."),
                          function + ".name");
        if (std::ranges::find(to.tools, tool.name, &Tool::name) != to.tools.end())
            throw invalid(cat("Invalid value for '", function, ".name': two tools have the name '", tool.name, "'."),
                          function + ".name");
        if (const auto schema = object.find("parameters"); schema != object.end() && !schema->is_null())
            if (const std::string text = schema_text(*schema, function + ".parameters"); text != "{}")
                tool.parameters = text;
        to.tools.push_back(std::move(tool));
    }
    if (!to.tools.empty()) (*to.row)["tools"] = value;
}

void read_tool_choice(AnswerRequest& to, const Json& value, const std::string& name) {
    using Kind = ToolChoice::Kind;
    if (value.is_string()) {
        const auto& text = value.get_ref<const std::string&>();
        if (text != "none" && text != "auto" && text != "required")
            throw invalid(cat("Invalid value for '", name, "': expected none, auto, required or a function, found '",
                              text.substr(0, 40), "'."),
                          name);
        to.tool_choice.kind = text == "none" ? Kind::none : text == "auto" ? Kind::automatic : Kind::required;
        return;
    }
    if (!value.is_object()) refuse_type(name, "a string or an object", value);
    if (member(value, "type", name) != "function")
        throw unsupported(cat("'", name, ".type': only function is supported."), name + ".type");
    allow_only(value, {"type", "function"}, name);
    allow_only(member(value, "function", name), {"name"}, name + ".function");
    to.tool_choice = {Kind::named,
                      text_of(member(value["function"], "name", name + ".function"), name + ".function.name")};
}

Json response_format_schema() {
    return {{"type", "object"},
            {"required", Json::array({"type"})},
            {"properties",
             {{"type", {{"enum", Json::array({"text", "json_object", "json_schema"})}}},
              {"json_schema", {{"type", "object"}}}}}};
}

Json structured_outputs_schema() {
    const Json nothing = {{"type", "null"}}, text = {{"type", "string"}};
    const auto perhaps = [&](Json schema) { return any_schema({std::move(schema), nothing}); };
    return {{"type", "object"},
            {"properties",
             {{"json", Json::object()},
              {"json_object", perhaps({{"type", "boolean"}})},
              {"regex", perhaps(text)},
              {"choice", perhaps(list_schema(text, most_texts))}}},
            {"additionalProperties", nothing}};
}

Json tools_schema() {
    const Json function = {{"type", "object"},
                           {"required", Json::array({"name"})},
                           {"properties",
                            {{"name", {{"type", "string"}, {"minLength", 1}, {"maxLength", longest_name}}},
                             {"description", {{"type", Json::array({"string", "null"})}}},
                             {"parameters", Json::object()},
                             {"strict", {{"type", Json::array({"boolean", "null"})}}}}},
                           {"additionalProperties", false}};
    const Json tool = {{"type", "object"},
                       {"required", Json::array({"type", "function"})},
                       {"properties", {{"type", {{"const", "function"}}}, {"function", function}}},
                       {"additionalProperties", false}};
    return list_schema(tool, most_tools);
}

Json tool_choice_schema() {
    const Json function = {{"type", "object"},
                           {"required", Json::array({"type", "function"})},
                           {"properties", {{"type", {{"const", "function"}}}, {"function", {{"type", "object"}}}}}};
    return any_schema({{{"enum", Json::array({"none", "auto", "required"})}}, function});
}

bool AnswerRequest::calls_strictly() const {
    return tool_choice.kind == ToolChoice::Kind::automatic && std::ranges::any_of(tools, &Tool::strict);
}

void check_constraints(AnswerRequest& request, bool has_choice) {
    ToolChoice& choice = request.tool_choice;
    if (!has_choice && !request.tools.empty()) choice.kind = ToolChoice::Kind::automatic;
    if (request.tools.empty()) {
        if (choice.is_constrained()) throw invalid("'tool_choice' needs 'tools'.", "tool_choice");
        choice.kind = ToolChoice::Kind::none;
    }
    if (choice.kind == ToolChoice::Kind::named &&
        std::ranges::find(request.tools, choice.name, &Tool::name) == request.tools.end())
        throw invalid(cat("'tool_choice' names '", choice.name.substr(0, 100), "', which 'tools' does not have."),
                      "tool_choice");
    if (choice.is_constrained() && request.pattern)
        throw invalid(
            cat("'tool_choice' and '", request.pattern_field, "' both constrain the output. Use one of them."),
            request.pattern_field);
    if (!request.pattern && !choice.is_constrained() && !request.calls_strictly()) return;
    const std::string field = request.pattern           ? request.pattern_field
                              : choice.is_constrained() ? "tool_choice"
                                                        : "tools";
    const auto refuse = [&](const char* other) {
        throw invalid(cat("'", other, "' cannot be combined with '", field, "', which says where the output ends."),
                      other);
    };
    if (request.ignore_eos) refuse("ignore_eos");
    if (request.min_tokens > 0) refuse("min_tokens");
}

}  // namespace unsloth::openai
