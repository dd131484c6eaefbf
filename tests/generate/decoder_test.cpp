// Many requests at once against the answers that transformers gave to each alone, and what `score` says of the same
// ids.
#include "unsloth/generate/decoder.h"
#include "unsloth/ops/device.h"

#include <algorithm>
#include <limits>
#include <random>
#include <set>

#include "model/support.h"

namespace unsloth {
namespace {

using namespace test;
using generate::Completion, generate::Request;
using Row = std::vector<int32_t>;

constexpr int64_t new_tokens = 10, context = 48;

model::LoadRequest request_for(const std::string& device, int64_t rows, int64_t cache_tokens, int64_t pass_tokens = 64,
                               int64_t singly = 0, bool cache_in_8_bit = false) {
    model::LoadRequest request;
    request.device = ops::choose_device(device);
    request.dtype = at::kFloat;
    request.load_in_4bit = false;
    request.sizes.training = false;
    request.sizes.tokens = request.sizes.longest = std::max(pass_tokens, rows + singly);
    request.sizes.segments = rows + singly;
    request.sizes.head_rows = rows;
    request.sizes.cache_tokens = cache_tokens;
    request.sizes.cache_in_8_bit = cache_in_8_bit;
    request.sizes.context = context;
    request.run.head_tile = 16;  // the logits of a pass come in several pieces
    request.records = true;      // on a GPU: passes in which all rows decode
    return request;
}

LoadedModel load(const std::string& name, const std::string& device, int64_t rows, int64_t cache_tokens,
                 int64_t pass_tokens = 64, int64_t singly = 0, bool cache_in_8_bit = false) {
    return load_model(model_folder(name), request_for(device, rows, cache_tokens, pass_tokens, singly, cache_in_8_bit));
}

/// Prompts of 1 to 36 tokens, pieces of real text: more than mistral_window's 16.
std::vector<Row> prompts(const std::string& name, int64_t count) {
    const auto rows = read_json(golden("forward/" + name + ".json"))["input_ids"].get<std::vector<Row>>();
    std::mt19937 random(7);
    std::vector<Row> pieces;
    for (int64_t i = 0; i < count; ++i) {
        const Row& row = rows[1];
        const std::size_t first = random() % 4, length = 1 + random() % std::min<std::size_t>(36, row.size() - first);
        pieces.emplace_back(row.begin() + static_cast<std::ptrdiff_t>(first),
                            row.begin() + static_cast<std::ptrdiff_t>(first + length));
    }
    return pieces;
}

class DecoderTest : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
  protected:
    void SetUp() override { UNSLOTH_NEEDS_XZ(); }
    const std::string name = std::get<0>(GetParam()), device = std::get<1>(GetParam());
};

/// Requests join at random while others are under way; answers of 1 to `new_tokens` tokens end at different times.
std::vector<Completion> answer_as_they_come(generate::Decoder& decoder, const std::vector<Request>& requests) {
    std::mt19937 random(3);
    std::vector<Completion> answers(requests.size());
    std::size_t added = 0;
    const auto end = [&](int64_t i, const Completion& answer) { answers[static_cast<std::size_t>(i)] = answer; };
    for (bool more = true; more || added < requests.size();) {
        for (uint32_t some = random() % 9; some > 0 && added < requests.size(); --some, ++added)
            decoder.add(requests[added]);
        more = decoder.step({}, end);
    }
    return answers;
}

/// What transformers answered to prompts of 1 to 36 tokens, each alone (tests/golden/forward/make_greedy.py).
struct GreedyAnswers {
    std::vector<Request> requests;
    std::vector<Row> ids;

    explicit GreedyAnswers(const std::string& name) {
        const auto row = read_json(golden("forward/" + name + ".json"))["input_ids"][1].get<Row>();
        const nlohmann::json all = read_json(golden("forward/greedy.json"));
        for (const auto& entry : all.at(name)) {
            const auto begin = row.begin() + entry[0].get<std::ptrdiff_t>();
            ids.push_back(entry[2].get<Row>());
            requests.push_back({.prompt = Row(begin, begin + entry[1].get<std::ptrdiff_t>()),
                                .max_new_tokens = static_cast<int64_t>(ids.back().size())});
        }
    }
};

TEST_P(DecoderTest, GreedyAnswersAreThoseOfTransformers) {
    const GreedyAnswers expected(name);
    ASSERT_EQ(expected.ids.size(), 64U);
    std::set<int32_t> distinct;
    for (const Row& ids : expected.ids) distinct.insert(ids.begin(), ids.end());
    EXPECT_GT(distinct.size(), 10U) << "constant answers prove little";
    // Tokens of prompts go in together, or each by itself, so many as befits nobody.
    const generate::ChunkedPrefillPolicy odd = [](int64_t decoding, int64_t keys, int64_t cached) {
        return generate::PrefillChunk{1 + (decoding + keys + cached) % 11, keys % 3 != 0};
    };
    for (const generate::ChunkedPrefillPolicy& beside : {generate::ChunkedPrefillPolicy{}, odd}) {
        for (const int64_t rows : {1, 7, 64}) {
            // The cache is short: some are put off, and computed anew.
            const LoadedModel model = load(name, device, rows, std::max<int64_t>(64, rows * 24), 32, /*singly=*/12);
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
    const std::vector<Row> asked = prompts(name, 12);
    std::vector<Request> requests;
    for (std::size_t i = 0; i < asked.size(); ++i) {
        Request request{.prompt = asked[i], .max_new_tokens = new_tokens, .seed = 4};
        request.sampling = {.temperature = 1.2, .top_k = i % 2 == 0 ? 50 : 0, .repetition_penalty = 1.1};
        request.prompt_number = static_cast<uint32_t>(i);
        requests.push_back(request);
    }
    const LoadedModel model = load(name, device, 12, 12 * 64);
    const std::vector<Completion> together = generate::Decoder(*model.ctx, *model.model).answer(requests);
    for (std::size_t i = 0; i < requests.size(); ++i) {
        generate::Decoder alone(*model.ctx, *model.model);
        EXPECT_EQ(alone.answer({requests[i]}).front().ids, together[i].ids) << i;
    }
    requests[0].answer_number = 1;
    EXPECT_NE(generate::Decoder(*model.ctx, *model.model).answer({requests[0]}).front().ids, together[0].ids);
}

TEST_P(DecoderTest, LogProbabilitiesAreThoseOfScore) {
    const std::vector<Row> asked = prompts(name, 5);
    std::vector<Request> requests;
    for (std::size_t i = 0; i < asked.size(); ++i) {
        requests.push_back({.prompt = asked[i], .max_new_tokens = new_tokens});
        if (i >= 3) requests.back().sampling = {.temperature = 0.8, .top_p = 0.9};
    }
    const LoadedModel model = load(name, device, 48, 5 * 64);
    const std::vector<Completion> answers = generate::Decoder(*model.ctx, *model.model).answer(requests);
    for (std::size_t i = 0; i < asked.size(); ++i) {
        Row all = asked[i];
        all.insert(all.end(), answers[i].ids.begin(), answers[i].ids.end());
        const at::Tensor logp = score_every_position(*model.model, {all}).logits_TV.to(at::kDouble).log_softmax(-1);
        for (std::size_t t = 0; t < answers[i].ids.size(); ++t)
            EXPECT_NEAR(answers[i].logprobs[t],
                        logp[static_cast<int64_t>(asked[i].size() + t) - 1][answers[i].ids[t]].item<double>(), 2e-4);
    }
}

/// Whatever top_k, top_p and min_p leave: of logits over the temperature, over the whole vocabulary.
TEST_P(DecoderTest, ThePolicysLogProbabilitiesAreThoseOfScoresLogitsOverTheTemperature) {
    const std::vector<Row> asked = prompts(name, 3);
    const std::vector<spec::Sampling> ways = {{.temperature = 0.7},
                                              {.temperature = 1},
                                              {.temperature = 1.3},
                                              {.temperature = 0.7, .top_k = 4},
                                              {.temperature = 1.3, .top_p = 0.8, .min_p = 0.1}};
    std::vector<Request> requests;
    for (const Row& prompt : asked)
        for (const spec::Sampling& sampling : ways)
            requests.push_back({.prompt = prompt,
                                .max_new_tokens = new_tokens,
                                .sampling = sampling,
                                .seed = 2,
                                .logprobs = ops::LogprobOf::policy});
    const LoadedModel model = load(name, device, 48, 15 * 64);
    const std::vector<Completion> answers = generate::Decoder(*model.ctx, *model.model).answer(requests);
    double raw = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
        const Row& prompt = requests[i].prompt;
        Row all = prompt;
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

/// Pieces of prompts, rows that are put off, and neighbours change nothing: a token sees its own key as later ones do.
TEST_P(DecoderTest, AnswersOverKeysIn8BitAreTheSameHoweverTheyCome) {
    if (device == "cuda") GTEST_SKIP() << "codes are read by bfloat16 models there; this one is float32";
    const GreedyAnswers asked(name);
    const auto answers = [&](int64_t rows, int64_t cache_tokens, bool in_8_bit) {
        const LoadedModel model = load(name, device, rows, cache_tokens, 32, 0, in_8_bit);
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
    const LoadedModel model = load(name, device, 2, 128);
    const Row prompt = prompts(name, 1).front();
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
    EXPECT_EQ(stopped.ids, Row(whole.ids.begin(), whole.ids.begin() + static_cast<std::ptrdiff_t>(before)));
    EXPECT_EQ(stopped.finish_reason, generate::FinishReason::stop_token);
    EXPECT_EQ(stopped.stop.value().first, last);
    EXPECT_EQ(stopped.stop->second.logprob, whole.logprobs[before]);
    // When the stop id was read, the pass behind it was under way.
    EXPECT_EQ(passes() - new_tokens, static_cast<int64_t>(before) + 2);

    int seen = 0;
    const Completion told =
        decoder.answer({{.prompt = prompt, .max_new_tokens = new_tokens}}, [&](int64_t, int32_t) { return ++seen < 3; })
            .front();
    EXPECT_EQ(told.ids, Row(whole.ids.begin(), whole.ids.begin() + 3));
    EXPECT_EQ(told.finish_reason, generate::FinishReason::stop_text);
    EXPECT_EQ(decoder.scheduler().pool().free(), decoder.scheduler().pool().pages());
}

/// The first token ends an answer of one token, the last allowed one an answer of that length.
TEST_P(DecoderTest, AnAnswerKeepsItsStopIdWhereAsked) {
    const LoadedModel model = load(name, device, 2, 128);
    const Row prompt = prompts(name, 1).front();
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
            Row seen;
            const Completion with = decoder
                                        .answer({request},
                                                [&](int64_t, int32_t id) {
                                                    seen.push_back(id);
                                                    return true;
                                                })
                                        .front();
            EXPECT_EQ(with.finish_reason, generate::FinishReason::stop_token) << "token " << at << " of " << allowed;
            EXPECT_EQ(with.ids, Row(whole.ids.begin(), whole.ids.begin() + static_cast<std::ptrdiff_t>(length)));
            EXPECT_EQ(seen, with.ids);
            ASSERT_EQ(with.logprobs.size(), with.ids.size());
            EXPECT_NEAR(with.logprobs.back(), whole.logprobs[at], 2e-5);
            EXPECT_EQ(without.finish_reason, generate::FinishReason::stop_token);
            EXPECT_EQ(without.ids, Row(whole.ids.begin(), whole.ids.begin() + static_cast<std::ptrdiff_t>(at)));
            EXPECT_EQ(without.logprobs.size(), at);
        }
    }
    EXPECT_EQ(decoder.scheduler().pool().free(), decoder.scheduler().pool().pages());
}

/// Answers of one decoder over changes of the adapters are those of fresh decoders, and the old ones come back.
TEST_P(DecoderTest, LivesOnWhenTheWeightsChange) {
    model::LoadRequest asked = request_for(device, 4, 8 * 64);
    asked.lora = spec::LoraSpec{.r = 8, .target_modules = {"q_proj", "v_proj", "o_proj", "up_proj", "down_proj"}};
    const LoadedModel model = load_model(model_folder(name), asked);
    const weights::Parameters& parameters = *model->parameters();
    at::manual_seed(5);
    std::vector<Request> requests;
    for (const Row& start : prompts(name, 4)) {
        Row prompt = start;
        while (prompt.size() < 36) prompt.push_back(prompt[prompt.size() - start.size()]);
        requests.push_back({.prompt = prompt, .max_new_tokens = 4, .sampling = {.temperature = 1}});
    }
    const auto told = [](const std::vector<Completion>& answers) {
        std::vector<std::pair<Row, std::vector<float>>> all;
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
    const LoadedModel model = load(name, device, 4, 4 * 64);
    const auto requests = [&](std::size_t rotated) {
        std::vector<Request> all;
        for (Row prompt : prompts(name, 4)) {
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
    const std::vector<Row> asked = prompts(name, groups);
    std::vector<Request> requests;
    for (uint32_t i = 0; i < groups * group; ++i) {
        Row prompt = asked[i / group];
        while (prompt.size() < 36) prompt.push_back(prompt[prompt.size() / 2]);
        requests.push_back({.prompt = prompt,
                            .max_new_tokens = new_tokens - i % 3,
                            .sampling = {.temperature = 1.3},
                            .seed = 11,
                            .prompt_number = i / group,
                            .answer_number = i % group,
                            .logprobs = ops::LogprobOf::policy});
    }
    std::vector<Row> first;
    for (const int64_t rows : {1, 3, 8}) {
        const LoadedModel model = load(name, device, rows, rows * 64);
        for (const bool reversed : {false, true}) {
            std::vector<Request> ordered = requests;
            if (reversed) std::reverse(ordered.begin(), ordered.end());
            generate::Decoder decoder(*model.ctx, *model.model);
            std::vector<Completion> answers = answer_as_they_come(decoder, ordered);
            if (reversed) std::reverse(answers.begin(), answers.end());
            std::vector<Row> ids;
            for (const Completion& answer : answers) ids.push_back(answer.ids);
            if (first.empty()) first = ids;
            EXPECT_EQ(ids, first) << rows << " rows" << (reversed ? ", reversed" : "");
        }
    }
    EXPECT_EQ(std::set<Row>(first.begin(), first.end()).size(), first.size()) << "each answer is drawn by itself";
}

/// 20,000 answers to one prompt, of one token each.
TEST_P(DecoderTest, FirstTokensAreDrawnByThePolicy) {
    if (name != "llama_tied") GTEST_SKIP() << "once is enough";
    constexpr int draws = 20'000;
    const LoadedModel model = load(name, device, 64, 64 * 48);
    const Row prompt = prompts(name, 1).front();
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
    model::LoadRequest planned = request_for(device, 6, 6 * 64, 32, /*singly=*/12);
    planned.sizes.head_rows = planned.sizes.tokens;
    const LoadedModel model = load_model(model_folder(name), planned);
    const std::vector<Row> asked = prompts(name, 6);
    std::vector<Request> requests;
    for (std::size_t i = 0; i < asked.size(); ++i)
        requests.push_back({.prompt = asked[i],
                            .max_new_tokens = 4,
                            .top_logprobs = static_cast<int64_t>(i) - 1,
                            .prompt_logprobs = i % 2 == 1});
    const generate::ChunkedPrefillPolicy singly = [](int64_t, int64_t, int64_t) {
        return generate::PrefillChunk{5, true};
    };
    for (const generate::ChunkedPrefillPolicy& policy : {generate::ChunkedPrefillPolicy{}, singly}) {
        generate::Decoder decoder(*model.ctx, *model.model,
                                  {.rows = 6, .prefill_tokens = 7, .prefill_policy = policy, .pads = true});
        const std::vector<Completion> answers = answer_as_they_come(decoder, requests);
        for (std::size_t i = 0; i < answers.size(); ++i) {
            const Completion& answer = answers[i];
            Row all = asked[i];
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
    const LoadedModel model = load(name, device, 48, 192);
    const std::vector<Row> asked = prompts(name, 3);
    const Row wanted = {5, 2, 90};
    std::vector<Request> requests;
    for (const Row& prompt : asked) requests.push_back({.prompt = prompt, .max_new_tokens = 1, .rated_ids = wanted});
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

TEST_P(DecoderTest, StopIdsWaitForTheFewestTokensAndCancelledRequestsLeave) {
    const LoadedModel model = load(name, device, 2, 192);
    const Row prompt = prompts(name, 1).front();
    generate::Decoder decoder(*model.ctx, *model.model);
    const Row whole = decoder.answer({{.prompt = prompt, .max_new_tokens = new_tokens}}).front().ids;
    const Request least{
        .prompt = prompt, .max_new_tokens = new_tokens, .stop_ids = {whole[0], whole[1]}, .min_new_tokens = 3};
    const Row ids = decoder.answer({least}).front().ids;
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
    const LoadedModel model = load(name, device, 4, 256);
    const int64_t vocabulary = model.model->spec().vocab_size;
    std::vector<Request> requests;
    for (const Row& prompt : prompts(name, 12))
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
    const LoadedModel model = load(name, device, 2, 256);
    const Row row = read_json(golden("forward/" + name + ".json"))["input_ids"][1].get<Row>(),
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
    const auto answers_of = [&](const std::vector<Row>& asked) {
        const LoadedModel model = load_model(model_with_nan, request_for(device, 3, 192));
        generate::Decoder decoder(*model.ctx, *model.model);
        std::vector<Request> requests;
        for (const Row& prompt : asked) requests.push_back({.prompt = prompt, .max_new_tokens = new_tokens});
        std::vector<Completion> answers = decoder.answer(requests);
        EXPECT_EQ(decoder.scheduler().pool().free(), decoder.scheduler().pool().pages());
        return answers;
    };
    const Row first{3, 5, 8}, last{7, 9};
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
    const LoadedModel model = load(name, device, 2, 128);
    const std::vector<Row> asked = prompts(name, 2);
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
        decoder.add({.prompt = Row(16, asked[0].front()), .max_new_tokens = 2});
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
    const LoadedModel model = load(name, device, 24, 24 * 64, 256);
    std::vector<Request> requests;
    const std::vector<Row> asked = prompts(name, 24);
    for (std::size_t i = 0; i < asked.size(); ++i)
        requests.push_back(
            {.prompt = Row(asked[i].begin(), asked[i].begin() + 1), .max_new_tokens = 6 + static_cast<int64_t>(i)});
    generate::Decoder(*model.ctx, *model.model).answer(requests);
    EXPECT_GT(model.model->counts().replayed, 8);  // of 29 passes; without buckets 3, for few rows come twice
    EXPECT_LE(model.model->counts().recorded, 10);
}

INSTANTIATE_TEST_SUITE_P(All, DecoderTest,
                         ::testing::Combine(::testing::Values("llama_tied", "llama_bias", "mistral_window", "qwen2",
                                                              "qwen3"),
                                            ::testing::ValuesIn(test_devices())),
                         [](const auto& info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param); });

}  // namespace
}  // namespace unsloth
