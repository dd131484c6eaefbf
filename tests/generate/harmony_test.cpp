#include "unsloth/generate/harmony.h"

#include "tokenizer/harmony.h"
#include "unsloth/generate/answer_text.h"

namespace unsloth {
namespace {

using namespace test;
using generate::HarmonyReader;
using generate::HarmonyTokens;
using Kind = generate::HarmonyPiece::Kind;

/// A message: its kind, whom it calls, and its text.
using Said = std::vector<std::tuple<Kind, std::string, std::string>>;

class HarmonyTest : public ::testing::Test {
  protected:
    /// Token by token; `ended_by_stop_`: the reader said so.
    Said read(const std::string& prompt, const std::string& answer, const std::vector<std::string>& stops = {}) {
        HarmonyReader reader(tokenizer_, *HarmonyTokens::of(tokenizer_), stops);
        reader.follow(tokenizer_.encode(prompt, false));
        Said all;
        const auto take = [&] {
            for (const generate::HarmonyPiece& piece : reader.take()) {
                if (piece.begins) all.emplace_back(piece.kind, piece.recipient, "");
                std::get<2>(all.back()) += piece.text;
            }
        };
        ended_by_stop_ = false;
        for (const int32_t id : tokenizer_.encode(answer, false)) {
            if (!reader.add(id)) {
                ended_by_stop_ = true;
                break;
            }
            if (takes_often_) take();
        }
        reader.finish();
        take();
        return all;
    }
    const ScratchFolder folder_;
    const tokenizer::Tokenizer tokenizer_ = tokenizer::Tokenizer::load(harmony_folder(folder_));
    bool ended_by_stop_ = false, takes_often_ = true;
};

const std::string asked = "<|start|>user<|message|>Hi<|end|><|start|>assistant";

TEST_F(HarmonyTest, ChannelsAreTakenApart) {
    const std::string thought = "<|channel|>analysis<|message|>The user says hi.<|end|>";
    const Said expected = {{Kind::analysis, "", "The user says hi."},
                           {Kind::shown, "", "Hello, na\xC3\xAFve \xF0\x9F\x99\x82 user!"}};
    for (const bool often : {true, false}) {
        takes_often_ = often;
        EXPECT_EQ(
            read(asked,
                 thought + "<|start|>assistant<|channel|>final<|message|>Hello, na\xC3\xAFve \xF0\x9F\x99\x82 user!"),
            expected);
    }
    // The recipient stands before or behind the channel.
    const Said called = {{Kind::analysis, "", "The user says hi."}, {Kind::call, "functions.term", "{\"days\": 3}"}};
    for (const char* header : {"<|channel|>commentary to=functions.term <|constrain|>json<|message|>",
                               " to=functions.term<|channel|>commentary json<|message|>"})
        EXPECT_EQ(read(asked, thought + "<|start|>assistant" + header + "{\"days\": 3}<|call|>"), called);
    EXPECT_EQ(read(asked, "<|channel|>commentary<|message|>I will look.<|end|>"),
              (Said{{Kind::shown, "", "I will look."}}));
}

TEST_F(HarmonyTest, ThePromptMayEndWithinAMessage) {
    const Said rest = {{Kind::shown, "", " and two years"}};
    EXPECT_EQ(read(asked + "<|channel|>final<|message|>One", " and two years<|return|>"), rest);
    EXPECT_EQ(read(asked + "<|channel|>analysis<|message|>One", " and two years<|end|>"),
              (Said{{Kind::analysis, "", " and two years"}}));
}

TEST_F(HarmonyTest, WhatIsNotFramedIsShown) {
    std::string longer;
    for (int i = 0; i < 80; ++i) longer += " lease";
    for (const std::string& text : {std::string("Two years, from the day of signing."), longer})
        EXPECT_EQ(read(asked, text), (Said{{Kind::shown, "", text}}));
    EXPECT_EQ(read("", "A lease."), (Said{{Kind::shown, "", "A lease."}}));
    // A header that was cut says nothing to the reader.
    EXPECT_EQ(read(asked, "<|channel|>anal"), Said());
    EXPECT_EQ(read(asked, "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"),
              (Said{{Kind::analysis, "", "Hm"}}));
}

TEST_F(HarmonyTest, StopTextsEndWhatIsShownAlone) {
    const std::string answer =
        "<|channel|>analysis<|message|>one two<|end|><|start|>assistant<|channel|>final<|message|>three two one";
    EXPECT_EQ(read(asked, answer, {"two"}), (Said{{Kind::analysis, "", "one two"}, {Kind::shown, "", "three "}}));
    EXPECT_TRUE(ended_by_stop_);
    EXPECT_EQ(read(asked, "no frame, two", {"two"}), (Said{{Kind::shown, "", "no frame, "}}));
}

/// What commands print.
TEST_F(HarmonyTest, AnswersAreTheirFinalMessages) {
    using generate::AnswerText;
    const auto prompt = tokenizer_.encode(asked, false);
    const std::string text =
        "<|channel|>analysis<|message|>one two<|end|><|start|>assistant<|channel|>final<|message|>three two one";
    const auto read = [&](const std::optional<HarmonyTokens>& harmony, const std::string& answer,
                          const std::vector<std::string>& stops) {
        AnswerText made(tokenizer_, stops, harmony, prompt);
        std::string taken;
        for (const int32_t id : tokenizer_.encode(answer, false)) {
            const bool more = made.add(id);
            taken += made.take();
            if (!more) break;
        }
        made.finish();
        taken += made.take();
        EXPECT_EQ(taken, made.text());
        return std::pair{made.text(), made.reasoning()};
    };
    using Both = std::pair<std::string, std::string>;
    EXPECT_EQ(read(HarmonyTokens::of(tokenizer_), text, {}), Both("three two one", "one two"));
    EXPECT_EQ(read(HarmonyTokens::of(tokenizer_), text, {"two"}), Both("three ", "one two"));
    EXPECT_EQ(read(std::nullopt, text, {}), Both("analysisone twoassistantfinalthree two one", ""));
    EXPECT_EQ(read(std::nullopt, "one two", {"two"}), Both("one ", ""));
    EXPECT_EQ(
        read(HarmonyTokens::of(tokenizer_), "<|channel|>commentary to=functions.term json<|message|>{}<|call|>", {}),
        Both("to=functions.term {}", ""));
}

TEST_F(HarmonyTest, OtherTokenizersHaveNone) {
    EXPECT_FALSE(HarmonyTokens::of(tokenizer::Tokenizer::load(source_folder() / "examples/legal/base")));
    const HarmonyTokens tokens = *HarmonyTokens::of(tokenizer_);
    EXPECT_EQ(tokens.stops.size(), 2U);
    std::vector<int32_t> stops = {tokens.end, tokens.stops.front()};
    tokens.set_stops(stops);
    EXPECT_EQ(stops, tokens.stops);
}

}  // namespace
}  // namespace unsloth
