// Answers of a model most of whose layers keep a state for each sequence, in the place of keys (Qwen 3.5).
#include "generate/decoder_support.h"

namespace unsloth {
namespace {

using namespace test;

constexpr int64_t longest = 96;

class DecoderStates : public ::testing::TestWithParam<std::string> {
  protected:
    void SetUp() override { UNSLOTH_NEEDS_XZ(); }

    /// `snapshots`: next to the rows' own states; `cache_tokens`: 0: enough.
    LoadedModel load(int64_t rows, int64_t snapshots, int64_t cache_tokens = 0, bool in_8_bit = false) const {
        model::LoadRequest request = decoder_request(GetParam(), rows, cache_tokens > 0 ? cache_tokens : rows * longest,
                                                     /*pass_tokens=*/64, /*singly=*/4, in_8_bit);
        request.sizes.context = longest;
        request.sizes.snapshots = snapshots;
        return load_model(unpacked(set / "model"), request);
    }

    /// Groups of `group` answers to a prompt; two prompts have their first 32 tokens in common.
    std::vector<Request> groups(uint32_t group) const {
        const auto rows = read_json(unpacked(set) / "forward.json")["rows"];
        const auto first = rows[1]["input_ids"].get<Ids>(), second = rows[3]["input_ids"].get<Ids>();
        Ids third(first.begin(), first.begin() + 40);
        third.insert(third.end(), second.begin(), second.begin() + 30);
        std::vector<Request> requests;
        for (uint32_t prompt = 0; prompt < 3; ++prompt)
            for (uint32_t answer = 0; answer < group; ++answer)
                requests.push_back({.prompt = prompt == 0   ? first
                                              : prompt == 1 ? second
                                                            : third,
                                    .max_new_tokens = new_tokens - answer % 3,
                                    .sampling = {.temperature = 1.3},
                                    .seed = 11,
                                    .prompt_number = prompt,
                                    .answer_number = answer,
                                    .logprobs = ops::LogprobOf::policy});
        return requests;
    }

    static void expect_same(const std::vector<Completion>& answers, const std::vector<Completion>& expected) {
        ASSERT_EQ(answers.size(), expected.size());
        for (std::size_t i = 0; i < answers.size(); ++i) {
            ASSERT_EQ(answers[i].ids, expected[i].ids) << "request " << i;
            for (std::size_t t = 0; t < answers[i].ids.size(); ++t)
                EXPECT_NEAR(answers[i].logprobs[t], expected[i].logprobs[t], 1e-4) << "request " << i << ", " << t;
        }
    }

    const fs::path set = golden("families/qwen3_5_text");
};

/// The reference's answers, each three times, while others come and go: prompts go in by pieces, sequences take the
/// places of those that ended, and rows fill passes up to their buckets.
TEST_P(DecoderStates, AnswersAreThoseOfTransformers) {
    std::vector<Request> requests;
    std::vector<Ids> expected;
    for (int time = 0; time < 3; ++time)
        for (const auto& answer : read_json(unpacked(set) / "generate.json")) {
            expected.push_back(answer["ids"].get<Ids>());
            requests.push_back({.prompt = answer["prompt_ids"].get<Ids>(),
                                .max_new_tokens = static_cast<int64_t>(expected.back().size())});
        }
    const generate::ChunkedPrefillPolicy odd = [](int64_t decoding, int64_t keys, int64_t cached) {
        return generate::PrefillChunk{1 + (decoding + keys + cached) % 11, keys % 3 != 0};
    };
    for (const int64_t rows : {1, 3, 12}) {
        const LoadedModel model = load(rows, rows / 3);
        for (const generate::ChunkedPrefillPolicy& beside : {generate::ChunkedPrefillPolicy{}, odd}) {
            generate::Decoder decoder(*model.ctx, *model.model, {.prefill_policy = beside, .pads = true});
            const std::vector<Completion> answers = answer_as_they_come(decoder, requests);
            for (std::size_t i = 0; i < answers.size(); ++i)
                EXPECT_EQ(answers[i].ids, expected[i]) << "request " << i << " of " << rows << " rows";
        }
    }
}

/// Ids and log-probabilities, for any number of rows and snapshots; most of a group's prompts are not computed.
TEST_P(DecoderStates, SharedBeginningsChangeNoAnswer) {
    const std::vector<Request> requests = groups(5);
    std::vector<Completion> alone;
    for (const int64_t rows : {1, 4, 12})
        for (const int64_t snapshots : {0, 1, 4}) {
            SCOPED_TRACE(cat(rows, " rows, ", snapshots, " snapshots"));
            const LoadedModel model = load(rows, snapshots);
            generate::Decoder decoder(*model.ctx, *model.model, {.rows = rows, .pads = true});
            const std::vector<Completion> answers = decoder.answer(requests);
            if (alone.empty()) alone = answers;
            expect_same(answers, alone);
            int64_t cached = 0;
            for (const Completion& answer : answers) cached += answer.cached_tokens;
            EXPECT_GE(cached, snapshots == 4 ? 3 * 4 * 64 : 0);
            EXPECT_TRUE(snapshots > 0 || cached == 0);
        }
}

/// Sequences that lose their pages lose their states, and begin again, from snapshots where there are some.
TEST_P(DecoderStates, PreemptedSequencesComeToTheSameAnswers) {
    std::vector<Request> requests = groups(4);
    for (Request& one : requests) one.prompt.resize(60);  // two pages, and a third one after some tokens
    const LoadedModel enough = load(12, 0);
    const std::vector<Completion> expected = generate::Decoder(*enough.ctx, *enough.model).answer(requests);
    for (const int64_t snapshots : {0, 3}) {
        const LoadedModel model = load(12, snapshots, /*cache_tokens=*/4 * 96);
        generate::Decoder decoder(*model.ctx, *model.model, {.rows = 12});
        expect_same(decoder.answer(requests), expected);
        EXPECT_TRUE(snapshots > 0 || decoder.scheduler().preemptions() > 0);
        EXPECT_EQ(decoder.scheduler().pool().free(), decoder.scheduler().pool().pages());
    }
}

/// The layers with attention keep codes: a token sees itself as later ones will, in whatever pass it comes.
TEST_P(DecoderStates, KeysIn8BitGiveTheSameHoweverTheyCome) {
    if (GetParam() == "cuda") GTEST_SKIP() << "its kernels read codes of other heads";
    const std::vector<Request> requests = groups(4);
    std::vector<Completion> first;
    for (const int64_t rows : {1, 5, 12}) {
        const LoadedModel model = load(rows, 3, 0, /*in_8_bit=*/true);
        generate::Decoder decoder(*model.ctx, *model.model, {.pads = true});
        const std::vector<Completion> answers = answer_as_they_come(decoder, requests);
        if (first.empty()) first = answers;
        expect_same(answers, first);
    }
}

/// Neither after the weights changed nor after another decoder wrote to the same places.
TEST_P(DecoderStates, SnapshotsOfOthersAreNotFound) {
    const LoadedModel model = load(4, 2);
    const std::vector<Request> requests = groups(2);
    const auto cached = [](const std::vector<Completion>& answers) {
        std::vector<int64_t> tokens;
        for (const Completion& answer : answers) tokens.push_back(answer.cached_tokens);
        return tokens;
    };
    generate::Decoder decoder(*model.ctx, *model.model);
    const std::vector<Completion> before = decoder.answer(requests);
    EXPECT_GT(cached(decoder.answer({requests.back()})).front(), 0);
    decoder.forget_keys();
    const std::vector<Completion> forgotten = decoder.answer(requests);
    EXPECT_EQ(cached(forgotten), cached(before));
    generate::Decoder(*model.ctx, *model.model).answer({requests.front()});
    const std::vector<Completion> after = decoder.answer(requests);
    EXPECT_EQ(cached(after), cached(before));
    expect_same(forgotten, before);
    expect_same(after, before);
}

INSTANTIATE_TEST_SUITE_P(All, DecoderStates, ::testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace unsloth
