#include "unsloth/core/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"

namespace unsloth {
namespace {

using Cause = JsonRefusal::Cause;
using Ordered = nlohmann::ordered_json;

/// Nothing: the text is accepted.
template <class Json = nlohmann::json>
std::optional<JsonRefusal> refused(const std::string& text, const JsonRules& rules = {}) {
    try {
        (void)read_json<Json>(text, rules);
    } catch (const JsonRefusal& refusal) {
        return refusal;
    }
    return std::nullopt;
}

std::string nested(std::size_t levels) {
    return std::string(levels, '[') + std::string(levels, ']');
}

TEST(Json, RepeatedKeysAreRefusedUnlessTheRulesLetTheLastOneCount) {
    const std::string text = R"({"a": {"b": 1, "c": [{"b": 2}], "b": 3}})";
    EXPECT_EQ(refused(text)->cause, Cause::repeated_key);
    EXPECT_EQ(refused<Ordered>(text)->words, "the key 'b' appears twice in one object");
    EXPECT_FALSE(refused(R"({"a": {"b": 1}, "b": [{"b": 2}, {"b": 3}]})"));
    EXPECT_EQ(read_json<Ordered>(text, {.distinct_keys = false})["a"]["b"], 3);
}

TEST(Json, NestingHasABound) {
    for (const bool distinct : {true, false}) {
        const JsonRules rules{.deepest = 5, .distinct_keys = distinct};
        EXPECT_FALSE(refused(nested(5), rules));
        EXPECT_EQ(refused(nested(6), rules)->words, "the JSON nests deeper than 5 levels");
        EXPECT_EQ(refused<Ordered>(std::string(1'000'000, '['), rules)->cause, Cause::depth);
        EXPECT_FALSE(refused(R"([["[[[[[[[[", "\"[[[[[["]])", rules)) << "brackets in strings";
    }
    EXPECT_FALSE(refused(nested(100'000), {.deepest = any_depth, .distinct_keys = false}));
    EXPECT_EQ(refused(nested(65))->cause, Cause::depth);
}

TEST(Json, ObjectsThatKeepTheirOrderHaveFewKeys) {
    std::string text = "{\"k0\": 0";
    for (int64_t i = 1; i <= most_ordered_keys; ++i) text += cat(", \"k", i, "\": 0");
    text += "}";
    for (const bool distinct : {true, false}) {
        EXPECT_EQ(refused<Ordered>(text, {.distinct_keys = distinct})->cause, Cause::many_keys);
        EXPECT_FALSE(refused(text, {.distinct_keys = distinct}));
    }
}

TEST(Json, CommentsOnlyWhereTheRulesSaySo) {
    const std::string text = "{ // it's [[[ \"one\n \"a\": /* {\"a\": 2} */ 1}";
    EXPECT_EQ(refused(text)->cause, Cause::syntax);
    EXPECT_EQ(read_json<Ordered>(text, {.deepest = 1, .comments = true})["a"], 1);
    EXPECT_EQ(refused("{\"a\": 1, // two\n\"a\": 2}", {.comments = true})->cause, Cause::repeated_key);
}

TEST(Json, WhatIsNoJsonIsRefusedInAllCases) {
    for (const std::string& text : {std::string(""), std::string("{\"a\": 1,}"), std::string("[1e999]"),
                                    std::string("[NaN]"), std::string("[\"\xff\"]"), std::string("1 2")})
        for (const JsonRules& rules : {JsonRules{}, JsonRules{.distinct_keys = false}, JsonRules{.comments = true}}) {
            EXPECT_EQ(refused(text, rules)->cause, Cause::syntax) << text;
            EXPECT_TRUE(try_parse_json<Ordered>(text, rules).is_discarded()) << text;
        }
}

TEST(Json, MessagesNameTheSourceAndThePlace) {
    const auto message = [](const std::string& text) {
        try {
            (void)parse_json<nlohmann::json>(text, "a.json");
        } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::input);
            return std::string(error.what());
        }
        return std::string("accepted");
    };
    EXPECT_TRUE(message("{\n\"a\": 1,,}").starts_with("a.json: not valid JSON: line 2, column 8: ")) << message("");
    EXPECT_TRUE(message(R"({"a": 1, "a": 2})").starts_with("a.json: the key 'a' appears twice in one object"));
    EXPECT_EQ(message("[1]"), "accepted");
}

}  // namespace
}  // namespace unsloth
