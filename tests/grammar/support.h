// Texts drawn from a grammar, and whether JSON fits a schema.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "unsloth/grammar/matcher.h"

namespace unsloth::grammar {

using Json = nlohmann::ordered_json;

/// All bytes, pieces of JSON, and tokens that are parts of characters; two special ones at the end.
inline std::shared_ptr<const Vocabulary> small_vocabulary() {
    std::vector<std::string> bytes;
    for (int i = 0; i < 256; ++i) bytes.emplace_back(1, static_cast<char>(i));
    for (const char* text :
         {"{\"",   "\": ",   "\", \"",  "\"}",      "}}",       "]}",       "]]",     "[[",      "true", "false",
          "null",  "tru",    "12",      "007",      "-1",       "1.",       "e+",     ", ",      ": ",   "\\\"",
          "\\u00", "\\\\",   "\xC3",    "\xC3\xA9", "\xF0\x9F", "\x98\x80", "\xA9\"", "a",       "ab",   "abc",
          "name",  "\"name", "value\"", "\n  ",     "\n\t",     " ",        "  ",     "\"a\": ", "{}",   "[]",
          "\",",   "x\"",    "0",       "1",        "9",        "99"})
        bytes.emplace_back(text);
    bytes.insert(bytes.end(), 2, "");
    return std::make_shared<const Vocabulary>(bytes);
}

inline std::shared_ptr<MaskCache> compiled(Part::Kind kind, const std::string& text) {
    const Pattern pattern{.alternatives = {{{kind, text}}}};
    return std::make_shared<MaskCache>(std::make_shared<const Grammar>(pattern), small_vocabulary());
}

inline bool allows(std::span<const uint32_t> mask, std::size_t id) {
    return (mask[id / 32] >> (id % 32) & 1U) != 0;
}

/// A text of random tokens that the masks allow; after `most` tokens those come first that end it. "" where none does.
inline std::string drawn(const std::shared_ptr<MaskCache>& cache, std::mt19937& random, int most = 60) {
    static const std::shared_ptr<const Vocabulary> vocabulary = small_vocabulary();
    Matcher matcher(cache);
    std::string text;
    for (int i = 0; i < 20 * most; ++i) {
        const std::span<const uint32_t> mask = matcher.allowed();
        std::vector<int32_t> ids;
        for (int32_t id = 0; id < vocabulary->size(); ++id)
            if (allows(mask, static_cast<std::size_t>(id))) ids.push_back(id);
        if (matcher.may_end() && (ids.empty() || i > most || random() % 8 == 0)) return text;
        if (ids.empty()) return "";
        int32_t id = ids[random() % ids.size()];
        const bool hurries = i > most || random() % 4 == 0;
        for (const char c : {'"', ']', '}', 'n', 't', '0', ':', ','})
            if (hurries && allows(mask, static_cast<unsigned char>(c))) {
                id = static_cast<unsigned char>(c);
                break;
            }
        if (!matcher.advance(id)) return "";
        text += vocabulary->bytes(id);
    }
    return "";
}

inline std::size_t characters_in(const std::string& text) {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

/// Of the keywords that grammars have; `root` for references.
inline bool is_valid(const Json& value, const Json& schema, const Json& root) {
    if (schema.is_boolean()) return schema.get<bool>();
    const auto has = [&](const char* key) { return schema.contains(key); };
    if (value.is_null() && schema.value("nullable", false)) return true;
    if (has("$ref")) {
        const std::string path = schema["$ref"];
        return is_valid(value, root.at(Json::json_pointer(path.substr(1))), root);
    }
    const auto fits_some = [&](const Json& all) {
        return std::count_if(all.begin(), all.end(), [&](const Json& one) { return is_valid(value, one, root); });
    };
    if (has("anyOf") && fits_some(schema["anyOf"]) == 0) return false;
    if (has("oneOf") && fits_some(schema["oneOf"]) != 1) return false;
    if (has("const") && value != schema["const"]) return false;
    if (has("enum") && std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end())
        return false;
    if (has("type")) {
        const Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
        const bool fits = std::any_of(types.begin(), types.end(), [&](const Json& type) {
            if (type == "integer") return value.is_number_integer();
            if (type == "number") return value.is_number();
            return type == value.type_name();
        });
        if (!fits) return false;
    }
    if (value.is_number()) {
        const double number = value.get<double>();
        if (has("minimum") && number < schema["minimum"]) return false;
        if (has("maximum") && number > schema["maximum"]) return false;
        if (has("exclusiveMinimum") && number <= schema["exclusiveMinimum"]) return false;
        if (has("exclusiveMaximum") && number >= schema["exclusiveMaximum"]) return false;
    }
    if (value.is_string()) {
        const auto& text = value.get_ref<const std::string&>();
        if (has("minLength") && characters_in(text) < schema["minLength"]) return false;
        if (has("maxLength") && characters_in(text) > schema["maxLength"]) return false;
        if (has("pattern") && !std::regex_search(text, std::regex(schema["pattern"].get<std::string>()))) return false;
    }
    if (value.is_array()) {
        if (has("minItems") && value.size() < schema["minItems"]) return false;
        if (has("maxItems") && value.size() > schema["maxItems"]) return false;
        const Json first = schema.value("prefixItems", Json::array());
        for (std::size_t i = 0; i < value.size(); ++i)
            if (!is_valid(value[i], i < first.size() ? first[i] : schema.value("items", Json(true)), root))
                return false;
    }
    if (value.is_object()) {
        for (const Json& name : schema.value("required", Json::array()))
            if (!value.contains(name.get<std::string>())) return false;
        for (const auto& [name, member] : value.items()) {
            const Json named = schema.value("properties", Json::object());
            if (!is_valid(member, named.contains(name) ? named[name] : schema.value("additionalProperties", Json(true)),
                          root))
                return false;
        }
    }
    return true;
}

}  // namespace unsloth::grammar
