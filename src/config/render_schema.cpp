#include "unsloth/config/peer_fields.h"
#include "unsloth/config/render.h"

namespace unsloth::config {
namespace {

Json number_schema(const char* type, const Range& range) {
    Json schema = {{"type", type}};
    const auto bound = [](double value) {  // whole ones are written so
        const auto whole = static_cast<int64_t>(value);
        return static_cast<double>(whole) == value ? Json(whole) : Json(value);
    };
    if (range.minimum) schema[range.exclusive_minimum ? "exclusiveMinimum" : "minimum"] = bound(*range.minimum);
    if (range.maximum) schema[range.exclusive_maximum ? "exclusiveMaximum" : "maximum"] = bound(*range.maximum);
    return schema;
}

Json text_schema(const Option& option) {
    Json schema = {{"type", "string"}};
    if (!option.choices.empty()) schema["enum"] = option.choices;
    if (option.nullable && option.type == OptionType::text) schema["minLength"] = 1;
    return schema;
}

// A choice's synonyms may be of other types, so the enumeration alone says what fits.
Json choice_schema(const Option& option) {
    Json values = option.choices;
    for (const auto& synonym : option.synonyms) values.push_back(synonym.written);
    return {{"enum", values}};
}

Json option_schema(const Option& option);
Json alias_schema(const Option& option, const Alias& alias);

Json object_schema(const OptionSet& options) {
    Json schema = {{"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}};
    for (const auto& option : options.options()) {
        schema["properties"][option.key] = option_schema(option);
        for (const auto& alias : option.aliases) schema["properties"][alias.key] = alias_schema(option, alias);
        if (option.required) schema["required"].push_back(option.key);
    }
    return schema;
}

Json type_schema(const Option& option) {
    switch (option.type) {
        case OptionType::boolean:
            return {{"type", "boolean"}};
        case OptionType::integer:
            return number_schema("integer", option.range);
        case OptionType::number:
            return number_schema("number", option.range);
        case OptionType::text:
            return text_schema(option);
        case OptionType::choice:
            return choice_schema(option);
        case OptionType::text_list:
            return {{"type", "array"}, {"items", text_schema(option)}};
        case OptionType::integer_list:
            return {{"type", "array"}, {"items", number_schema("integer", option.range)}};
        case OptionType::integer_map:
            return {{"type", "object"}, {"additionalProperties", number_schema("integer", option.range)}};
        case OptionType::number_map:
            return {{"type", "object"}, {"additionalProperties", number_schema("number", option.range)}};
        case OptionType::scalar_map:
            return {{"type", "object"},
                    {"additionalProperties", {{"type", Json::array({"number", "string", "boolean"})}}}};
        case OptionType::object:
            if (!option.choices.empty())
                return {{"anyOf", Json::array({{{"type", "object"}}, {{"enum", option.choices}}})}};
            return {{"type", "object"}};
        case OptionType::object_list:
            return {{"type", "array"},
                    {"items", {{"anyOf", Json::array({object_schema(*option.elements), {{"type", "string"}}})}}}};
        case OptionType::json:
            return {{"type", Json::array({"array", "object"})}};
    }
    return Json::object();
}

/// The type, or one of the values that stand for others.
Json value_schema(const Option& option) {
    Json type = type_schema(option);
    if (option.nullable || option.accepts_number_as_text) {
        Json types = type["type"].is_array() ? type["type"] : Json::array({type["type"]});
        if (option.nullable) types.push_back("null");
        if (option.accepts_number_as_text) {
            types.push_back("string");
            type["pattern"] = R"(^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$)";
        }
        type["type"] = types;
    }
    if (option.synonyms.empty() || option.type == OptionType::choice) return type;
    Json written = Json::array();
    for (const auto& synonym : option.synonyms) written.push_back(synonym.written);
    Json ways = type.contains("anyOf") ? type["anyOf"] : Json::array({type});
    ways.push_back({{"enum", written}});
    return {{"anyOf", ways}};
}

Json option_schema(const Option& option) {
    Json schema = value_schema(option);
    schema["description"] = option.help + relations_in_words(option);
    schema["default"] = option.default_value;
    return schema;
}

Json alias_schema(const Option& option, const Alias& alias) {
    if (alias.when_true)
        return {{"type", Json::array({"boolean", "null"})},
                {"description", "true: " + option.full_name() + " " + alias.when_true->get<std::string>() + "."}};
    Json schema = {{"anyOf", Json::array({value_schema(option), {{"type", "null"}}})}};
    schema["description"] = "Another name of " + option.full_name() + ".";
    return schema;
}

Json peer_schema(const PeerField& field) {
    Json schema = {{"description", "Of transformers, TRL or PEFT; " + describe(field) + "."}};
    if (field.takes_any || (!field.option.empty() && field.meanings.empty())) return schema;
    schema["enum"] = field.taken;
    for (const auto& meaning : field.meanings) schema["enum"].push_back(meaning.first);
    for (const auto& other : field.elsewhere) schema["enum"].push_back(other.value);
    return schema;
}

}  // namespace

Json effective_json(const OptionSet& options) {
    Json root = Json::object();
    for (const auto& option : options.options())
        if (!option.section.empty()) root[option.section][option.key] = option.get();
    return root;
}

Json json_schema(const OptionSet& options) {
    Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                 {"title", "Configuration of unsloth-train"},
                 {"type", "object"},
                 {"additionalProperties", false},
                 {"properties", Json::object()}};
    root["properties"]["$schema"] = {{"type", "string"}, {"description", "Location of this schema;"}};
    for (const auto& section : options.sections()) {
        if (section.name.empty()) continue;
        root["properties"][section.name] = {{"type", "object"},
                                            {"description", section.about},
                                            {"additionalProperties", false},
                                            {"properties", Json::object()}};
    }
    for (const auto& option : options.options()) {
        if (option.section.empty()) continue;
        root["properties"][option.section]["properties"][option.key] = option_schema(option);
        for (const auto& alias : option.aliases)
            root["properties"][alias.section]["properties"][alias.key] = alias_schema(option, alias);
    }
    for (const auto& field : peer_fields())
        root["properties"][field.section]["properties"][field.key] = peer_schema(field);
    root["allOf"] = relation_schemas(options);
    return root;
}

}  // namespace unsloth::config
