// A small validator of the keywords that the JSON Schema uses; an unknown keyword fails the test.
#pragma once

#include <algorithm>
#include <cmath>
#include <regex>
#include <set>

#include "tests/config/support.h"

namespace unsloth::testing {

class Validator {
  public:
    /// The first violation, or "".
    std::string check(const Json& schema, const Json& value, const std::string& where = "") {
        static const std::set<std::string> annotations = {"$schema", "title", "description", "default"};
        for (const auto& [keyword, argument] : schema.items()) {
            if (annotations.count(keyword) != 0) continue;
            const std::string problem = check_keyword(schema, keyword, argument, value, where);
            if (!problem.empty()) return problem;
        }
        return "";
    }

  private:
    static bool is_type(const std::string& type, const Json& value) {
        if (type == "null") return value.is_null();
        if (type == "boolean") return value.is_boolean();
        if (type == "string") return value.is_string();
        if (type == "array") return value.is_array();
        if (type == "object") return value.is_object();
        if (type == "number") return value.is_number();
        if (type == "integer") return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
        throw std::runtime_error("unknown type " + type);
    }

    static bool has_type(const Json& types, const Json& value) {
        if (types.is_string()) return is_type(types, value);
        return std::any_of(types.begin(), types.end(), [&](const Json& type) { return is_type(type, value); });
    }

    static bool within(const std::string& keyword, double bound, double number) {
        if (keyword == "minimum") return number >= bound;
        if (keyword == "maximum") return number <= bound;
        if (keyword == "exclusiveMinimum") return number > bound;
        return number < bound;
    }

    bool fits(const Json& schema, const Json& value) { return check(schema, value).empty(); }

    std::string check_keyword(const Json& schema, const std::string& keyword, const Json& argument, const Json& value,
                              const std::string& where) {
        static const std::set<std::string> bounds = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"};
        bool good = true;
        if (keyword == "type") {
            good = has_type(argument, value);
        } else if (keyword == "enum") {
            good = std::find(argument.begin(), argument.end(), value) != argument.end();
        } else if (bounds.count(keyword) != 0) {
            good = !value.is_number() || within(keyword, argument.get<double>(), value.get<double>());
        } else if (keyword == "anyOf") {
            good = std::any_of(argument.begin(), argument.end(), [&](const Json& one) { return fits(one, value); });
        } else if (keyword == "not") {
            good = !fits(argument, value);
        } else if (keyword == "required") {
            good = std::all_of(argument.begin(), argument.end(), [&](const Json& key) { return value.contains(key); });
        } else if (keyword == "if") {
            if (fits(argument, value)) return check(schema.at("then"), value, where);
        } else if (keyword == "then") {
            return "";
        } else if (keyword == "allOf") {
            for (const Json& one : argument)
                if (const auto problem = check(one, value, where); !problem.empty()) return problem;
        } else if (keyword == "minLength") {
            good = !value.is_string() || value.get<std::string>().size() >= argument.get<std::size_t>();
        } else if (keyword == "pattern") {
            good = !value.is_string() ||
                   std::regex_search(value.get<std::string>(), std::regex(argument.get<std::string>()));
        } else if (keyword == "items") {
            return check_children(argument, value, where, value.is_array());
        } else if (keyword == "properties" || keyword == "additionalProperties") {
            return keyword == "properties" ? check_properties(schema, value, where) : "";
        } else {
            throw std::runtime_error("the validator does not know " + keyword);
        }
        if (keyword == "type" && good && schema.contains("additionalProperties") && !schema.contains("properties"))
            return check_children(schema["additionalProperties"], value, where, value.is_object());
        return good ? "" : where + ": " + keyword + " " + argument.dump() + " against " + value.dump();
    }

    std::string check_children(const Json& schema, const Json& value, const std::string& where, bool applies) {
        if (!applies) return "";
        for (const auto& child : value)
            if (const auto problem = check(schema, child, where + "[]"); !problem.empty()) return problem;
        return "";
    }

    std::string check_properties(const Json& schema, const Json& value, const std::string& where) {
        if (!value.is_object()) return "";
        for (const auto& [key, child] : value.items()) {
            if (!schema["properties"].contains(key)) {
                if (schema.value("additionalProperties", true)) continue;
                return where + ": unknown " + key;
            }
            if (const auto problem = check(schema["properties"][key], child, where + "." + key); !problem.empty())
                return problem;
        }
        return "";
    }
};

inline std::string violation(const Json& document) {
    static const Json schema = Json::parse(config::config_schema());
    return Validator().check(schema, document);
}

}  // namespace unsloth::testing
