#include "unsloth/ops/sampling.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "unsloth/core/error.h"

namespace unsloth {
namespace {

using namespace ops;
using Logits = std::vector<float>;
using Ids = std::vector<int32_t>;

SampledToken choose(const Logits& logits, const spec::Sampling& sampling, const SamplingKey& key = {},
                    const Ids& ids = {}, std::size_t answer_begin = 0) {
    return sample_token(logits, sampling, ids, answer_begin, key);
}

const Logits logits = {1.0F, 2.5F, -1.0F, 2.4F, 0.3F, 2.5F, -6.0F, 0.9F};

/// Probabilities that are proportional to these.
std::vector<double> normalised(std::vector<double> weights) {
    double sum = 0;
    for (const double w : weights) sum += w;
    for (double& w : weights) w /= sum;
    return weights;
}

std::vector<double> softmax(const Logits& of, double temperature) {
    std::vector<double> weights;
    for (const float logit : of) weights.push_back(std::exp(static_cast<double>(logit) / temperature));
    return normalised(weights);
}

/// Draws of 20,000 places in an answer against the distribution; tokens of probability 0 never come.
void expect_frequencies(const spec::Sampling& sampling, const std::vector<double>& p,
                        const SamplingKey& of = {.seed = 5}) {
    constexpr int draws = 20000;
    std::vector<int> counts(p.size());
    for (uint32_t position = 0; position < draws; ++position) {
        SamplingKey key = of;
        key.position = position;
        ++counts[static_cast<std::size_t>(choose(logits, sampling, key).id)];
    }
    double chi_squared = 0;
    int classes = 0;
    for (std::size_t id = 0; id < p.size(); ++id) {
        if (p[id] == 0) {
            EXPECT_EQ(counts[id], 0) << id;
            continue;
        }
        const double expected = p[id] * draws;
        ASSERT_GT(expected, 0.5);
        chi_squared += (counts[id] - expected) * (counts[id] - expected) / expected;
        ++classes;
    }
    // Beyond mean + 4 standard deviations a right sampler gets once in some ten thousand times; the seed is fixed.
    EXPECT_LE(chi_squared, classes - 1 + 4 * std::sqrt(2.0 * (classes - 1)));
}

TEST(Sampler, WithoutATemperatureTakesTheLikeliestAndOfEqualsTheFirst) {
    const SampledToken chosen = choose(logits, {});
    EXPECT_EQ(chosen.id, 1);
    EXPECT_NEAR(chosen.logprob, std::log(softmax(logits, 1)[1]), 1e-6);
}

TEST(Sampler, DrawsByTheModelsProbabilities) {
    expect_frequencies({.temperature = 1}, softmax(logits, 1));
    expect_frequencies({.temperature = 2.5}, softmax(logits, 2.5));
    expect_frequencies({.temperature = 1}, softmax(logits, 1), {.seed = uint64_t{1} << 40, .prompt = 3, .answer = 9});
}

/// Pairs of draws whose keys differ in one part by one, against the product of their distributions.
TEST(Sampler, NeighboursDrawIndependently) {
    const spec::Sampling sampling{.temperature = 3};
    const std::vector<double> p = softmax(logits, 3);
    constexpr int draws = 20000;
    const std::array<void (*)(SamplingKey&), 5> next = {
        [](SamplingKey& key) { ++key.seed; }, [](SamplingKey& key) { key.seed += uint64_t{1} << 32; },
        [](SamplingKey& key) { ++key.prompt; }, [](SamplingKey& key) { ++key.answer; },
        [](SamplingKey& key) { ++key.position; }};
    for (std::size_t part = 0; part < next.size(); ++part) {
        std::vector<int> counts(p.size() * p.size());
        for (uint32_t draw = 0; draw < draws; ++draw) {
            SamplingKey key{.seed = 7, .prompt = 2 * (draw % 100), .answer = 2, .position = 2 * draw};
            const auto one = static_cast<std::size_t>(choose(logits, sampling, key).id);
            next[part](key);
            ++counts[one * p.size() + static_cast<std::size_t>(choose(logits, sampling, key).id)];
        }
        double chi_squared = 0;
        for (std::size_t i = 0; i < counts.size(); ++i) {
            const double expected = p[i / p.size()] * p[i % p.size()] * draws;
            ASSERT_GT(expected, 0.5);
            chi_squared += (counts[i] - expected) * (counts[i] - expected) / expected;
        }
        const auto freedom = static_cast<double>(counts.size() - 1);
        EXPECT_LE(chi_squared, freedom + 4 * std::sqrt(2 * freedom)) << "part " << part;
    }
}

TEST(Sampler, LeavesWhatTopKTopPAndMinPSay) {
    const std::vector<double> p = softmax(logits, 1);  // order of likelihood: 1, 5, 3, 0, 7, 4, 2, 6
    expect_frequencies({.temperature = 1, .top_k = 3}, normalised({0, p[1], 0, p[3], 0, p[5], 0, 0}));
    expect_frequencies({.temperature = 1, .top_k = 1}, normalised({0, 1, 0, 0, 0, 0, 0, 0}));
    const double two = p[1] + p[5];
    expect_frequencies({.temperature = 1, .top_p = two - 0.01}, normalised({0, p[1], 0, 0, 0, p[5], 0, 0}));
    expect_frequencies({.temperature = 1, .top_p = two + 0.01}, normalised({0, p[1], 0, p[3], 0, p[5], 0, 0}));
    expect_frequencies({.temperature = 1, .top_p = 1e-9}, normalised({0, 1, 0, 0, 0, 0, 0, 0}));
    const double least = (p[0] + p[7]) / 2 / p[1];
    expect_frequencies({.temperature = 1, .min_p = least}, normalised({p[0], p[1], 0, p[3], 0, p[5], 0, 0}));
    // top_p is of what top_k leaves.
    const double of_three = p[1] / (p[1] + p[5] + p[3]);
    expect_frequencies({.temperature = 1, .top_k = 3, .top_p = of_three - 0.01}, normalised({0, 1, 0, 0, 0, 0, 0, 0}));
}

TEST(Sampler, PenaltiesAndBiasesChangeWhatIsLikeliest) {
    // 1 and 5 lead with 2.5, 3 follows with 2.4.
    EXPECT_EQ(choose(logits, {.repetition_penalty = 1.5}, {}, {1, 5}, 2).id, 3) << "of the prompt too";
    EXPECT_EQ(choose(logits, {.presence_penalty = 0.5}, {}, {1, 5}, 2).id, 1) << "not of the prompt";
    EXPECT_EQ(choose(logits, {.presence_penalty = 0.5}, {}, {9, 1, 1, 5}, 1).id, 3);
    EXPECT_EQ(choose(logits, {.frequency_penalty = 0.07}, {}, {1, 1, 5}, 0).id, 5) << "once for each time";
    EXPECT_EQ(choose(logits, {.frequency_penalty = 0.07}, {}, {1, 1, 5, 5}, 0).id, 3);
    constexpr float forbidden = -std::numeric_limits<float>::infinity();
    EXPECT_EQ(choose(logits, {.logit_bias = {{1, forbidden}, {5, forbidden}}}).id, 3);
    EXPECT_EQ(choose({-1.0F, -1.2F}, {.repetition_penalty = 1.5}, {}, {0}, 1).id, 1) << "negative ones are multiplied";
    EXPECT_EQ(choose(logits, {.logit_bias = {{6, 20.0F}}}).id, 6);
    const SampledToken biased = choose(logits, {.logit_bias = {{6, 20.0F}}});
    EXPECT_NEAR(biased.logprob, std::log(softmax(logits, 1)[6]), 1e-5) << "log-probabilities are the model's own";
    EXPECT_THROW(choose(logits, {.logit_bias = {{8, 1.0F}}}), CheckError);
}

TEST(Sampler, TellsThePolicysLogProbabilityOverTheWholeVocabulary) {
    const Ids ids{1, 5, 3};
    for (const double temperature : {0.7, 1.0, 1.3}) {
        const std::vector<double> p = softmax(logits, temperature), raw = softmax(logits, 1);
        const std::vector<spec::Sampling> ways = {{},
                                                  {.top_k = 3},
                                                  {.top_p = 0.5},
                                                  {.min_p = 0.6},
                                                  {.repetition_penalty = 1.5, .presence_penalty = 0.5},
                                                  {.logit_bias = {{6, 9.0F}, {1, -2.0F}}},
                                                  {.top_k = 4, .top_p = 0.9, .min_p = 0.1, .repetition_penalty = 1.2}};
        for (std::size_t way = 0; way < ways.size(); ++way) {
            spec::Sampling sampling = ways[way];
            sampling.temperature = temperature;
            for (uint32_t position = 0; position < 50; ++position) {
                const auto told = [&](LogprobOf of) {
                    return sample_token(logits, sampling, ids, 1, {.seed = 3, .position = position}, of);
                };
                const SampledToken policy = told(LogprobOf::policy), model = told(LogprobOf::model);
                ASSERT_EQ(policy.id, model.id);
                const auto id = static_cast<std::size_t>(policy.id);
                EXPECT_NEAR(policy.logprob, std::log(p[id]), 1e-6) << temperature << ", way " << way;
                EXPECT_NEAR(model.logprob, std::log(raw[id]), 1e-6) << temperature << ", way " << way;
            }
        }
    }
    EXPECT_THROW(sample_token(logits, {}, {}, 0, {}, LogprobOf::policy), CheckError) << "the likeliest has no policy";
}

TEST(Sampler, EveryPartOfTheKeyCounts) {
    const spec::Sampling sampling{.temperature = 3};
    const auto drawn = [&](SamplingKey key) {
        Ids ids;
        for (key.position = 0; key.position < 64; ++key.position) ids.push_back(choose(logits, sampling, key).id);
        return ids;
    };
    const Ids plain = drawn({});
    EXPECT_EQ(drawn({}), plain);
    EXPECT_NE(drawn({.seed = 1}), plain);
    EXPECT_NE(drawn({.seed = uint64_t{1} << 32}), plain);
    EXPECT_NE(drawn({.prompt = 1}), plain);
    EXPECT_NE(drawn({.answer = 1}), plain);
}

TEST(Sampler, RefusesLogitsThatAreNoNumbers) {
    const float nan = std::numeric_limits<float>::quiet_NaN(), infinite = std::numeric_limits<float>::infinity();
    EXPECT_TRUE(std::isnan(choose({1, nan, 2}, {}).logprob));
    EXPECT_TRUE(std::isnan(choose({-infinite, -infinite}, {}).logprob));
    EXPECT_EQ(choose({-infinite, 1}, {.temperature = 1}).id, 1);
}

/// As biases of minus infinity forbid the others.
TEST(Sampling, OnlyAllowedTokensAreChosen) {
    const std::vector<spec::Sampling> ways = {{},
                                              {.temperature = 1},
                                              {.temperature = 1, .top_k = 2},
                                              {.temperature = 0.7, .top_p = 0.6},
                                              {.temperature = 1, .min_p = 0.3},
                                              {.temperature = 1, .repetition_penalty = 1.5}};
    for (const uint32_t mask : {0b1000101U, 0b1000U, 0b11111111U})
        for (const spec::Sampling& way : ways)
            for (uint32_t position = 0; position < 50; ++position) {
                spec::Sampling biased = way;
                for (int32_t id = 0; id < 8; ++id)
                    if ((mask >> id & 1U) == 0)
                        biased.logit_bias.emplace_back(id, -std::numeric_limits<float>::infinity());
                const Ids ids = {1, 3};
                const SamplingKey key{.seed = 9, .position = position};
                const SampledToken expected = choose(logits, biased, key, ids),
                                   chosen = sample_token(logits, way, ids, 0, key, LogprobOf::model, std::array{mask});
                EXPECT_EQ(chosen.id, expected.id);
                EXPECT_EQ(chosen.logprob, expected.logprob) << "the model's own";
                EXPECT_NE(mask >> chosen.id & 1U, 0U);
            }
    EXPECT_TRUE(std::isnan(sample_token(logits, {}, {}, 0, {}, LogprobOf::model, std::array{0U}).logprob));
    EXPECT_THROW(sample_token(logits, {}, {}, 0, {}, LogprobOf::model, std::array{1U, 1U}), CheckError);
}

}  // namespace
}  // namespace unsloth
