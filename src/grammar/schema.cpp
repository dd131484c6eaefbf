// JSON of a schema (https://json-schema.org, draft 2020-12). A keyword that is not supported is refused by name.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "grammar/integer_range.h"
#include "grammar/json_rules.h"
#include "grammar/nodes.h"
#include "grammar/schema_references.h"
#include "unsloth/core/error.h"

namespace unsloth::grammar {
namespace {

constexpr std::size_t longest_schema = std::size_t{1} << 20;
constexpr int64_t most_items = 10'000, most_digits = 15;

constexpr std::string_view annotations[] = {"title", "description", "default",  "examples",     "$schema",
                                            "$id",   "$comment",    "readOnly", "writeOnly",    "deprecated",
                                            "$defs", "definitions", "$anchor",  "discriminator"};

bool is_annotation(const std::string& key) {
    return std::ranges::find(annotations, key) != std::end(annotations);
}

/// RFC 3339 and the like, as parts of what the formats allow.
const std::map<std::string, const char*, std::less<>> formats = {
    {"date", "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"},
    {"time", "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"},
    {"date-time",
     "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?"
     "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"},
    {"duration", "P([0-9]{1,4}D(T[0-9]{1,4}H)?|T[0-9]{1,4}(H|M|S)|[0-9]{1,4}(W|M|Y))"},
    {"email", "[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,16}){0,3}@[A-Za-z0-9]{1,32}(\\.[A-Za-z0-9]{2,16}){1,3}"},
    {"hostname", "[A-Za-z0-9]{1,32}(-[A-Za-z0-9]{1,16}){0,2}(\\.[A-Za-z0-9]{1,32}){0,4}"},
    {"ipv4", "((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"},
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
};

std::string written(const Json& value) {
    return value.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::strict);
}

class SchemaParser : public JsonRules {
  public:
    SchemaParser(Builder& builder, const Json& root) : JsonRules(builder), root_(root), references_(root) {}

    Piece whole() { return builder_.called(rule_of(root_, 0)); }

  private:
    /// Each schema is one rule, however often it is referred to.
    int32_t rule_of(const Json& schema, int depth) {
        if (depth > deepest_schema) throw Refused(cat("the schema is nested deeper than ", deepest_schema));
        const auto known = rules_.find(&schema);
        if (known != rules_.end()) return known->second;
        const int32_t rule = builder_.rule();
        rules_.emplace(&schema, rule);
        builder_.fill(rule, piece_of(schema, depth));
        return rule;
    }
    Piece value_of(const Json& schema, int depth) { return builder_.called(rule_of(schema, depth + 1)); }

    Piece piece_of(const Json& schema, int depth) {
        if (schema.is_boolean()) {
            if (!schema.get<bool>()) throw Refused("the schema has a 'false', which no value fits");
            return call("value");
        }
        if (!schema.is_object()) throw Refused("the schema has a part that is neither an object nor a boolean");
        Piece piece = typed(schema, depth);
        if (const auto nullable = schema.find("nullable"); nullable != schema.end() && *nullable == true)
            piece = builder_.either({piece, text("null")});
        return piece;
    }

    void allow_only(const Json& schema, std::initializer_list<std::string_view> keys) const {
        for (const auto& [key, value] : schema.items())
            if (!is_annotation(key) && key != "nullable" && std::ranges::find(keys, key) == keys.end())
                refuse_keyword(key);
    }

    Piece typed(const Json& schema, int depth) {
        if (const auto ref = schema.find("$ref"); ref != schema.end()) {
            allow_only(schema, {"$ref"});
            return value_of(references_.referred(*ref), depth);
        }
        for (const char* key : {"anyOf", "oneOf"})
            if (const auto all = schema.find(key); all != schema.end()) {
                allow_only(schema, {key});
                return choices(*all, key, depth);
            }
        if (const auto all = schema.find("allOf"); all != schema.end()) {
            allow_only(schema, {"allOf"});
            if (!all->is_array() || all->size() != 1) refuse_keyword("allOf", "is supported with one schema only");
            return value_of(all->front(), depth);
        }
        if (schema.contains("enum") || schema.contains("const")) return values(schema);
        std::vector<std::string> types = types_of(schema);
        if (types.empty()) {
            allow_only(schema, {});
            return call("value");
        }
        std::vector<Piece> pieces;
        for (const std::string& type : types) pieces.push_back(of_type(type, schema, depth, types.size() == 1));
        return pieces.size() == 1 ? pieces.front() : builder_.either(pieces);
    }

    /// Those that "type" names, or the one that the keywords are of.
    static std::vector<std::string> types_of(const Json& schema) {
        std::vector<std::string> types;
        if (const auto type = schema.find("type"); type != schema.end()) {
            const Json list = type->is_array() ? *type : Json::array({*type});
            for (const Json& one : list) {
                if (!one.is_string()) refuse_keyword("type", "is neither a name nor a list of names");
                types.push_back(one.get<std::string>());
            }
            if (types.empty()) refuse_keyword("type", "is empty");
            return types;
        }
        const auto has = [&](std::initializer_list<const char*> keys) {
            return std::any_of(keys.begin(), keys.end(), [&](const char* key) { return schema.contains(key); });
        };
        if (has({"properties", "required", "additionalProperties"})) return {"object"};
        if (has({"items", "prefixItems", "minItems", "maxItems"})) return {"array"};
        if (has({"pattern", "minLength", "maxLength", "format"})) return {"string"};
        return {};
    }

    /// With several types, keywords of each of them may be there.
    Piece of_type(const std::string& type, const Json& schema, int depth, bool alone) {
        struct Type {
            const char* name;
            std::vector<std::string_view> keywords;
        };
        static const std::vector<Type> all = {
            {"object", {"properties", "required", "additionalProperties"}},
            {"array", {"items", "prefixItems", "minItems", "maxItems"}},
            {"string", {"pattern", "minLength", "maxLength", "format"}},
            {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
            {"number", {}},
            {"boolean", {}},
            {"null", {}},
        };
        const auto own = std::ranges::find(all, type, &Type::name);
        if (own == all.end()) refuse_keyword("type", cat("is '", type.substr(0, 40), "', which is no type"));
        for (const auto& [key, value] : schema.items()) {
            const auto is = [&key = key](const Type& one) {
                return std::ranges::find(one.keywords, key) != one.keywords.end();
            };
            if (is_annotation(key) || key == "nullable" || key == "type" || is(*own)) continue;
            if (alone || std::none_of(all.begin(), all.end(), is))
                refuse_keyword(key, cat("is not supported for type ", type));
        }
        if (type == "object") return object_of(schema, depth);
        if (type == "array") return array_of(schema, depth);
        if (type == "string") return string_of(schema);
        if (type == "integer") return integer_of(schema);
        if (type == "number") return call("number");
        if (type == "boolean") return builder_.either({text("true"), text("false")});
        return text("null");
    }

    Piece choices(const Json& all, const char* key, int depth) {
        if (!all.is_array() || all.empty()) refuse_keyword(key, "is no list of schemas");
        if (std::string_view(key) == "oneOf" && !references_.are_disjoint(all))
            refuse_keyword(key,
                           "is supported for schemas of different types, or with a required property whose constants "
                           "differ; use 'anyOf'");
        std::vector<Piece> pieces;
        for (const Json& one : all) pieces.push_back(value_of(one, depth));
        return builder_.either(pieces);
    }

    static bool fits(const Json& value, const std::string& type) {
        if (type == "integer")
            return value.is_number_integer() ||
                   (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()));
        return (type == "object" && value.is_object()) || (type == "array" && value.is_array()) ||
               (type == "string" && value.is_string()) || (type == "number" && value.is_number()) ||
               (type == "boolean" && value.is_boolean()) || (type == "null" && value.is_null());
    }
    Piece values(const Json& schema) {
        allow_only(schema, {"enum", "const", "type"});
        Json list = schema.contains("const") ? Json::array({schema["const"]}) : schema["enum"];
        if (!list.is_array()) refuse_keyword("enum", "is no list");
        if (schema.contains("const") && schema.contains("enum"))
            refuse_keyword("const", "is not supported next to 'enum'");
        const std::vector<std::string> types = types_of(schema);
        std::vector<Piece> pieces;
        for (const Json& value : list)
            if (types.empty() || std::ranges::any_of(types, [&](const auto& type) { return fits(value, type); }))
                pieces.push_back(text(written(value)));
        if (pieces.empty()) refuse_keyword("enum", "has no value of the type");
        return builder_.either(pieces);
    }

    /// A bound of a length.
    static std::optional<int64_t> bound(const Json& schema, const char* key) {
        const auto found = schema.find(key);
        if (found == schema.end()) return std::nullopt;
        const bool whole = found->is_number_integer() ||
                           (found->is_number_float() && found->get<double>() == std::floor(found->get<double>()));
        if (!whole || found->get<double>() < 0) refuse_keyword(key, "is no whole number");
        if (found->get<double>() > static_cast<double>(most_items)) refuse_keyword(key, cat("is above ", most_items));
        return static_cast<int64_t>(found->get<double>());
    }

    Piece string_of(const Json& schema) {
        const auto least = bound(schema, "minLength"), most = bound(schema, "maxLength");
        const auto pattern = schema.find("pattern"), format = schema.find("format");
        if ((pattern != schema.end()) + (format != schema.end()) + (least || most ? 1 : 0) > 1)
            refuse_keyword(pattern != schema.end() ? "pattern" : "format",
                           "is supported without other keywords of strings");
        if (pattern != schema.end()) {
            if (!pattern->is_string()) refuse_keyword("pattern", "is no text");
            return join({text("\""),
                         regex_piece(builder_, pattern->get_ref<const std::string&>(), Spelling::json_string, false),
                         text("\"")});
        }
        if (format != schema.end()) {
            const auto known = formats.find(format->is_string() ? format->get<std::string>() : "");
            if (known == formats.end())
                refuse_keyword("format", cat("has the value ", format->dump(-1, ' ', true).substr(0, 60),
                                             ", which is not supported"));
            return join({text("\""), plain(known->second), text("\"")});
        }
        if (!least && !most) return call("string");
        if (most && *most < least.value_or(0)) refuse_keyword("maxLength", "is below 'minLength'");
        return join({text("\""),
                     builder_.repeated(least.value_or(0), most.value_or(-1), [this] { return call("character"); }),
                     text("\"")});
    }

    Piece integer_of(const Json& schema) {
        constexpr int64_t none = std::numeric_limits<int64_t>::max();
        int64_t least = -none, most = none;
        const auto whole = [&](const char* key, bool up) -> std::optional<int64_t> {
            const auto found = schema.find(key);
            if (found == schema.end()) return std::nullopt;
            const double value = found->is_number() ? found->get<double>() : std::nan("");
            if (!(std::abs(value) < 1e15)) refuse_keyword(key, "is no number below 1e15");
            return static_cast<int64_t>(up ? std::ceil(value) : std::floor(value));
        };
        if (const auto v = whole("minimum", true)) least = std::max(least, *v);
        if (const auto v = whole("exclusiveMinimum", false)) least = std::max(least, *v + 1);
        if (const auto v = whole("maximum", false)) most = std::min(most, *v);
        if (const auto v = whole("exclusiveMaximum", true)) most = std::min(most, *v - 1);
        if (least == -none && most == none) return call("integer");
        if (least > most) refuse_keyword("maximum", "is below 'minimum'");
        constexpr int64_t widest = 999'999'999'999'999;  // most_digits
        static_assert(most_digits == 15);
        return plain(integer_range_regex(std::max(least, -widest), std::min(most, widest)).c_str());
    }

    Piece array_of(const Json& schema, int depth) {
        const int64_t least = bound(schema, "minItems").value_or(0);
        const std::optional<int64_t> most = bound(schema, "maxItems");
        if (most && *most < least) refuse_keyword("maxItems", "is below 'minItems'");
        const auto items = schema.find("items");
        if (items != schema.end() && items->is_array()) refuse_keyword("items", "is a list; use 'prefixItems'");
        const bool ends = items != schema.end() && items->is_boolean() && !items->get<bool>();
        const auto element = [&] { return items == schema.end() ? call("value") : value_of(*items, depth); };
        if (!schema.contains("prefixItems")) {
            if (ends && least > 0) refuse_keyword("items", "is false, and 'minItems' above 0");
            return list("[", element, "]", least, ends ? 0 : most.value_or(-1));
        }
        return tuple(schema["prefixItems"], element, least, ends ? std::optional<int64_t>(0) : most, depth);
    }

    /// The first items have schemas of their own; all of them are written.
    template <class Element>
    Piece tuple(const Json& first, const Element& element, int64_t least, std::optional<int64_t> most, int depth) {
        if (!first.is_array() || first.empty()) refuse_keyword("prefixItems", "is no list of schemas");
        const auto count = static_cast<int64_t>(first.size());
        const bool ends = most && *most == 0;
        if (ends ? least > count : most && *most < count)
            refuse_keyword("prefixItems", "does not fit 'minItems' and 'maxItems'");
        Piece inner = builder_.empty();
        for (int64_t i = 0; i < count; ++i) {
            if (i > 0) inner = join({inner, text(","), call("space")});
            inner = builder_.sequence(inner, value_of(first[static_cast<std::size_t>(i)], depth));
        }
        if (!ends)
            inner = builder_.sequence(inner,
                                      builder_.repeated(std::max<int64_t>(least - count, 0), most ? *most - count : -1,
                                                        [&] { return join({text(","), call("space"), element()}); }));
        return join({text("["), call("space"), inner, call("space"), text("]")});
    }

    Piece object_of(const Json& schema, int depth) {
        const auto properties = schema.find("properties"), more = schema.find("additionalProperties");
        const Json none = Json::object();
        const Json& named = properties == schema.end() ? none : *properties;
        if (!named.is_object()) refuse_keyword("properties", "is no object");
        std::set<std::string> required;
        if (const auto list = schema.find("required"); list != schema.end()) {
            if (!list->is_array()) refuse_keyword("required", "is no list");
            for (const Json& name : *list) {
                if (!name.is_string()) refuse_keyword("required", "is no list of names");
                if (!named.contains(name.get<std::string>()))
                    refuse_keyword("required", cat("names '", name.get<std::string>().substr(0, 60),
                                                   "', which 'properties' does not have"));
                required.insert(name.get<std::string>());
            }
        }
        if (properties == schema.end() && more == schema.end()) return call("object");
        const bool is_open = more != schema.end() && *more != Json(false);
        return braces(named, required, is_open ? &*more : nullptr, depth);
    }

    /// The properties in their order; two nodes at each place: nothing was written yet, and something was.
    Piece braces(const Json& named, const std::set<std::string>& required, const Json* more, int depth) {
        const Piece all{builder_.node(), builder_.node()};
        const Piece begin = join({text("{"), call("space")}), end = join({call("space"), text("}")});
        builder_.connect(all.from, begin.from);
        builder_.connect(end.to, all.to);
        int32_t none = begin.to, some = builder_.node();
        const auto add = [&](int32_t from, Piece member, int32_t to) {
            builder_.connect(from, member.from);
            builder_.connect(member.to, to);
        };
        const auto comma = [&] { return join({text(","), call("space")}); };
        for (const auto& [name, schema] : named.items()) {
            const auto member = [&, &name = name, &schema = schema] {
                return join({text(written(name)), text(":"), call("space"), value_of(schema, depth)});
            };
            const int32_t next_none = builder_.node(), next_some = builder_.node();
            add(none, member(), next_some);
            add(some, builder_.sequence(comma(), member()), next_some);
            if (!required.contains(name)) {
                builder_.connect(none, next_none);
                builder_.connect(some, next_some);
            }
            none = next_none;
            some = next_some;
        }
        if (more != nullptr) {
            const int32_t key = builder_.rule();
            std::vector<std::string> names;
            for (const auto& [name, schema] : named.items()) names.push_back(name);
            builder_.fill(key, other_key(builder_, names));
            const auto member = [&] {
                return join({builder_.called(key), text(":"), call("space"),
                             *more == Json(true) ? call("value") : value_of(*more, depth)});
            };
            add(none, member(), some);
            add(some, builder_.sequence(comma(), member()), some);
        }
        builder_.connect(none, end.from);
        builder_.connect(some, end.from);
        return all;
    }

    const Json& root_;
    const SchemaReferences references_;
    std::map<const Json*, int32_t> rules_;
};

/// Whether brackets nest deeper than parsers should follow.
bool nests_deep(std::string_view text) {
    int depth = 0, deepest = 0;
    for (const char c : text) {
        if (c == '{' || c == '[') deepest = std::max(deepest, ++depth);
        if (c == '}' || c == ']') --depth;
    }
    return deepest > 4 * deepest_schema;
}

}  // namespace

Piece schema_piece(Builder& builder, std::string_view schema) {
    if (schema.size() > longest_schema) throw Refused(cat("the schema has more than ", longest_schema, " bytes"));
    if (nests_deep(schema)) throw Refused("the schema is nested too deep");
    const Json root = Json::parse(schema, nullptr, /*allow_exceptions=*/false);
    if (root.is_discarded()) throw Refused("the schema is no JSON");
    return SchemaParser(builder, root).whole();
}

Piece object_piece(Builder& builder) {
    return JsonRules(builder).any_object();
}

}  // namespace unsloth::grammar
