#include "unsloth/core/utf8.h"

#include <gtest/gtest.h>

#include "unsloth/core/log.h"

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

TEST(Printable, LeavesTextAndEscapesWhatSteersATerminal) {
    EXPECT_EQ(printable("plain\ttext\n"), "plain\ttext\n");
    EXPECT_EQ(printable("caf\u00e9 \u4f60\u597d \U0001F600 \u200fa"), "caf\u00e9 \u4f60\u597d \U0001F600 \u200fa");
    EXPECT_EQ(printable("a\x1b[31mb\x07\r\b"), "a\\u001b[31mb\\u0007\\u000d\\u0008");
    EXPECT_EQ(printable(std::string_view("\0", 1)), "\\u0000");
    EXPECT_EQ(printable("\x7f\u0085\u009b"), "\\u007f\\u0085\\u009b") << "delete, and C1, which is CSI in UTF-8 too";
    EXPECT_EQ(printable("\u202Eevil\u2066x"), "\\u202eevil\\u2066x");
    EXPECT_EQ(printable("\x9b\xff\xe4\xbd"), "\\x9b\\xff\\xe4\\xbd") << "bytes that are not UTF-8";
    EXPECT_EQ(printable("\xc0\x9b"), "\\xc0\\x9b") << "overlong";
    EXPECT_EQ(printable_message("one\ntwo\n  three\n"), "one\n  two\n  three\n");
}

TEST(Printable, IsWhatAllMessagesPass) {
    testing::internal::CaptureStderr();
    log::warning("file \x1b]0;title\x07\n[00:00:00] E forged");
    log::last_words("error: \x1b[2J\nunsloth-train: forged");
    const std::string out = testing::internal::GetCapturedStderr();
    EXPECT_EQ(out.find_first_of("\x1b\x07"), std::string::npos) << out;
    EXPECT_NE(out.find("\n  [00:00:00] E forged\n"), std::string::npos) << out;
    EXPECT_NE(out.find("unsloth-train: error: \\u001b[2J\n  unsloth-train: forged\n"), std::string::npos) << out;
}

}  // namespace
}  // namespace unsloth
