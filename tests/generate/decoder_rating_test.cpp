// What tokens are rated by, and drawn by: log-probabilities of completions and prompts.
#include <algorithm>

#include "generate/decoder_support.h"

namespace unsloth {
namespace {

using namespace test;
using Ids = std::vector<int32_t>;

TEST_P(DecoderTest, LogProbabilitiesAreThoseOfScore) {
    const std::vector<Ids> asked = text_prompts(name, 5);
    std::vector<Request> requests;
    for (std::size_t i = 0; i < asked.size(); ++i) {
        requests.push_back({.prompt = asked[i], .max_new_tokens = new_tokens});
        if (i >= 3) requests.back().sampling = {.temperature = 0.8, .top_p = 0.9};
    }
    const LoadedModel model = load_for_decoding(name, device, 48, 5 * 64);
    const std::vector<Completion> answers = generate::Decoder(*model.ctx, *model.model).answer(requests);
    for (std::size_t i = 0; i < asked.size(); ++i) {
        Ids all = asked[i];
        all.insert(all.end(), answers[i].ids.begin(), answers[i].ids.end());
        const at::Tensor logp = score_every_position(*model.model, {all}).logits_TV.to(at::kDouble).log_softmax(-1);
        for (std::size_t t = 0; t < answers[i].ids.size(); ++t)
            EXPECT_NEAR(answers[i].logprobs[t],
                        logp[static_cast<int64_t>(asked[i].size() + t) - 1][answers[i].ids[t]].item<double>(), 2e-4);
    }
}

/// Whatever top_k, top_p and min_p leave: of logits over the temperature, over the whole vocabulary.
TEST_P(DecoderTest, ThePolicysLogProbabilitiesAreThoseOfScoresLogitsOverTheTemperature) {
    const std::vector<Ids> asked = text_prompts(name, 3);
    const std::vector<spec::Sampling> ways = {{.temperature = 0.7},
                                              {.temperature = 1},
                                              {.temperature = 1.3},
                                              {.temperature = 0.7, .top_k = 4},
                                              {.temperature = 1.3, .top_p = 0.8, .min_p = 0.1}};
    std::vector<Request> requests;
    for (const Ids& prompt : asked)
        for (const spec::Sampling& sampling : ways)
            requests.push_back({.prompt = prompt,
                                .max_new_tokens = new_tokens,
                                .sampling = sampling,
                                .seed = 2,
                                .logprobs = ops::LogprobOf::policy});
    const LoadedModel model = load_for_decoding(name, device, 48, 15 * 64);
    const std::vector<Completion> answers = generate::Decoder(*model.ctx, *model.model).answer(requests);
    double raw = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const Ids& prompt = requests[i].prompt;
        Ids all = prompt;
        all.insert(all.end(), answers[i].ids.begin(), answers[i].ids.end());
        const at::Tensor logits = score_every_position(*model.model, {all}).logits_TV.to(at::kDouble);
        const at::Tensor policy = (logits / requests[i].sampling.temperature).log_softmax(-1);
        for (std::size_t t = 0; t < answers[i].ids.size(); ++t) {
            const auto row = static_cast<int64_t>(prompt.size() + t) - 1;
            const int32_t id = answers[i].ids[t];
            EXPECT_NEAR(answers[i].logprobs[t], policy[row][id].item<double>(), 3e-4) << i;
            raw = std::max(raw, std::abs(answers[i].logprobs[t] - logits.log_softmax(-1)[row][id].item<double>()));
        }
    }
    EXPECT_GT(raw, 0.05) << "the model's own at temperature 1 would do";
}

/// 20,000 answers to one prompt, of one token each.
TEST_P(DecoderTest, FirstTokensAreDrawnByThePolicy) {
    if (name != "llama_tied") GTEST_SKIP() << "once is enough";
    constexpr int draws = 20'000;
    const LoadedModel model = load_for_decoding(name, device, 64, 64 * 48);
    const Ids prompt = text_prompts(name, 1).front();
    const at::Tensor p =
        (score_every_position(*model.model, {prompt}).logits_TV[-1].to(at::kDouble) / 0.7).softmax(-1).cpu();
    std::vector<Request> requests;
    for (uint32_t i = 0; i < draws; ++i)
        requests.push_back({.prompt = prompt, .sampling = {.temperature = 0.7}, .seed = 6, .answer_number = i});
    std::vector<int64_t> counts(static_cast<std::size_t>(p.numel()));
    for (const Completion& answer : generate::Decoder(*model.ctx, *model.model).answer(std::move(requests)))
        ++counts[static_cast<std::size_t>(answer.ids.at(0))];
    double chi_squared = 0, rare = 0, rare_count = 0;
    int classes = 0;
    const auto add = [&](double expected, double count) {
        chi_squared += (count - expected) * (count - expected) / expected;
        ++classes;
    };
    for (std::size_t id = 0; id < counts.size(); ++id) {
        const double expected = draws * p[static_cast<int64_t>(id)].item<double>();
        if (expected >= 5) {
            add(expected, static_cast<double>(counts[id]));
        } else {
            rare += expected, rare_count += static_cast<double>(counts[id]);
        }
    }
    if (rare > 0) add(std::max(rare, 1.0), rare_count);
    ASSERT_GT(classes, 10);
    EXPECT_LE(chi_squared, classes - 1 + 4 * std::sqrt(2.0 * (classes - 1)));
}

TEST_P(DecoderTest, RatesPromptsAndNamesTheLikeliestTokens) {
    model::LoadRequest planned = decoder_request(device, 6, 6 * 64, 32, /*prefill_rows=*/12);
    planned.sizes.head_rows = planned.sizes.tokens;
    const LoadedModel model = load_model(model_folder(name), planned);
    const std::vector<Ids> asked = text_prompts(name, 6);
    std::vector<Request> requests;
    for (std::size_t i = 0; i < asked.size(); ++i)
        requests.push_back({.prompt = asked[i],
                            .max_new_tokens = 4,
                            .top_logprobs = static_cast<int64_t>(i) - 1,
                            .prompt_logprobs = i % 2 == 1});
    const generate::ChunkedPrefillPolicy as_decode_rows = [](int64_t, int64_t, int64_t) {
        return generate::PrefillChunk{5, true};
    };
    for (const generate::ChunkedPrefillPolicy& policy : {generate::ChunkedPrefillPolicy{}, as_decode_rows}) {
        generate::Decoder decoder(*model.ctx, *model.model,
                                  {.rows = 6, .prefill_tokens = 7, .prefill_policy = policy, .pads = true});
        const std::vector<Completion> answers = answer_as_they_come(decoder, requests);
        for (std::size_t i = 0; i < answers.size(); ++i) {
            const Completion& answer = answers[i];
            Ids all = asked[i];
            all.insert(all.end(), answer.ids.begin(), answer.ids.end());
            const at::Tensor logp = score_every_position(*model.model, {all}).logits_TV.to(at::kDouble).log_softmax(-1);
            const auto check = [&](std::size_t t, float logprob, const auto& top, bool is_likeliest) {
                const at::Tensor row = logp[static_cast<int64_t>(t) - 1];
                EXPECT_NEAR(logprob, row[all[t]].item<double>(), 2e-4);
                ASSERT_EQ(top.size(), static_cast<std::size_t>(std::max<int64_t>(requests[i].top_logprobs, 0)));
                const at::Tensor highest = std::get<0>(row.topk(8));
                for (std::size_t k = 0; k < top.size(); ++k) {
                    EXPECT_NEAR(top[k].second, row[top[k].first].template item<double>(), 2e-4);
                    EXPECT_NEAR(top[k].second, highest[static_cast<int64_t>(k)].template item<double>(), 2e-4);
                }
                if (is_likeliest && !top.empty()) {
                    EXPECT_EQ(top[0].first, all[t]);
                }
            };
            ASSERT_EQ(answer.prompt.size(), requests[i].prompt_logprobs ? asked[i].size() - 1 : 0);
            for (std::size_t t = 1; t <= answer.prompt.size(); ++t)
                check(t, answer.prompt[t - 1].logprob, answer.prompt[t - 1].top, false);
            ASSERT_EQ(answer.top.size(), requests[i].top_logprobs > 0 ? answer.ids.size() : 0);
            for (std::size_t t = 0; t < answer.top.size(); ++t)
                check(asked[i].size() + t, answer.logprobs[t], answer.top[t], true);
        }
    }
}

TEST_P(DecoderTest, RatesGivenIds) {
    const LoadedModel model = load_for_decoding(name, device, 48, 192);
    const std::vector<Ids> asked = text_prompts(name, 3);
    const Ids wanted = {5, 2, 90};
    std::vector<Request> requests;
    for (const Ids& prompt : asked) requests.push_back({.prompt = prompt, .max_new_tokens = 1, .rated_ids = wanted});
    requests[1].rated_ids.clear();
    requests[1].top_logprobs = 5;
    const std::vector<Completion> answers = generate::Decoder(*model.ctx, *model.model).answer(requests);
    EXPECT_EQ(answers[1].top.at(0).size(), 5U);
    for (const std::size_t i : {0, 2}) {
        const at::Tensor logp =
            score_every_position(*model.model, {asked[i]}).logits_TV[-1].to(at::kDouble).log_softmax(-1);
        ASSERT_EQ(answers[i].top.at(0).size(), wanted.size());
        for (std::size_t k = 0; k < wanted.size(); ++k) {
            EXPECT_EQ(answers[i].top[0][k].first, wanted[k]);
            EXPECT_NEAR(answers[i].top[0][k].second, logp[wanted[k]].item<double>(), 2e-4);
        }
    }
}

}  // namespace
}  // namespace unsloth
