// Many requests at once against the answers that transformers gave to each alone, and what `score` says of the same
// ids.
#include "unsloth/generate/decoder.h"

#include <algorithm>
#include <set>

#include "generate/decoder_support.h"

namespace unsloth {
namespace {

using namespace test;
using Ids = std::vector<int32_t>;

TEST_P(DecoderTest, GreedyAnswersAreThoseOfTransformers) {
    const GreedyAnswers expected(name);
    ASSERT_EQ(expected.ids.size(), 64U);
    std::set<int32_t> distinct;
    for (const Ids& ids : expected.ids) distinct.insert(ids.begin(), ids.end());
    EXPECT_GT(distinct.size(), 10U) << "constant answers prove little";
    // Tokens of prompts go in together, or each by itself, so many as befits nobody.
    const generate::ChunkedPrefillPolicy odd = [](int64_t decoding, int64_t keys, int64_t cached) {
        return generate::PrefillChunk{1 + (decoding + keys + cached) % 11, keys % 3 != 0};
    };
    for (const generate::ChunkedPrefillPolicy& beside : {generate::ChunkedPrefillPolicy{}, odd}) {
        for (const int64_t rows : {1, 7, 64}) {
            // The cache is short: some are put off, and computed anew.
            const LoadedModel model =
                load_for_decoding(name, device, rows, std::max<int64_t>(64, rows * 24), 32, /*prefill_rows=*/12);
            generate::Decoder decoder(*model.ctx, *model.model, {.prefill_policy = beside, .pads = true});
            const std::vector<Completion> answers = answer_as_they_come(decoder, expected.requests);
            for (std::size_t i = 0; i < answers.size(); ++i)
                EXPECT_EQ(answers[i].ids, expected.ids[i])
                    << "prompt " << i << " of " << rows << " rows" << (beside ? ", by a rule" : "");
            EXPECT_EQ(decoder.scheduler().pool().free(), decoder.scheduler().pool().pages());
        }
    }
}

TEST_P(DecoderTest, DrawnAnswersDoNotDependOnWhatIsDecodedBeside) {
    const std::vector<Ids> asked = text_prompts(name, 12);
    std::vector<Request> requests;
    for (std::size_t i = 0; i < asked.size(); ++i) {
        Request request{.prompt = asked[i], .max_new_tokens = new_tokens, .seed = 4};
        request.sampling = {.temperature = 1.2, .top_k = i % 2 == 0 ? 50 : 0, .repetition_penalty = 1.1};
        request.prompt_number = static_cast<uint32_t>(i);
        requests.push_back(request);
    }
    const LoadedModel model = load_for_decoding(name, device, 12, 12 * 64);
    const std::vector<Completion> together = generate::Decoder(*model.ctx, *model.model).answer(requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
        generate::Decoder alone(*model.ctx, *model.model);
        EXPECT_EQ(alone.answer({requests[i]}).front().ids, together[i].ids) << i;
    }
    requests[0].answer_number = 1;
    EXPECT_NE(generate::Decoder(*model.ctx, *model.model).answer({requests[0]}).front().ids, together[0].ids);
}

/// Pieces of prompts, rows that are put off, and neighbours change nothing: a token sees its own key as later ones do.
TEST_P(DecoderTest, AnswersOverKeysIn8BitAreTheSameHoweverTheyCome) {
    if (device == "cuda") GTEST_SKIP() << "codes are read by bfloat16 models there; this one is float32";
    const GreedyAnswers asked(name);
    const auto answers = [&](int64_t rows, int64_t cache_tokens, bool in_8_bit) {
        const LoadedModel model = load_for_decoding(name, device, rows, cache_tokens, 32, 0, in_8_bit);
        generate::Decoder decoder(*model.ctx, *model.model, {.pads = true});
        return answer_as_they_come(decoder, asked.requests);
    };
    const std::vector<Completion> alone = answers(1, 64, true), together = answers(16, 16 * 24, true),
                                  exact = answers(16, 16 * 64, false);
    double worst = 0, most = 0;
    for (std::size_t i = 0; i < alone.size(); ++i) {
        EXPECT_EQ(alone[i].ids, together[i].ids) << i;
        for (std::size_t t = 0; t < std::min(alone[i].ids.size(), exact[i].ids.size()); ++t) {
            if (alone[i].ids[t] != exact[i].ids[t]) break;
            worst = std::max<double>(worst, std::abs(alone[i].logprobs[t] - together[i].logprobs[t]));
            most = std::max<double>(most, std::abs(alone[i].logprobs[t] - exact[i].logprobs[t]));
        }
    }
    EXPECT_LT(worst, 5e-3) << "noise of fp32 may make another code of a value between two";
    EXPECT_GT(most, 1e-4) << "8 bit cannot be exact";
    EXPECT_LT(most, 0.3);
}

TEST_P(DecoderTest, AnswersEndAtStopIdsAndWhereTheirReaderSaysSo) {
    const LoadedModel model = load_for_decoding(name, device, 2, 128);
    const Ids prompt = text_prompts(name, 1).front();
    generate::Decoder decoder(*model.ctx, *model.model);
    const auto passes = [&] { return model.model->counts().qkv / model.model->spec().num_layers; };
    const Completion whole = decoder.answer({{.prompt = prompt, .max_new_tokens = new_tokens}}).front();
    EXPECT_EQ(passes(), new_tokens);
    ASSERT_EQ(whole.ids.size(), static_cast<std::size_t>(new_tokens));
    EXPECT_EQ(whole.finish_reason, generate::FinishReason::length);

    const int32_t last = whole.ids[6];
    const auto before =
        static_cast<std::size_t>(std::find(whole.ids.begin(), whole.ids.end(), last) - whole.ids.begin());
    const Completion stopped =
        decoder.answer({{.prompt = prompt, .max_new_tokens = new_tokens, .stop_ids = {-1, last}}}).front();
    EXPECT_EQ(stopped.ids, Ids(whole.ids.begin(), whole.ids.begin() + static_cast<std::ptrdiff_t>(before)));
    EXPECT_EQ(stopped.finish_reason, generate::FinishReason::stop_token);
    EXPECT_EQ(stopped.stop.value().first, last);
    EXPECT_EQ(stopped.stop->second.logprob, whole.logprobs[before]);
    // When the stop id was read, the pass behind it was under way.
    EXPECT_EQ(passes() - new_tokens, static_cast<int64_t>(before) + 2);

    int seen = 0;
    const Completion told =
        decoder.answer({{.prompt = prompt, .max_new_tokens = new_tokens}}, [&](int64_t, int32_t) { return ++seen < 3; })
            .front();
    EXPECT_EQ(told.ids, Ids(whole.ids.begin(), whole.ids.begin() + 3));
    EXPECT_EQ(told.finish_reason, generate::FinishReason::stop_text);
    EXPECT_EQ(decoder.scheduler().pool().free(), decoder.scheduler().pool().pages());
}

/// The first token ends an answer of one token, the last allowed one an answer of that length.
TEST_P(DecoderTest, AnAnswerKeepsItsStopIdWhereAsked) {
    const LoadedModel model = load_for_decoding(name, device, 2, 128);
    const Ids prompt = text_prompts(name, 1).front();
    generate::Decoder decoder(*model.ctx, *model.model);
    const Completion whole = decoder.answer({{.prompt = prompt, .max_new_tokens = new_tokens}}).front();
    std::set<int32_t> met;
    for (std::size_t at = 0; at < whole.ids.size(); ++at) {
        if (!met.insert(whole.ids[at]).second) continue;  // an earlier one ends the answer
        const auto length = static_cast<int64_t>(at) + 1;
        for (const int64_t allowed : {length, length + 2}) {
            Request request{.prompt = prompt, .max_new_tokens = allowed, .stop_ids = {-1, whole.ids[at], 7'000}};
            const Completion without = decoder.answer({request}).front();
            request.keeps_stop_id = true;
            Ids seen;
            const Completion with = decoder
                                        .answer({request},
                                                [&](int64_t, int32_t id) {
                                                    seen.push_back(id);
                                                    return true;
                                                })
                                        .front();
            EXPECT_EQ(with.finish_reason, generate::FinishReason::stop_token) << "token " << at << " of " << allowed;
            EXPECT_EQ(with.ids, Ids(whole.ids.begin(), whole.ids.begin() + static_cast<std::ptrdiff_t>(length)));
            EXPECT_EQ(seen, with.ids);
            ASSERT_EQ(with.logprobs.size(), with.ids.size());
            EXPECT_NEAR(with.logprobs.back(), whole.logprobs[at], 2e-5);
            EXPECT_EQ(without.finish_reason, generate::FinishReason::stop_token);
            EXPECT_EQ(without.ids, Ids(whole.ids.begin(), whole.ids.begin() + static_cast<std::ptrdiff_t>(at)));
            EXPECT_EQ(without.logprobs.size(), at);
        }
    }
    EXPECT_EQ(decoder.scheduler().pool().free(), decoder.scheduler().pool().pages());
}

/// Answers of one decoder over changes of the adapters are those of fresh decoders, and the old ones come back.
TEST_P(DecoderTest, LivesOnWhenTheWeightsChange) {
    model::LoadRequest asked = decoder_request(device, 4, 8 * 64);
    asked.lora = spec::LoraSpec{.r = 8, .target_modules = {"q_proj", "v_proj", "o_proj", "up_proj", "down_proj"}};
    const LoadedModel model = load_model(model_folder(name), asked);
    const weights::Parameters& parameters = *model->parameters();
    at::manual_seed(5);
    std::vector<Request> requests;
    for (const Ids& start : text_prompts(name, 4)) {
        Ids prompt = start;
        while (prompt.size() < 36) prompt.push_back(prompt[prompt.size() - start.size()]);
        requests.push_back({.prompt = prompt, .max_new_tokens = 4, .sampling = {.temperature = 1}});
    }
    const auto told = [](const std::vector<Completion>& answers) {
        std::vector<std::pair<Ids, std::vector<float>>> all;
        for (const Completion& answer : answers) all.emplace_back(answer.ids, answer.logprobs);
        return all;
    };
    generate::Decoder decoder(*model.ctx, *model.model);
    std::set<std::vector<float>> distinct;
    for (int step = 0; step < 3; ++step) {
        for (const weights::Parameter& p : parameters.table().parameters())
            if (p.kind == weights::Parameter::Kind::lora_b) parameters.value(p).copy_(at::randn(p.shape) * 0.2 * step);
        model->parameters_changed();
        const auto lived = told(decoder.answer(requests));
        EXPECT_EQ(lived, told(generate::Decoder(*model.ctx, *model.model).answer(requests))) << "change " << step;
        distinct.insert(lived[0].second);
    }
    EXPECT_EQ(distinct.size(), 3U) << "changes that nobody sees prove nothing";
}

/// Two decoders in turn, over one cache.
TEST_P(DecoderTest, FindsNoKeysWhereAnotherDecoderWrote) {
    const LoadedModel model = load_for_decoding(name, device, 4, 4 * 64);
    const auto requests = [&](std::size_t rotated) {
        std::vector<Request> all;
        for (Ids prompt : text_prompts(name, 4)) {
            while (prompt.size() < 36) prompt.push_back(prompt[prompt.size() / 2]);
            std::rotate(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(rotated), prompt.end());
            all.push_back({.prompt = prompt, .max_new_tokens = 4});
        }
        return all;
    };
    generate::Decoder decoder(*model.ctx, *model.model);
    const std::vector<Completion> before = decoder.answer(requests(0));
    generate::Decoder(*model.ctx, *model.model).answer(requests(5));
    const std::vector<Completion> after = decoder.answer(requests(0));
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(after[i].logprobs, before[i].logprobs) << i;
}

/// Groups of answers whose prompts' whole pages are computed once: ids depend on a row's numbers alone.
TEST_P(DecoderTest, GroupsAreTheSameForAnyRowsInFlightAndAnyOrder) {
    constexpr uint32_t groups = 3, group = 4;
    const std::vector<Ids> asked = text_prompts(name, groups);
    std::vector<Request> requests;
    for (uint32_t i = 0; i < groups * group; ++i) {
        Ids prompt = asked[i / group];
        while (prompt.size() < 36) prompt.push_back(prompt[prompt.size() / 2]);
        requests.push_back({.prompt = prompt,
                            .max_new_tokens = new_tokens - i % 3,
                            .sampling = {.temperature = 1.3},
                            .seed = 11,
                            .prompt_number = i / group,
                            .answer_number = i % group,
                            .logprobs = ops::LogprobOf::policy});
    }
    std::vector<Ids> first;
    for (const int64_t rows : {1, 3, 8}) {
        const LoadedModel model = load_for_decoding(name, device, rows, rows * 64);
        for (const bool reversed : {false, true}) {
            std::vector<Request> ordered = requests;
            if (reversed) std::reverse(ordered.begin(), ordered.end());
            generate::Decoder decoder(*model.ctx, *model.model);
            std::vector<Completion> answers = answer_as_they_come(decoder, ordered);
            if (reversed) std::reverse(answers.begin(), answers.end());
            std::vector<Ids> ids;
            for (const Completion& answer : answers) ids.push_back(answer.ids);
            if (first.empty()) first = ids;
            EXPECT_EQ(ids, first) << rows << " rows" << (reversed ? ", reversed" : "");
        }
    }
    EXPECT_EQ(std::set<Ids>(first.begin(), first.end()).size(), first.size()) << "each answer is drawn by itself";
}

INSTANTIATE_TEST_SUITE_P(All, DecoderTest,
                         ::testing::Combine(::testing::Values("llama_tied", "llama_bias", "mistral_window", "qwen2",
                                                              "qwen3"),
                                            ::testing::ValuesIn(test_devices())),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param); });

}  // namespace
}  // namespace unsloth
