// How many tokens of prompts go in beside rows that decode: by the card's rates, and by passes that an imagined card
// takes as long for as it likes.
#include "unsloth/generate/chunked_prefill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include "unsloth/core/error.h"
#include "unsloth/formats/shapes.h"
#include "unsloth/generate/decoder.h"

namespace unsloth {
namespace {

using namespace generate;

std::optional<planner::DecodingTime> of_card(const char* name) {
    return planner::DecodingTime::of(planner::find_card(name), formats::builtin_shape("llama-3.1-8b"), true);
}

TEST(ChunkedPrefillPolicy, TakesWhatACardsRatesAllow) {
    const auto time = of_card("H200");
    ASSERT_TRUE(time);
    // bench generate of 2026-11-23: 3.11, 6.76 and 16.05 ms, prompts of 256 tokens and half of the answers' 512.
    EXPECT_NEAR(time->pass_ms(1, 1, 512) / 3.11, 1, 0.15);
    EXPECT_NEAR(time->pass_ms(64, 64, 64 * 512) / 6.76, 1, 0.2);
    EXPECT_NEAR(time->pass_ms(256, 256, 256 * 512) / 16.05, 1, 0.3);
    const ChunkedPrefillPolicy rule = chunked_prefill_policy(std::make_shared<StepLatencyModel>(time));
    for (const int64_t rows : {1, 7, 64, 256}) {
        const int64_t keys = rows * 512;
        int64_t before = 1 << 20;
        for (const int64_t cached : {0, 256, 1024, 8192, 65536}) {
            const PrefillChunk beside = rule(rows, keys, cached);
            if (beside.as_decode_rows) {
                EXPECT_LE(time->pass_ms(rows + beside.tokens, rows, keys + beside.tokens * (cached + beside.tokens)),
                          2.7 * time->pass_ms(rows, rows, keys));
                EXPECT_EQ(bucket_of(rows + beside.tokens), rows + beside.tokens) << "nothing is padded";
                EXPECT_TRUE(beside.tokens >= 32 && beside.tokens <= 256 && beside.tokens <= before);
                before = beside.tokens;
            } else {
                EXPECT_GE(beside.tokens, 64);
                EXPECT_GE(cached, 1024) << "a short prompt goes in as decode rows";
            }
        }
        EXPECT_TRUE(rule(rows, keys, 0).as_decode_rows);
        EXPECT_FALSE(rule(rows, keys, 65536).as_decode_rows) << "each would read 8.6 GB of keys";
    }
    EXPECT_FALSE(of_card("A100")) << "no figures for 4 bit";
    const planner::Card a100 = planner::find_card("A100");
    EXPECT_TRUE(planner::DecodingTime::of(a100, formats::builtin_shape("llama-3.1-8b"), false));
}

/// Takes the time that an H200 took with an 8B model on 2026-11-23, whatever its rates say: one row 2.6 ms, 64
/// rows 6.2, some 190 tokens 13.3, and 128 tokens of a prompt as one row behind 8192 others 69. The first passes of a
/// kind take longer.
class ImaginedCard {
  public:
    explicit ImaginedCard(double slower) : slower_(slower) {}

    double took(const PassWork& pass, int64_t cached) {
        const planner::RateBySize layers = {{1, 2.3},    {8, 2.4},    {64, 4.9}, {128, 6.2},
                                            {192, 12.8}, {256, 13.5}, {384, 20}};
        const double chunk = 5.5e-5 * static_cast<double>((pass.tokens - pass.chosen) * cached);
        const double ms = 0.25 + planner::rate_at(layers, static_cast<double>(pass.tokens)) +
                          (pass.together ? 4 + chunk : 0) + 131072.0 * static_cast<double>(pass.keys) / 4.1e9;
        return slower_ * ms * noise_(random_) * (is_new(pass, /*counts=*/true) ? 6 : 1);
    }
    bool is_new(const PassWork& pass, bool counts = false) {
        int& met = met_[{pass.together, bucket_of(pass.together ? pass.tokens - pass.chosen : pass.tokens)}];
        return (counts ? ++met : met) <= 2;
    }

  private:
    double slower_;
    std::mt19937 random_{1};
    std::uniform_real_distribution<double> noise_{0.95, 1.05};
    std::map<std::pair<bool, int64_t>, int> met_;
};

struct Waits {
    double median = 0, longest = 0;  ///< ms of passes without a prompt; of those beside one
    int64_t passes = 0;              ///< until the prompt was in
};

/// Rows decode, and then a prompt comes.
Waits wait_for_prompt(ImaginedCard& card, const std::shared_ptr<StepLatencyModel>& times, bool measures, int64_t rows,
                      int64_t prompt) {
    constexpr int64_t page = 32;
    const int64_t context = prompt + 300;
    Scheduler scheduler({.rows = rows + 1,
                         .pass_tokens = rows * 256 + 512,
                         .context = context,
                         .shares_prefixes = false,
                         .prefill_policy = chunked_prefill_policy(times),
                         .segments = rows + 257},
                        (rows * 1300 + context) / page + rows + 2, page);
    const auto step = [&] {
        const std::vector<ScheduledChunk> parts = scheduler.next_pass();
        const PassWork work = PassWork::of(parts);
        const double ms = card.took(work, parts.back().sequence->cached);
        const bool waits = parts.front().decodes();
        scheduler.computed(parts);
        for (const ScheduledChunk& part : parts)
            if (part.sequence->remaining() == 0) part.sequence->ids.push_back(0);
        if (measures && waits) times->observe(work, ms);
        return std::tuple(ms, card.is_new(work), parts.back().sequence);
    };
    for (int64_t row = 0; row < rows; ++row)
        scheduler.add({.prompt = std::vector<int32_t>(256, 1), .max_new_tokens = context - 256});
    step();
    std::vector<double> alone;
    for (int pass = 0; pass < 8; ++pass) alone.push_back(std::get<double>(step()));
    std::nth_element(alone.begin(), alone.begin() + 4, alone.end());
    Waits waits{.median = alone[4]};
    scheduler.add({.prompt = std::vector<int32_t>(static_cast<std::size_t>(prompt), 1), .max_new_tokens = 1});
    for (bool goes_in = true; goes_in; ++waits.passes) {
        const auto [ms, is_new, last] = step();
        if (!is_new) waits.longest = std::max(waits.longest, ms);
        goes_in = last->number == rows && static_cast<int64_t>(last->ids.size()) == prompt;
    }
    return waits;
}

TEST(ChunkedPrefillPolicy, DelaysNoTokenBeyondThreeTimesTheMedianOnceItHasMeasured) {
    double by_prediction = 0;
    for (const auto& [predicted, slower] :
         {std::pair(of_card("H200"), 1.0), {of_card("H200"), 5.0}, {of_card("A100"), 1.0}}) {  // the last: none
        for (const int64_t rows : {1, 7, 64, 256}) {
            for (const int64_t prompt : {256, 767, 8192}) {
                SCOPED_TRACE(cat(predicted ? "predicted, " : "", rows, " rows, a prompt of ", prompt, ", ", slower));
                const auto times = std::make_shared<StepLatencyModel>(predicted);
                ImaginedCard card(slower);
                for (int time = 0; time < 3; ++time) {
                    const Waits before = wait_for_prompt(card, times, /*measures=*/false, rows, prompt);
                    by_prediction = std::max(by_prediction, before.longest / before.median);
                }
                for (int time = 0; time < 6; ++time) wait_for_prompt(card, times, true, rows, prompt);
                for (int time = 0; time < 3; ++time) {
                    const Waits waits = wait_for_prompt(card, times, true, rows, prompt);
                    EXPECT_LE(waits.longest, 3 * waits.median);
                    // The prompt waits no longer than it must: a pass may have some hundred tokens, or what keys allow.
                    EXPECT_LE(waits.passes, 2 + prompt / (prompt > 1000 ? 8 : 24));
                }
            }
        }
    }
    EXPECT_GT(by_prediction, 4) << "the prediction alone would do: this shows nothing";
}

TEST(StepLatencyModel, FollowWhatPassesTookButNotTheFirstOfAKind) {
    StepLatencyModel times(of_card("H200"));
    const PassWork row{1, 1, 512}, many{64, 1, 4000}, between{8, 1, 600}, together{129, 1, 700, true};
    const double predicted = times.expected_ms(row), of_many = times.expected_ms(many);
    for (int pass = 0; pass < 2; ++pass) times.observe(row, 100);
    EXPECT_EQ(times.expected_ms(row), predicted);
    for (const double ms : {4.0, 4.1, 50.0, 4.2, 4.0}) times.observe(row, ms);
    EXPECT_NEAR(times.expected_ms(row), 4.1, 1e-9) << "the median: one that was held up does not count";
    EXPECT_NEAR(times.expected_ms(many), 4.1 * of_many / predicted, 1e-9) << "nearest to it";
    const double of_together = StepLatencyModel(of_card("H200")).expected_ms(together);
    EXPECT_NEAR(times.expected_ms(together), 4.1 * of_together / predicted, 1e-9) << "none of its kind was seen";
    for (int pass = 0; pass < 3; ++pass) times.observe(many, 20);
    EXPECT_NEAR(times.expected_ms(many), 20, 1e-9);
    const double alone = StepLatencyModel(of_card("H200")).expected_ms(between);
    EXPECT_NEAR(times.expected_ms(between), alone * (4.1 / predicted + 20 / of_many) / 2, 1e-9) << "8 is in the middle";
    for (int pass = 0; pass < 6; ++pass) times.observe(row, 2);
    EXPECT_NEAR(times.expected_ms(row), 2, 1e-9) << "of late";
    for (int pass = 0; pass < 3; ++pass) times.observe(together, 70);
    EXPECT_NEAR(times.expected_ms(together), 70, 1e-9);
    EXPECT_NEAR(times.expected_ms(row), 2, 1e-9) << "another kind";
}

TEST(StepLatencyModel, ForgetsAKindThatIsNotMetAnyMore) {
    StepLatencyModel times;
    const PassWork few{16, 8, 4000}, more{24, 8, 4000};
    for (int pass = 0; pass < 5; ++pass) times.observe(few, 6);
    for (int pass = 0; pass < 5; ++pass) times.observe(more, 100);
    for (int pass = 0; pass < 200; ++pass) times.observe(few, 6);
    EXPECT_NEAR(times.expected_ms(more), 100, 1e-9);
    for (int pass = 0; pass < 40000; ++pass) times.observe(few, 6);
    EXPECT_LT(times.expected_ms(more), 10) << "a slow time of long ago";
    EXPECT_NEAR(times.expected_ms(few), 6, 1e-9);
    times.observe(more, 7);
    EXPECT_NEAR(times.expected_ms(more), 7, 1e-9) << "its first passes were met before";
}

TEST(PassWork, CountsTheKeysThatEachRowReads) {
    Sequence decoding, begins, goes_on;
    decoding.ids.resize(11), decoding.cached = 10;
    begins.ids.resize(20);
    goes_on.ids.resize(50), goes_on.cached = 8;
    const PassWork rows = PassWork::of({{&decoding, 1}, {&goes_on, 3, /*as_decode_rows=*/true}});
    EXPECT_EQ(rows.tokens, 4);
    EXPECT_EQ(rows.chosen, 1);
    EXPECT_EQ(rows.keys, 11 + 9 + 10 + 11);
    EXPECT_FALSE(rows.together);
    const PassWork together = PassWork::of({{&decoding, 1}, {&goes_on, 3}, {&begins, 20}});
    EXPECT_EQ(together.tokens, 24);
    EXPECT_EQ(together.chosen, 2);
    EXPECT_EQ(together.keys, 11 + 11 + 20);
    EXPECT_TRUE(together.together);
}

}  // namespace
}  // namespace unsloth
