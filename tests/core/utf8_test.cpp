#include "unsloth/core/utf8.h"

#include <gtest/gtest.h>

namespace unsloth {
namespace {

TEST(Utf8, MaximalPartsOfBrokenSequences) {
    // The example of the Unicode Standard, table 3-8, and sequences that only look like UTF-8.
    EXPECT_EQ(repair_utf8("a\xF1\x80\x80\xE1\x80\xC2"
                          "b\x80"
                          "c\x80\xBF"
                          "d"),
              "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
    EXPECT_EQ(repair_utf8("\xC0\xAF"), "\uFFFD\uFFFD");
    EXPECT_EQ(repair_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");  // a surrogate
    EXPECT_EQ(repair_utf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD");
    for (const std::string good : {"", "plain ASCII that is longer than a word", "\u00e9\u20ac\U0001F600\U0010FFFF"}) {
        EXPECT_EQ(first_invalid_utf8(good), good.size());
        EXPECT_EQ(repair_utf8(good), good);
    }
    EXPECT_EQ(first_invalid_utf8("0123456789\xE2\x82"), 10u);
}

TEST(Utf8, PrintableTextCannotDisturbATerminal) {
    EXPECT_EQ(printable("plain \u00e9\u20ac\tline\n"), "plain \u00e9\u20ac\tline\n");
    EXPECT_EQ(printable("\x7f"
                        "ELF\x1b[31m\r"),
              "\\x7fELF\\x1b[31m\\x0d");
    EXPECT_EQ(printable("a\xff\xe2\x82z"), "a\\xff\\xe2\\x82z");
    EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
}

}  // namespace
}  // namespace unsloth
