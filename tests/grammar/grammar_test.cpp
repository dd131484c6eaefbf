#include "unsloth/grammar/grammar.h"

#include <gtest/gtest.h>

#include <functional>

#include "grammar/support.h"
#include "unsloth/core/utf8.h"

namespace unsloth::grammar {
namespace {

/// "yes": a whole text; "begun": the beginning of one; "no".
std::string accepts(const std::shared_ptr<MaskCache>& cache, const std::string& text) {
    Matcher matcher(cache);
    for (const char c : text) {
        const bool allowed = allows(matcher.allowed(), static_cast<unsigned char>(c));
        EXPECT_EQ(matcher.advance(std::string_view(&c, 1)), allowed) << text;
        if (!allowed) return "no";
    }
    return matcher.may_end() ? "yes" : "begun";
}
std::string regex(const std::string& pattern, const std::string& text) {
    return accepts(compiled(Part::Kind::regex, pattern), text);
}
std::string schema(const std::string& schema, const std::string& text) {
    return accepts(compiled(Part::Kind::json_schema, schema), text);
}
std::string refusal(Part::Kind kind, const std::string& text) {
    try {
        compiled(kind, text);
        return "";
    } catch (const Refused& why) {
        return why.what();
    }
}

TEST(GrammarRegex, MatchesWholeTexts) {
    const std::vector<std::array<std::string, 3>> cases = {
        {"", "", "yes"},
        {"[a-c]+(x|y){2,3}é?", "abxyx\xC3\xA9", "yes"},
        {"[a-c]+(x|y){2,3}", "abx", "begun"},
        {"[a-c]+(x|y){2,3}", "abxyxy", "no"},
        {"^a|bc$", "bc", "yes"},
        {"(?:ab)*?", "abab", "yes"},
        {"(?P<year>\\d{4})-(?<month>\\d\\d)", "2026-11", "yes"},
        {"[^\"\\\\]{2}", "\xF0\x9F\x98\x80z", "yes"},
        {"[^a]", "a", "no"},
        {".", "\n", "no"},
        {"[\\]\\-x]+", "-]x", "yes"},
        {"[a-]", "-", "yes"},
        {"a{,3}", "a{,3}", "yes"},
        {"\\u00e9\\x41\\.",
         "\xC3\xA9"
         "A.",
         "yes"},
        {"[\\w.+-]+@\\w+", "a.b+c@d", "yes"},
        {"[\xC3\xA0-\xC3\xBF]", "\xC3\xA9", "yes"},
        {"[\xC3\xA0-\xC3\xBF]", "\xC3\x80", "no"},
    };
    for (const auto& [pattern, text, expected] : cases)
        EXPECT_EQ(regex(pattern, text), expected) << pattern << " " << text;
}

TEST(GrammarRegex, SaysWhatItHasNot) {
    const std::vector<std::pair<std::string, std::string>> cases = {{"(?=a)", "lookaround"},
                                                                    {"(?<!a)b", "lookaround"},
                                                                    {"(a)\\1", "'\\1'"},
                                                                    {"\\bword", "word boundary"},
                                                                    {"a^b", "anchors"},
                                                                    {"(a", "')' is missing"},
                                                                    {"a)", "unmatched ')'"},
                                                                    {"[z-a]", "range"},
                                                                    {"*a", "follows nothing"},
                                                                    {"a**", "a quantifier"},
                                                                    {"[a", "']'"},
                                                                    {"a{3,2}", "exchanged"},
                                                                    {"a{99999}", "above 10000"},
                                                                    {"(?i)a", "flags"},
                                                                    {"\\p{L}", "'\\p'"},
                                                                    {"\xC3", "UTF-8"},
                                                                    {"((a{1,100}){1,100}){1,100}", "too large"}};
    for (const auto& [pattern, words] : cases) {
        const std::string why = refusal(Part::Kind::regex, pattern);
        EXPECT_NE(why.find(words), std::string::npos) << pattern << ": " << why;
    }
    EXPECT_NE(refusal(Part::Kind::regex, std::string(100, '(') + std::string(100, ')')).find("deeper"),
              std::string::npos);
    EXPECT_NE(refusal(Part::Kind::regex, std::string(20'000, 'a')).find("bytes"), std::string::npos);
}

TEST(GrammarSchema, AllowsWhatFits) {
    const std::string tree = R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
        "v": {"type": "string"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        "required": ["v", "next"], "additionalProperties": false}}})";
    const std::string open = R"({"type": "object", "properties": {"ab": {"type": "integer"}, "b": {"type": "null"}},
        "required": ["b"], "additionalProperties": {"type": "boolean"}})";
    const std::vector<std::array<std::string, 3>> cases = {
        {tree, R"({"v": "x", "next": {"v": "\u00e9\n\ud83d\ude00", "next": null}})", "yes"},
        {tree, R"({"v": "x"})", "no"},
        {tree, R"({"v": "\ud83d")", "no"},
        {open, R"({"ab": 1, "b": null, "c": true})", "yes"},
        {open, R"({"b":null})", "yes"},
        {open, R"({"ab": 1})", "no"},
        {open, R"({"b": null, "ab": true})", "no"},
        {open, R"({"b": null, "abc": true, "a": false})", "yes"},
        {R"({"type": "array", "items": {"enum": ["a", 1, null]}, "minItems": 1, "maxItems": 2})", R"(["a", 1])", "yes"},
        {R"({"type": "array", "items": {"enum": ["a", 1, null]}, "minItems": 1, "maxItems": 2})", R"([])", "no"},
        {R"({"type": "array", "items": {"enum": ["a", 1, null]}, "minItems": 1, "maxItems": 2})", R"([1, 1, 1])", "no"},
        {R"({"type": "array", "prefixItems": [{"type": "integer"}], "items": false})", "[1]", "yes"},
        {R"({"type": "array", "prefixItems": [{"type": "integer"}], "items": false})", "[1,", "no"},
        {R"({"type": "integer", "minimum": -12, "exclusiveMaximum": 105})", "-12", "yes"},
        {R"({"type": "integer", "minimum": -12, "exclusiveMaximum": 105})", "-13", "no"},
        {R"({"type": "integer", "minimum": -12, "exclusiveMaximum": 105})", "104", "yes"},
        {R"({"type": "integer", "minimum": -12, "exclusiveMaximum": 105})", "105", "no"},
        {R"({"type": "string", "pattern": "^\"[a-z]+\\\\$"})", R"("\"abc\\")", "yes"},
        {R"({"type": "string", "pattern": "b"})", R"("abc")", "yes"},
        {R"({"type": "string", "pattern": "b"})", R"("ac")", "no"},
        {R"({"type": "string", "minLength": 2, "maxLength": 3})", "\"\xC3\xA9\"", "no"},
        {R"({"type": "string", "minLength": 2, "maxLength": 3})", "\"\xC3\xA9\\n\"", "yes"},
        {R"({"type": "string", "format": "date"})", R"("2026-11-27")", "yes"},
        {R"({"type": "string", "format": "uuid"})", R"("2026")", "no"},
        {R"({"type": "string", "nullable": true})", "null", "yes"},
        {R"({"type": ["string", "null"], "maxLength": 1})", "null", "yes"},
        {R"({"const": {"a": [1, "x"]}})", R"({"a":[1,"x"]})", "yes"},
        {R"({"oneOf": [{"type": "string"}, {"type": "integer"}]})", "5", "yes"},
        {R"({})", R"([{"a": 1.5e-3}, "b", true])", "yes"},
        {R"({"type": "object"})", R"({"x": {}})", "yes"},
        {R"({"type": "object", "additionalProperties": false})", R"({})", "yes"},
        {R"({"type": "object", "additionalProperties": false})", R"({"a)", "no"},
        {R"({"type": "number"})", "-0.5E+12", "yes"},
        {R"({"type": "number"})", "01", "no"},
    };
    for (const auto& [of, text, expected] : cases) EXPECT_EQ(schema(of, text), expected) << of << " " << text;
}

TEST(GrammarSchema, RefusesKeywordsByName) {
    const std::vector<std::pair<std::string, std::string>> cases = {
        {R"({"not": {}})", "'not'"},
        {R"({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}})", "'uniqueItems'"},
        {R"({"type": "number", "multipleOf": 3})", "'multipleOf'"},
        {R"({"type": "object", "patternProperties": {}})", "'patternProperties'"},
        {R"({"if": {}, "then": {}})", "'if'"},
        {R"({"type": "string", "minItems": 1})", "'minItems'"},
        {R"({"type": "string", "format": "iri"})", "'format'"},
        {R"({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 3}]})", "'oneOf'"},
        {R"({"allOf": [{}, {}]})", "'allOf'"},
        {R"({"$ref": "https://example.org"})", "'$ref'"},
        {R"({"$ref": "#/$defs/none"})", "'$ref'"},
        {R"({"type": "text"})", "'type'"},
        {R"({"type": "object", "required": ["a"]})", "'required'"},
        {R"({"type": "integer", "minimum": 3, "maximum": 1})", "'maximum'"},
        {R"x({"type": "string", "pattern": "(?=a)"})x", "lookaround"},
        {R"({"$ref": "#"})", "refers to itself"},
        {R"({"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": [{"$ref": "#"}]}}})", "refers to itself"},
        {R"({"type": "array", "minItems": 100000})", "'minItems'"},
        {R"({"properties": {"a": {"type": "string", "maxLength": 9999}, "b": {"type": "string", "pattern": ".{5000}"}}})",
         "too large"},
        {R"(false)", "false"},
        {R"([1])", "neither"},
        {R"({"a)", "no JSON"},
    };
    for (const auto& [of, words] : cases) {
        const std::string why = refusal(Part::Kind::json_schema, of);
        EXPECT_NE(why.find(words), std::string::npos) << of << ": " << why;
    }
    std::string deep;
    for (int i = 0; i < 300; ++i) deep += R"({"items": )";
    EXPECT_NE(refusal(Part::Kind::json_schema, deep + "{}" + std::string(300, '}')).find("deeper"), std::string::npos);
    EXPECT_NE(refusal(Part::Kind::json_schema, std::string(100'000, '[')).find("deep"), std::string::npos);
}

// --- random schemas
// ------------------------------------------------------------------------------------------------------

Json random_schema(std::mt19937& random, int depth) {
    const auto below = [&](uint32_t n) { return static_cast<int>(random() % n); };
    switch (below(depth > 0 ? 11U : 7U)) {
        case 0:
            return {{"type", "string"}};
        case 1: {
            const int least = below(4);
            return {{"type", "string"}, {"minLength", least}, {"maxLength", least + below(4)}};
        }
        case 2: {
            const int least = below(2000) - 1000;
            return {{"type", "integer"}, {"minimum", least}, {"maximum", least + below(300)}};
        }
        case 3:
            return {{"type", Json::array({"number", "null"})}};
        case 4:
            return {{"enum", Json::array({"a\"b", 12, nullptr, true, "\xC3\xA9\n", Json::array({1, Json::object()})})}};
        case 5: {
            const char* const patterns[] = {"^[a-c]{2,4}$", "x[0-9]+", "^\\d{3}-\\w*$", "^(ab|\"|\\\\)+$"};
            return {{"type", "string"}, {"pattern", patterns[below(4)]}};
        }
        case 6:
            return {{"type", "boolean"}, {"nullable", below(2) == 0}};
        case 7: {
            const int least = below(3);
            Json made = {{"type", "array"}, {"items", random_schema(random, depth - 1)}, {"minItems", least}};
            if (below(2) == 0) made["maxItems"] = least + below(3);
            return made;
        }
        case 8:
            return {{"anyOf", Json::array({random_schema(random, depth - 1), random_schema(random, depth - 1)})}};
        case 9:
            return {{"$ref", "#/$defs/tree"}};
        default:
            break;
    }
    Json made = {{"type", "object"}, {"properties", Json::object()}, {"required", Json::array()}};
    for (const char* name : {"a", "ab", "name", "\xC3\xA9\"", "b"}) {
        if (below(2) == 0) continue;
        made["properties"][name] = random_schema(random, depth - 1);
        if (below(2) == 0) made["required"].push_back(name);
    }
    if (const int open = below(3); open > 0)
        made["additionalProperties"] = open == 1 ? Json(false) : random_schema(random, depth - 1);
    return made;
}

/// With masks that are those of single steps.
TEST(GrammarSchema, WhatRandomSchemasAllowIsValid) {
    std::mt19937 random(7);
    const Json tree = {{"type", "object"},
                       {"properties",
                        {{"value", {{"type", "integer"}}},
                         {"more", {{"type", "array"}, {"items", {{"$ref", "#/$defs/tree"}}}, {"maxItems", 2}}}}},
                       {"required", Json::array({"value"})},
                       {"additionalProperties", false}};
    int complete = 0, characters = 0;
    for (int i = 0; i < 1000; ++i) {
        Json root = random_schema(random, 3);
        root["$defs"] = {{"tree", tree}};
        const std::shared_ptr<MaskCache> cache = compiled(Part::Kind::json_schema, root.dump());
        const std::string text = drawn(cache, random);
        if (text.empty()) continue;
        ++complete;
        ASSERT_EQ(first_invalid_utf8(text), text.size()) << root.dump() << "\n" << text;
        const Json value = Json::parse(text, nullptr, false);
        ASSERT_FALSE(value.is_discarded()) << root.dump() << "\n" << text;
        ASSERT_TRUE(is_valid(value, root, root)) << root.dump() << "\n" << text;
        characters += characters_in(text) < text.size() ? 1 : 0;
    }
    EXPECT_GT(complete, 950);
    EXPECT_GT(characters, 50) << "no text has a character of several bytes: this shows little";
}

TEST(GrammarMasks, AreWhatSingleTokensSay) {
    std::mt19937 random(3);
    const auto vocabulary = small_vocabulary();
    for (const char* of : {R"({"type": "array", "items": {"type": ["string", "number"]}})", "{}",
                           R"({"type": "object", "properties": {"name": {"type": "string", "pattern": "^a+\"$"}}})"}) {
        Matcher matcher(compiled(Part::Kind::json_schema, of));
        for (int step = 0; step < 200; ++step) {
            const std::span<const uint32_t> mask = matcher.allowed();
            std::vector<int32_t> ids;
            for (int32_t id = 0; id < vocabulary->size(); ++id) {
                Matcher other = matcher;
                ASSERT_EQ(other.advance(id), allows(mask, static_cast<std::size_t>(id))) << vocabulary->bytes(id);
                if (allows(mask, static_cast<std::size_t>(id))) ids.push_back(id);
            }
            EXPECT_FALSE(allows(mask, static_cast<std::size_t>(vocabulary->size()) - 1)) << "a special token";
            if (ids.empty()) break;
            ASSERT_TRUE(matcher.advance(ids[random() % ids.size()]));
        }
    }
}

/// More states than are kept: the text goes on among others.
TEST(GrammarMasks, TextsOutliveTheirStates) {
    Matcher matcher(compiled(Part::Kind::json_schema, R"({"type": "string", "maxLength": 10000})"));
    ASSERT_TRUE(matcher.advance("\""));
    for (int i = 0; i < 9'000; ++i) {
        ASSERT_FALSE(matcher.advance("\xC3\xA9\n")) << "and nothing changes";
        ASSERT_TRUE(matcher.advance("\xC3\xA9"));
        if (i % 10 == 0) {
            ASSERT_TRUE(allows(matcher.allowed(), '"'));
        }
    }
    EXPECT_TRUE(matcher.advance("\""));
    EXPECT_TRUE(matcher.may_end());
}

/// Tokens that lead to a state each.
TEST(GrammarMasks, AreBoundedWhateverThePattern) {
    std::mt19937 random(5);
    std::vector<std::string> bytes;
    for (int i = 0; i < 256; ++i) bytes.emplace_back(1, static_cast<char>(i));
    for (int i = 0; i < 20'000; ++i) {
        std::string& token = bytes.emplace_back();
        for (int k = 0; k < 20; ++k) token += static_cast<char>((random() % 2 == 0 ? 'a' : 'A') + random() % 26);
    }
    const Pattern pattern{.alternatives = {{{Part::Kind::regex, ".*[a-z].{40}"}}}};
    Matcher matcher(std::make_shared<MaskCache>(std::make_shared<const Grammar>(pattern),
                                                std::make_shared<const Vocabulary>(bytes)));
    std::size_t allowed = 0;
    const std::span<const uint32_t> mask = matcher.allowed();
    for (std::size_t id = 0; id < bytes.size(); ++id) {
        allowed += allows(mask, id) ? 1 : 0;
        if (id >= 0x20 && id < 0x7F) {
            EXPECT_TRUE(allows(mask, id)) << "single bytes are always there";
        }
    }
    EXPECT_GT(allowed, 200U);
    EXPECT_LT(allowed, 15'000U) << "each of them was followed";
    EXPECT_TRUE(matcher.advance(bytes.back())) << "the text itself may go on so";
    EXPECT_NE(refusal(Part::Kind::json_schema,
                      Json{{"properties", {{std::string(1000, 'a'), true}}}, {"additionalProperties", true}}.dump())
                  .find("'additionalProperties'"),
              std::string::npos);
}

TEST(GrammarPattern, RepeatsWithTextsInBetween) {
    const Pattern pattern{.alternatives = {{{Part::Kind::literal, "a"}}, {{Part::Kind::regex, "b+"}}},
                          .begin = "<",
                          .between = ", ",
                          .end = ">",
                          .repeats = true};
    const auto cache = std::make_shared<MaskCache>(std::make_shared<const Grammar>(pattern), small_vocabulary());
    EXPECT_EQ(accepts(cache, "<a>"), "yes");
    EXPECT_EQ(accepts(cache, "<a, bb, a>"), "yes");
    EXPECT_EQ(accepts(cache, "<>"), "no");
    EXPECT_EQ(accepts(cache, "<a, >"), "no");
    Pattern other = pattern;
    other.repeats = false;
    EXPECT_NE(other.key(), pattern.key());
}

}  // namespace
}  // namespace unsloth::grammar
