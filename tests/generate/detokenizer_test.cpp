#include "unsloth/generate/detokenizer.h"

#include "tokenizer/support.h"

namespace unsloth {
namespace {

using namespace test;
using generate::IncrementalDetokenizer;

class AnswerTextTest : public ::testing::TestWithParam<std::string> {
  protected:
    const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(golden("tokenizer/" + GetParam()));
};

TEST_P(AnswerTextTest, IsWhatAllTokensAreDecodedTo) {
    for (const std::string text :
         {"Two years, from the day of signing.", " led by a space  and two", "naïve 漢字 🙂🙂 end", "a\n\nb", "🙂"}) {
        const std::vector<int32_t> ids = tokenizer.encode(text, /*add_special=*/true);
        IncrementalDetokenizer answer(tokenizer, {"never there"});
        std::string shown;
        for (const int32_t id : ids) {
            ASSERT_TRUE(answer.add(id));
            ASSERT_TRUE(answer.text().starts_with(shown)) << "what was shown has changed";
            shown = answer.text().substr(0, answer.stable_prefix());
        }
        answer.finish();
        EXPECT_EQ(answer.text(), tokenizer.decode(ids, /*skip_special=*/true));
        EXPECT_EQ(answer.stable_prefix(), answer.text().size());
    }
}

TEST_P(AnswerTextTest, AStopTextEndsItWhereverTokensBegin) {
    const std::string text = "one two three four five";
    const std::vector<int32_t> ids = tokenizer.encode(text, false);
    const std::string whole = tokenizer.decode(ids, true);
    for (std::size_t first = 1; first + 1 < whole.size(); ++first) {
        for (const std::size_t length : {std::size_t{1}, std::size_t{5}, std::size_t{9}}) {
            const std::string stop = whole.substr(first, length);
            const std::string expected = whole.substr(0, whole.find(stop));
            IncrementalDetokenizer answer(tokenizer, {"zzz", stop});
            bool more = true;
            for (std::size_t i = 0; i < ids.size() && more; ++i) {
                more = answer.add(ids[i]);
                ASSERT_LE(answer.stable_prefix(), expected.size()) << "shows a part of '" << stop << "'";
            }
            answer.finish();
            EXPECT_FALSE(more) << stop;
            EXPECT_EQ(answer.text(), expected) << stop;
        }
    }
}

TEST_P(AnswerTextTest, HoldsBackWhatAStopTextMayBegin) {
    const std::vector<int32_t> ids = tokenizer.encode("ask one", false);
    IncrementalDetokenizer answer(tokenizer, {"one more"});
    for (const int32_t id : ids) answer.add(id);
    const std::string whole = tokenizer.decode(ids, true);
    EXPECT_EQ(answer.stable_prefix(), whole.size() - 3);
    answer.finish();
    EXPECT_EQ(answer.text(), whole);
    EXPECT_EQ(answer.stable_prefix(), whole.size());
}

INSTANTIATE_TEST_SUITE_P(All, AnswerTextTest, ::testing::Values("gpt2_small", "llama2_small", "llama3_small"));

}  // namespace
}  // namespace unsloth
