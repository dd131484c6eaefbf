#include "unsloth/data/answer_pattern.h"

#include <gtest/gtest.h>

#include <chrono>

#include "unsloth/core/error.h"

namespace unsloth::data {
namespace {

std::optional<std::string> found(const std::string& pattern, const std::string& text) {
    const AnswerPattern::Found result = AnswerPattern(pattern, "--answer_regex").find_last(text);
    EXPECT_FALSE(result.gave_up) << pattern;
    return result.text;
}

TEST(AnswerPattern, TheLastMatchCountsAndOfItTheFirstGroup) {
    const std::string answer = "He has 3 * 4 = <<3*4=12>>12 apples.\n#### 12\nor rather\n#### -1,250\n";
    EXPECT_EQ(found(R"(#### (-?[0-9.,]+))", answer), "-1,250");
    EXPECT_EQ(found(R"([0-9]+)", answer), "250");
    EXPECT_EQ(found(R"((a)?b)", "ab b"), "b");  // a group that has no part in the match
    EXPECT_EQ(found(R"(#### (\d+))", "no such thing"), std::nullopt);
    EXPECT_EQ(found("", "abc"), "");
    EXPECT_EQ(found("x*", "ä"), "");  // matches nothing at each character, never within one
    EXPECT_EQ(found("ä+", "ö ää ü"), "ää");
    EXPECT_EQ(found("b", "\xC3 b \xFF"), "b");  // what a model makes need not be UTF-8
}

TEST(AnswerPattern, NoPatternGoesOnForEver) {
    const std::string letters(30'000, 'a');
    for (const char* pattern : {"(a+)+$", "(a|aa)+$", "(.*)(.*)(.*)(.*)\\d", "((a*)*)*\\d"}) {
        const auto start = std::chrono::steady_clock::now();
        EXPECT_TRUE(AnswerPattern(pattern, "--answer_regex").find_last(letters + "!").gave_up) << pattern;
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << pattern;
    }
    // Many searches count together.
    const auto start = std::chrono::steady_clock::now();
    AnswerPattern("a(?=(a+)*\\d)|a", "--answer_regex").find_last(letters);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(AnswerPattern, ABrokenOneIsRefusedByTheOptionsName) {
    try {
        AnswerPattern("#### (", "--answer_regex");
        FAIL() << "it was taken";
    } catch (const Error& refused) {
        EXPECT_EQ(refused.id().name(), "option.invalid-pattern");
        EXPECT_TRUE(std::string(refused.what()).starts_with("--answer_regex: '#### (' is no valid regular expression"))
            << refused.what();
    }
}

}  // namespace
}  // namespace unsloth::data
