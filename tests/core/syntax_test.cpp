#include "unsloth/core/syntax.h"

#include <gtest/gtest.h>

namespace unsloth {
namespace {

/// "2:7 words".
std::string mistake(const std::string& text, bool comments = false) {
    const SyntaxError found = find_json_error(text, comments);
    const TextPlace place = place_of(text, found.at);
    return std::to_string(place.line) + ":" + std::to_string(place.column) + " " + found.words;
}

TEST(JsonMistake, IsSaidInPlainWords) {
    EXPECT_EQ(mistake("{\"a\": 1,}"), "1:9 there is a comma before this }: take it out");
    EXPECT_EQ(mistake("{\n  \"a\": 1\n  \"b\": 2\n}"), "3:3 a comma is missing before this");
    EXPECT_EQ(mistake("{\"a\": 'x'}"), "1:7 texts must be in double quotes, not in single ones");
    EXPECT_EQ(mistake("{'a': 1}"), "1:2 keys stand in double quotes, not in single ones");
    EXPECT_EQ(mistake("{a: 1}"), "1:2 a key must be in double quotes: \"a\"");
    EXPECT_EQ(mistake("{\"a\": auto}"), "1:7 a text must be in double quotes: \"auto\"");
    EXPECT_EQ(mistake("{\"a\": True}"), "1:7 JSON writes true, false and null, not True");
    EXPECT_EQ(mistake("{\"a\": NaN}"), "1:7 NaN is no number of JSON");
    EXPECT_EQ(mistake("{\"a\" = 1}"), "1:6 a colon separates key and value, not =");
    EXPECT_EQ(mistake("{\"a\", 1}"), "1:5 a colon is expected after the key \"a\"");
    EXPECT_EQ(mistake("{\"a\": }"), "1:7 a value is missing before this");
    EXPECT_EQ(mistake("[1,, 2]"), "1:4 there are two commas here, with nothing between them");
    EXPECT_EQ(mistake("[1, 2}"), "1:6 ] is expected, which closes the [ of line 1");
    EXPECT_EQ(mistake("{\n\"a\": [1, 2\n"), "2:11 the text ends, and the [ of line 2 is not closed: ] is missing");
    EXPECT_EQ(mistake("{\"a\": \"x"), "1:7 the text that begins here has no closing quote");
    for (const char* half : {R"(\ud800)", R"(\udc00)", R"(\ud800\u0041)", R"(\ud83d\ud83d)"})
        EXPECT_EQ(mistake(cat("{\"a\": \"x", half, "\"}")),
                  R"(1:9 half a character: \ud800 to \udbff need \udc00 to \udfff after them)");
    EXPECT_EQ(mistake(R"({"a": "\ud83d\ude00\u00"})"), R"(1:20 four hexadecimal digits are expected after \u)");
    EXPECT_EQ(mistake("{\"a\": \"x\n\"}"), "1:7 the text that begins here has no closing quote before the line's end");
    EXPECT_EQ(mistake(R"({"a": "C:\data"})"),
              "1:10 this backslash begins no known character; a backslash itself is written \\\\");
    EXPECT_EQ(mistake("{\"a\": 01}"), "1:7 a number does not begin with 0");
    EXPECT_EQ(mistake("{\"a\": .5}"), "1:7 a number begins with a digit or -");
    EXPECT_EQ(mistake("{\"a\": 1e999}"), "1:7 the number 1e999 is too large");
    EXPECT_EQ(mistake("{} x"), "1:4 the value ends before this, and nothing may follow it");
    EXPECT_EQ(mistake("# note\n{}", true), "1:1 a comment begins with //, not with #");
    EXPECT_EQ(mistake("// note\n{}"), "1:1 JSON has no comments");
    EXPECT_EQ(mistake("{\"\xC3\xA4\": \xC3}"), "1:7 the byte is not UTF-8");
    EXPECT_EQ(mistake(""), "1:1 the text is empty");
}

TEST(JsonMistake, IsNoneInWhatIsJson) {
    for (const char* text :
         {"{}", "[]", "[[], {}]", R"({"a": [1, -2.5e-3, "\u00e4\n"], "b": {"c": null}, "d": true})", "1"})
        EXPECT_EQ(find_json_error(text).words, "it cannot be read") << text;
    EXPECT_EQ(find_json_error("{ // one\n \"a\": /* two */ 1 }", true).words, "it cannot be read");
    std::string deep(100000, '[');
    EXPECT_NE(find_json_error(deep).words.find("is not closed"), std::string::npos);
}

TEST(MarkedLine, PointsAtTheCharacter) {
    EXPECT_EQ(marked_line("{\n  \"\xC3\xA4\": 1,,\n}", 11), "2 |   \"\xC3\xA4\": 1,,\n    |         ^");
    const std::string longest = "[" + std::string(200, '1') + "x" + std::string(200, '2') + "]";
    EXPECT_EQ(marked_line(longest, 201), "1 | \xE2\x80\xA6" + std::string(60, '1') + "x" + std::string(29, '2') +
                                             "\xE2\x80\xA6\n    | " + std::string(61, ' ') + "^");
    EXPECT_EQ(marked_line("", 0), "1 | \n    | ^");
    EXPECT_EQ(marked_line("\ta\r\nb", 1), "1 |  a\n    |  ^");
}

}  // namespace
}  // namespace unsloth
