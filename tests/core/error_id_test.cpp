// The table of error ids: each is well formed, explained, and found by its name.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "unsloth/core/error.h"

namespace unsloth {
namespace {

/// The words of the longest sentence.
int longest_sentence(std::string_view text) {
    int longest = 0, words = 0;
    std::istringstream in{std::string(text)};
    for (std::string word; in >> word;) {
        longest = std::max(longest, ++words);
        if (word.ends_with('.') || word.ends_with(';')) words = 0;
    }
    return longest;
}

TEST(ErrorIds, EachIsWellFormedAndExplained) {
    const std::regex form("[a-z]+\\.[a-z0-9]+(-[a-z0-9]+)*");
    std::set<std::string> seen;
    for (const KnownErrorId& known : known_error_ids) {
        const std::string name(known.name);
        EXPECT_TRUE(std::regex_match(name, form)) << name;
        EXPECT_TRUE(seen.insert(name).second) << name << " is there twice";
        const auto id = ErrorId::find(name);
        ASSERT_TRUE(id) << name;
        EXPECT_EQ(id->name(), name);
        EXPECT_EQ(id->kind(), known.kind) << name;
        for (const std::string_view text : {text_of(*id).meaning, text_of(*id).remedy}) {
            EXPECT_TRUE(text.ends_with('.')) << name << ": " << text;
            EXPECT_GE(std::count(text.begin(), text.end(), ' '), 2) << name << ": " << text;
            EXPECT_EQ(text.find_first_of("|\n"), std::string_view::npos) << name << " breaks the table: " << text;
            EXPECT_LE(longest_sentence(text), 25) << name << ": " << text;
        }
    }
    EXPECT_FALSE(ErrorId::find("data.nothing-of-the-kind"));
    EXPECT_FALSE(ErrorId::find(""));
}

TEST(ErrorIds, DecideTheExitCodeAndArePrinted) {
    const Error error("data.empty", "rows.jsonl: has no rows", "Write some.");
    EXPECT_EQ(error.kind(), ErrorKind::input);
    EXPECT_EQ(error_line(error.id(), error.what()), "error[data.empty]: rows.jsonl: has no rows\n  Write some.");
    EXPECT_EQ(ErrorId("option.unknown").kind(), ErrorKind::usage);
    EXPECT_EQ(ErrorId("memory.plan-too-large").kind(), ErrorKind::runtime);
    EXPECT_EQ(ErrorId("data.empty"), *ErrorId::find("data.empty"));
    EXPECT_NE(ErrorId("data.empty"), ErrorId("data.all-masked"));
}

}  // namespace
}  // namespace unsloth
