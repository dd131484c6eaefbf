#include "data/words.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "data/toy.h"
#include "unsloth/tokenizer/characters.h"

namespace unsloth::data {
namespace {

using Strings = std::vector<std::string>;

Strings words_of(std::string_view text) {
    Strings words;
    for (const Word& word : free_words(text)) words.emplace_back(text.substr(word.begin, word.end - word.begin));
    return words;
}

TEST(FreeWords, OnlyPlainWordsAreFree) {
    EXPECT_EQ(words_of("Say \"hello\" to (the) caf\u00e9, twice!"),
              (Strings{"Say", "hello", "to", "the", "caf\u00e9", "twice"}));
    EXPECT_EQ(words_of("\u00ab\u041f\u0440\u0438\u0432\u0435\u0442\u00bb,\u00a0\u0925\u094b\u095c\u093e \u4e2d\u6587"),
              (Strings{"\u041f\u0440\u0438\u0432\u0435\u0442", "\u0925\u094b\u095c\u093e", "\u4e2d\u6587"}));
    EXPECT_EQ(words_of("12 a1 x_y don't well-known NASA getUser a/b me@x.y https://a.b #tag %s $x \\n 5%"), Strings{});
    EXPECT_EQ(words_of("fill {the name} and [INST] or <the tag> here"), (Strings{"fill", "and", "or", "here"}));
    EXPECT_EQ(words_of("a {b {c d} e\nf} g { h"), (Strings{"a", "g", "h"}));
    EXPECT_EQ(words_of("x < y and y > z"), (Strings{"x", "z"}));
    EXPECT_EQ(words_of("run `ls all files` now, or ` alone"), (Strings{"run", "now", "or", "alone"}));
    EXPECT_EQ(words_of("before\n```python\nfor item in list\n```\nafter\n~~~~\ncode ``` here\n~~~\nstill\n~~~~\nend"),
              (Strings{"before", "after", "end"}));
    EXPECT_EQ(words_of("before\n```\nnever closed\nat all"), Strings{"before"});
    EXPECT_EQ(words_of("\" ' ( ... \"\" "), Strings{});
    EXPECT_EQ(words_of(""), Strings{});
}

Thesaurus thesaurus(const std::string& content) {
    const toy::Folder folder;
    return Thesaurus::load(folder.write("t.json", content));
}

TEST(Thesaurus, ObjectsAndLinesAreTheSame) {
    for (const char* content :
         {R"({"Quick": ["fast", "swift", "quick", "fast"], "end": ["come to an end"], "none": []})",
          "{\"word\": \"quick\", \"synonyms\": [\"fast\"]}\n{\"word\": \"QUICK\", \"synonyms\": [\"swift\"]}\n"
          "{\"word\": \"end\", \"synonyms\": [\"come to an end\"]}\n"}) {
        const Thesaurus loaded = thesaurus(content);
        ASSERT_NE(loaded.find("quick"), nullptr) << content;
        EXPECT_EQ(*loaded.find("quick"), (Strings{"fast", "swift"}));
        EXPECT_EQ(loaded.find("none"), nullptr);
        EXPECT_EQ(loaded.size(), 2u);
    }
    EXPECT_EQ(thesaurus(R"({"word": "big", "synonyms": ["large"]})").size(), 1u) << "a single line";
    toy::expect_contains(toy::message_of("data.bad-thesaurus", [] { thesaurus(R"({"big": "large"})"); }),
                         {"t.json: \"big\"", "list of synonyms"});
    toy::expect_contains(
        toy::message_of("data.bad-thesaurus",
                        [] { thesaurus("{\"word\": \"a\", \"synonyms\": [\"b\"]}\n{\"word\": \"a\"}\n"); }),
        {"t.json:2"});
    toy::expect_contains(toy::message_of("data.bad-thesaurus", [] { thesaurus("{}"); }), {"no word has a synonym"});
}

TEST(WordChanges, SynonymsKeepTheCapitalAndEverythingElse) {
    const Thesaurus known =
        thesaurus(R"({"quick": ["fast"], "end": ["come to a close"], "\u00e9tat": ["\u00e9difice"]})");
    AugmentRng draws(1, 2, 0, 1);
    EXPECT_EQ(with_synonyms("  Quick,\tquick \u00a0{quick} QUICK\n\"End.\" \u00c9tat  ", known, 1, draws),
              "  Fast,\tfast \u00a0{quick} QUICK\n\"Come to a close.\" \u00c9difice  ");
    EXPECT_EQ(with_synonyms("quick", known, 0, draws), "quick");
}

TEST(WordChanges, SwapsPermuteTheWordsOfALine) {
    const std::string text = "one (two) three, four.\nfive {six} seven";
    bool differs = false;
    for (uint32_t copy = 0; copy < 20; ++copy) {
        AugmentRng draws(7, 1, copy, 2);
        const std::string changed = with_swaps(text, 0.5, draws);
        differs |= changed != text;
        Strings first = words_of(changed.substr(0, changed.find('\n'))),
                second = words_of(changed.substr(changed.find('\n')));
        std::sort(first.begin(), first.end());
        std::sort(second.begin(), second.end());
        EXPECT_EQ(first, (Strings{"four", "one", "three", "two"})) << changed;
        EXPECT_EQ(second, (Strings{"five", "seven"})) << changed;
        std::string marks;
        std::copy_if(changed.begin(), changed.end(), std::back_inserter(marks), [](char c) {
            return std::string_view("abcdefghijklmnopqrstuvwxyz").find(c) == std::string_view::npos;
        });
        EXPECT_EQ(marks, " () , .\n {} ");
    }
    EXPECT_TRUE(differs);
}

TEST(WordChanges, DeletionsTakeTheirBlanksAndLeaveAWord) {
    AugmentRng draws(7, 1, 0, 3);
    EXPECT_EQ(with_deletions("one two three", 1, draws), "three");
    EXPECT_EQ(with_deletions("Well, one 2  three, (four) five.\n  six", 1, draws), "Well, 2, (four).\n  six");
    EXPECT_EQ(with_deletions("alone", 1, draws), "alone");
    EXPECT_EQ(with_deletions("a b c", 0, draws), "a b c");
}

TEST(WordChanges, RatesAreShares) {
    std::string text;
    for (int word = 0; word < 4000; ++word) text += "quick ";
    const Thesaurus known = thesaurus(R"({"quick": ["fast", "swift"]})");
    AugmentRng draws(3, 4, 5, 6);
    const Strings words = words_of(with_synonyms(text, known, 0.3, draws));
    const auto share = [&](const char* word) {
        return static_cast<double>(std::count(words.begin(), words.end(), word)) / 4000;
    };
    EXPECT_NEAR(share("quick"), 0.7, 0.03);
    EXPECT_NEAR(share("fast"), 0.15, 0.03);
    EXPECT_NEAR(static_cast<double>(words_of(with_deletions(text, 0.1, draws)).size()) / 4000, 0.9, 0.03);
}

TEST(WordChanges, AnyTextSurvivesARateOfZero) {
    std::mt19937 random(11);
    const Strings parts{"word", "\u4e2d", " ",  "\u00a0", "\n", "```",    "`",  "{",   "}",      "[",
                        "<",    ">",      "\"", ",",      "1",  "\u2003", "\t", "~~~", "\u0301", "A"};
    const Thesaurus known = thesaurus(R"({"word": ["term"]})");
    for (int round = 0; round < 3000; ++round) {
        std::string text;
        for (int part = 0; part < 20; ++part) text += parts[random() % parts.size()];
        AugmentRng draws(1, static_cast<uint64_t>(round), 0, 1);
        EXPECT_EQ(with_synonyms(text, known, 0, draws), text);
        EXPECT_EQ(with_swaps(text, 0, draws), text);
        EXPECT_EQ(with_deletions(text, 0, draws), text);
        std::size_t end = 0;
        for (const Word& word : free_words(text)) {
            EXPECT_LE(end, word.begin);
            EXPECT_LT(word.begin, word.end);
            end = word.end;
        }
        // At full rates what is not a free word stays: the same text without its words.
        const std::string swapped = with_swaps(text, 1, draws);
        Strings before = words_of(text), after = words_of(swapped);
        std::sort(before.begin(), before.end());
        std::sort(after.begin(), after.end());
        EXPECT_EQ(before, after) << text;
    }
}

TEST(AugmentRng, DependOnEachOfTheirNames) {
    std::set<double> seen;
    for (const uint64_t seed : {uint64_t{1}, uint64_t{1} << 40})
        for (const uint64_t row : {uint64_t{1}, uint64_t{1} << 40})
            for (const uint32_t copy : {0u, 1u})
                for (const uint32_t use : {1u, 2u}) {
                    AugmentRng draws(seed, row, copy, use), again(seed, row, copy, use);
                    const double first = draws.unit();
                    EXPECT_EQ(first, again.unit());
                    EXPECT_TRUE(first >= 0 && first < 1);
                    seen.insert(first);
                    seen.insert(draws.unit());
                    EXPECT_LT(draws.below(3), 3u);
                }
    EXPECT_EQ(seen.size(), 32u);
}

TEST(Characters, LettersAndCase) {
    EXPECT_TRUE(tokenizer::is_letters("\u0928\u092e\u0938\u094d\u0924\u0947"));
    EXPECT_TRUE(tokenizer::is_letters("na\u0308hen"));
    for (const char* text : {"", "a b", "a1", "a_b", "a-b", "a.", "\u00bd"})
        EXPECT_FALSE(tokenizer::is_letters(text)) << text;
    EXPECT_EQ(tokenizer::with_capital("\u00e9tat UN"), "\u00c9tat UN");
    EXPECT_EQ(tokenizer::with_capital(""), "");
    EXPECT_EQ(tokenizer::lowercase("\u00c9TAT"), "\u00e9tat");
}

}  // namespace
}  // namespace unsloth::data
