// Requests among others: what ends, constrains or spoils one, and what they share.
#include <algorithm>
#include <limits>
#include <set>

#include "generate/decoder_support.h"

namespace unsloth {
namespace {

using namespace test;
using Ids = std::vector<int32_t>;

TEST_P(DecoderTest, StopIdsWaitForTheFewestTokensAndCancelledRequestsLeave) {
    const LoadedModel model = load_for_decoding(name, device, 2, 192);
    const Ids prompt = text_prompts(name, 1).front();
    generate::Decoder decoder(*model.ctx, *model.model);
    const Ids whole = decoder.answer({{.prompt = prompt, .max_new_tokens = new_tokens}}).front().ids;
    const Request least{
        .prompt = prompt, .max_new_tokens = new_tokens, .stop_ids = {whole[0], whole[1]}, .min_new_tokens = 3};
    const Ids ids = decoder.answer({least}).front().ids;
    ASSERT_GE(ids.size(), 3U);
    for (std::size_t t = 0; t < 3; ++t) EXPECT_EQ(std::ranges::count(least.stop_ids, ids[t]), 0) << t;

    std::vector<int64_t> ended;
    const int64_t first = decoder.add({.prompt = prompt, .max_new_tokens = new_tokens}),
                  second = decoder.add({.prompt = prompt, .max_new_tokens = new_tokens}),
                  third = decoder.add({.prompt = prompt, .max_new_tokens = new_tokens});
    const auto end = [&](int64_t request, const Completion& answer) {
        ended.push_back(request);
        EXPECT_EQ(answer.ids, whole);
    };
    for (int i = 0; i < 3; ++i) decoder.step({}, end);  // another pass is issued ahead
    decoder.cancel(first);
    decoder.cancel(third);
    const auto see = [&](int64_t request, int32_t) {
        EXPECT_EQ(request, second);
        return true;
    };
    while (decoder.step(see, end)) {
    }
    EXPECT_EQ(ended, (std::vector<int64_t>{second}));
    EXPECT_EQ(decoder.scheduler().pool().free(), decoder.scheduler().pool().pages());
}

/// Allows the 19 ids above the one that was chosen before.
class Ascending final : public generate::TokenConstraint {
  public:
    explicit Ascending(int64_t vocabulary) : vocabulary_(vocabulary) {}
    std::span<const uint32_t> allowed() override {
        mask_.assign(static_cast<std::size_t>((vocabulary_ + 31) / 32), 0);
        for (int64_t id = last_ + 1; id < std::min(vocabulary_, last_ + 20); ++id)
            mask_[static_cast<std::size_t>(id / 32)] |= 1U << (id % 32);
        return mask_;
    }
    void advance(int32_t id) override { last_ = id; }

  private:
    int64_t vocabulary_, last_ = -1;
    std::vector<uint32_t> mask_;
};

TEST_P(DecoderTest, ConstraintsHoldAndOthersDoNotNotice) {
    const LoadedModel model = load_for_decoding(name, device, 4, 256);
    const int64_t vocabulary = model.model->spec().vocab_size;
    std::vector<Request> requests;
    for (const Ids& prompt : text_prompts(name, 12))
        requests.push_back({.prompt = prompt,
                            .max_new_tokens = new_tokens,
                            .sampling = {.temperature = requests.size() % 2 == 0 ? 0.0 : 1.0},
                            .seed = 3,
                            .prompt_number = static_cast<uint32_t>(requests.size())});
    const std::vector<Completion> free = generate::Decoder(*model.ctx, *model.model).answer(requests);
    generate::Decoder decoder(*model.ctx, *model.model);
    for (std::size_t i = 0; i < requests.size(); i += 3)
        requests[i].constraint = std::make_shared<Ascending>(vocabulary);
    const std::vector<Completion> answers = answer_as_they_come(decoder, requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
        if (i % 3 != 0) {
            EXPECT_EQ(answers[i].ids, free[i].ids) << i;
            continue;
        }
        int32_t last = -1;
        ASSERT_EQ(answers[i].ids.size(), static_cast<std::size_t>(new_tokens));
        for (const int32_t id : answers[i].ids) {
            EXPECT_TRUE(id > last && id < last + 20) << id << " after " << last;
            last = id;
        }
    }
}

TEST_P(DecoderTest, KeysAreSharedAmongRequestsOfOnePrefix) {
    const LoadedModel model = load_for_decoding(name, device, 2, 256);
    const Ids row = read_json(golden("forward/" + name + ".json"))["input_ids"][1].get<Ids>(),
              prompt(row.begin(), row.begin() + 36);
    generate::Decoder decoder(*model.ctx, *model.model);
    const auto cached = [&](uint32_t prefix) {
        return decoder.answer({{.prompt = prompt, .max_new_tokens = 2, .prefix = prefix}}).front().cached_tokens;
    };
    EXPECT_EQ(cached(5), 0);
    EXPECT_GT(cached(5), 0);
    EXPECT_EQ(cached(6), 0) << "another adapter has the same number now";
    EXPECT_GT(cached(5), 0);
}

TEST_P(DecoderTest, LogitsThatAreNotFiniteEndTheirOwnAnswerOnly) {
    constexpr int32_t spoiled = 255;  // its embedding is NaN
    const ScratchFolder folder;
    const fs::path model_with_nan =
        spoiled_model(folder, "model.embed_tokens.weight", spoiled, std::numeric_limits<float>::quiet_NaN());
    const auto answers_of = [&](const std::vector<Ids>& asked) {
        const LoadedModel model = load_model(model_with_nan, decoder_request(device, 3, 192));
        generate::Decoder decoder(*model.ctx, *model.model);
        std::vector<Request> requests;
        for (const Ids& prompt : asked) requests.push_back({.prompt = prompt, .max_new_tokens = new_tokens});
        std::vector<Completion> answers = decoder.answer(requests);
        EXPECT_EQ(decoder.scheduler().pool().free(), decoder.scheduler().pool().pages());
        return answers;
    };
    const Ids first{3, 5, 8}, last{7, 9};
    const std::vector<Completion> answers = answers_of({first, {4, spoiled, 6}, last}),
                                  alone = answers_of({first, last});
    EXPECT_EQ(answers[1].finish_reason, generate::FinishReason::not_finite);
    EXPECT_TRUE(answers[1].ids.empty());
    EXPECT_EQ(answers[0].ids, alone[0].ids);
    EXPECT_EQ(answers[2].ids, alone[1].ids);
    EXPECT_EQ(answers[0].finish_reason, generate::FinishReason::length);
    EXPECT_THROW(generate::require_finite(answers[1], "the second"), Error);
}

TEST_P(DecoderTest, TellsHowLongRowsWaitedButLooksAtNoClockWhereBitsRepeat) {
    const LoadedModel model = load_for_decoding(name, device, 2, 128);
    const std::vector<Ids> asked = text_prompts(name, 2);
    std::vector<generate::PassWork> seen;
    const auto look = [&](const generate::PassWork& pass, double ms) {
        EXPECT_GT(ms, 0);
        EXPECT_LT(ms, 60'000);
        seen.push_back(pass);
    };
    const auto answer = [&] {
        generate::Decoder decoder(*model.ctx, *model.model, {.prefill_tokens = 7, .on_pass = look});
        decoder.add({.prompt = asked[0], .max_new_tokens = new_tokens});
        decoder.step({}, {});
        EXPECT_TRUE(seen.empty()) << "nobody waited for the first prompt";
        decoder.add({.prompt = Ids(16, asked[0].front()), .max_new_tokens = 2});
        while (decoder.step({}, {})) {
        }
        EXPECT_EQ(decoder.scheduler().pool().free(), decoder.scheduler().pool().pages());
    };
    answer();
    const auto together = [](const generate::PassWork& pass) { return pass.together; };
    ASSERT_EQ(std::count_if(seen.begin(), seen.end(), together), 3) << "16 tokens, up to 7 at a time";
    const auto first = std::find_if(seen.begin(), seen.end(), together);
    EXPECT_EQ(first->tokens, 1 + 7);
    EXPECT_EQ(first->chosen, 1);
    EXPECT_GE(static_cast<int64_t>(seen.size()), new_tokens - 4) << "and those without a prompt, but for recordings";
    seen.clear();
    model.ctx->deterministic = true;
    answer();
    EXPECT_TRUE(seen.empty());
}

TEST(DecoderBuckets, AreFewAndHoldTheirRows) {
    std::set<int64_t> buckets;
    for (int64_t rows = 1; rows <= 256; ++rows) {
        const int64_t bucket = generate::bucket_of(rows);
        EXPECT_GE(bucket, rows);
        EXPECT_LE(2 * bucket, 3 * rows);
        EXPECT_EQ(generate::bucket_of(bucket), bucket);
        buckets.insert(bucket);
    }
    EXPECT_EQ(buckets, (std::set<int64_t>{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256}));
}

/// Rows that leave one by one make no recording each.
TEST_P(DecoderTest, RecordsByBucketsOfRows) {
    if (device != "cuda") GTEST_SKIP() << "recorded on a GPU alone";
    const LoadedModel model = load_for_decoding(name, device, 24, 24 * 64, 256);
    std::vector<Request> requests;
    const std::vector<Ids> asked = text_prompts(name, 24);
    for (std::size_t i = 0; i < asked.size(); ++i)
        requests.push_back(
            {.prompt = Ids(asked[i].begin(), asked[i].begin() + 1), .max_new_tokens = 6 + static_cast<int64_t>(i)});
    generate::Decoder(*model.ctx, *model.model).answer(requests);
    EXPECT_GT(model.model->counts().replayed, 8);  // of 29 passes; without buckets 3, for few rows come twice
    EXPECT_LE(model.model->counts().recorded, 10);
}

}  // namespace
}  // namespace unsloth
