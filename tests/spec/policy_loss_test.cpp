// Losses of policy gradients against TRL's: 17 micro-batches of tests/golden/rl, with UNSLOTH_SHARED all 395; and what
// the golden numbers do not show.
#include "unsloth/spec/policy_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/files.h"
#include "unsloth/core/error.h"
#include "unsloth/spec/policy_batch.h"

namespace unsloth::spec {
namespace {

using nlohmann::json;

template <class Value>
Value one_of(const std::string& name, std::initializer_list<std::pair<const char*, Value>> values) {
    for (const auto& [known, value] : values)
        if (name == known) return value;
    throw std::runtime_error(name + " is unknown");
}

double number(const json& settings, const char* name, double otherwise) {
    return settings.contains(name) && !settings[name].is_null() ? settings[name].get<double>() : otherwise;
}

PolicyRule rule_of(const json& settings) {
    PolicyRule rule;
    rule.type = one_of<PolicyLossType>(settings.value("loss_type", "dapo"), {{"grpo", PolicyLossType::grpo},
                                                                             {"bnpo", PolicyLossType::bnpo},
                                                                             {"dr_grpo", PolicyLossType::dr_grpo},
                                                                             {"dapo", PolicyLossType::dapo},
                                                                             {"cispo", PolicyLossType::cispo},
                                                                             {"sapo", PolicyLossType::sapo},
                                                                             {"luspo", PolicyLossType::luspo},
                                                                             {"vespo", PolicyLossType::vespo}});
    rule.level = one_of<RatioLevel>(
        settings.value("importance_sampling_level", "token"),
        {{"token", RatioLevel::token}, {"sequence", RatioLevel::sequence}, {"sequence_sum", RatioLevel::sequence_sum}});
    rule.correction = one_of<SamplerCorrection>(settings.value("sampler_correction", "none"),
                                                {{"none", SamplerCorrection::none},
                                                 {"token_truncate", SamplerCorrection::token_truncate},
                                                 {"token_mask", SamplerCorrection::token_mask},
                                                 {"sequence_truncate", SamplerCorrection::sequence_truncate},
                                                 {"sequence_mask", SamplerCorrection::sequence_mask}});
    rule.epsilon = number(settings, "epsilon", rule.epsilon);
    rule.epsilon_high = number(settings, "epsilon_high", rule.epsilon);
    rule.delta = number(settings, "delta", rule.delta);
    rule.beta = number(settings, "beta", rule.beta);
    rule.corrected_kl = settings.value("use_bias_correction_kl", true);
    rule.off_policy_threshold = number(settings, "off_policy_mask_threshold", rule.off_policy_threshold);
    rule.correction_min = number(settings, "sampler_clip_min", rule.correction_min);
    rule.correction_max = number(settings, "sampler_clip_max", rule.correction_max);
    rule.sapo_temperature_positive = number(settings, "sapo_temperature_pos", rule.sapo_temperature_positive);
    rule.sapo_temperature_negative = number(settings, "sapo_temperature_neg", rule.sapo_temperature_negative);
    rule.vespo_k_positive = number(settings, "vespo_k_pos", rule.vespo_k_positive);
    rule.vespo_k_negative = number(settings, "vespo_k_neg", rule.vespo_k_negative);
    rule.vespo_lambda_positive = number(settings, "vespo_lambda_pos", rule.vespo_lambda_positive);
    rule.vespo_lambda_negative = number(settings, "vespo_lambda_neg", rule.vespo_lambda_negative);
    return rule;
}

/// A golden micro-batch: its rows, and the place of each token in them.
struct Case {
    json golden;
    PolicyBatchOptions options;
    std::vector<PolicyCompletion> batch;
    std::vector<std::vector<std::size_t>> places;

    explicit Case(json line) : golden(std::move(line)) {
        const json &settings = golden["settings"], &inputs = golden["inputs"], &mask = inputs["mask"];
        options.rule = rule_of(settings);
        options.top_entropy_quantile = number(settings, "top_entropy_quantile", 1);
        options.entropy_coef = number(settings, "entropy_coef", 0);
        PolicyDivisors& by = options.divisors;
        by.accumulation = golden["gradient_accumulation_steps"];
        by.slices = golden["steps_per_generation"];
        by.generation_tokens = golden["num_items_in_batch"];
        by.max_completion_length = settings["max_completion_length"];
        by.rows = static_cast<double>(mask.size());
        by.tokens = 0;
        const auto value = [&](const char* name, const char* otherwise, std::size_t i, std::size_t t) {
            const json& found = (inputs.contains(name) ? inputs[name] : inputs[otherwise])[i][t];
            return found.is_null() ? std::nan("") : found.get<double>();
        };
        const char* const old = inputs.contains("old_logps") ? "old_logps" : "logps";
        for (std::size_t i = 0; i < mask.size(); ++i) {
            PolicyCompletion& row = batch.emplace_back();
            row.advantage = inputs["advantages"][i];
            places.emplace_back();
            for (std::size_t t = 0; t < mask[i].size(); ++t) {
                if (mask[i][t] == 0) continue;
                by.tokens += 1;
                places.back().push_back(t);
                row.tokens.push_back({value("logps", "", i, t), value(old, "", i, t), value("ref_logps", "logps", i, t),
                                      value("sampler_logps", old, i, t)});
                row.entropies.push_back(value("entropies", "", i, t));
            }
        }
    }
};

void expect_like(const std::vector<std::vector<double>>& found, const json& expected, const Case& one) {
    double largest = 0;
    for (const json& row : expected)
        for (const json& value : row) largest = std::max(largest, std::abs(value.get<double>()));
    for (std::size_t i = 0; i < found.size(); ++i) {
        json rest = expected[i];
        for (std::size_t t = 0; t < found[i].size(); ++t) {
            const std::size_t at = expected[i].size() == 1 ? 0 : one.places[i][t];
            EXPECT_NEAR(found[i][t], expected[i][at].get<double>(), 1e-9 * std::max(largest, 1e-3)) << i << ", " << at;
        }
    }
}

void check(Case one) {
    const PolicyBatchLoss result = policy_batch_loss(one.options, one.batch);
    const json& expected = one.golden["expected"];
    EXPECT_NEAR(result.loss, expected["loss"].get<double>(), 1e-9 * std::max(1.0, std::abs(result.loss)));
    expect_like(result.by_logps, expected["d_logps"], one);
    if (expected.contains("d_entropies")) expect_like(result.by_entropies, expected["d_entropies"], one);
    if (expected.contains("sampler_ratio")) expect_like(result.corrections, expected["sampler_ratio"], one);
    EXPECT_EQ(result.metrics.size(), expected["metrics"].size());
    for (const auto& [name, value] : result.metrics) {
        ASSERT_TRUE(expected["metrics"].contains(name)) << name;
        const json& wanted = expected["metrics"][name];
        ASSERT_EQ(value.has_value(), !wanted.is_null()) << name << " " << wanted;
        if (value) {
            EXPECT_NEAR(*value, wanted.get<double>(), 1e-7) << name;  // TRL counts in fp32
        }
    }
}

int check_lines(std::istream& lines) {
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
        json golden = json::parse(line);
        SCOPED_TRACE(golden["name"].get<std::string>());
        check(Case(std::move(golden)));
    }
    return count;
}

TEST(PolicyLoss, IsTrlsOfSomeMicroBatches) {
    std::ifstream file(test::golden("rl/losses.jsonl"));
    EXPECT_EQ(check_lines(file), 17);
}

TEST(PolicyLoss, IsTrlsOfAllMicroBatches) {
    const char* const shared = std::getenv("UNSLOTH_SHARED");
    if (shared == nullptr) GTEST_SKIP() << "UNSLOTH_SHARED names no folder with the full reference collection";
    const std::string command =
        cat("python3 -c 'import lzma,sys; sys.stdout.write(lzma.open(sys.argv[1], \"rt\").read())' '", shared,
            "/golden/rl/losses.jsonl.xz'");
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
    ASSERT_NE(pipe, nullptr);
    std::stringstream text;
    std::vector<char> block(1 << 16);
    while (const std::size_t got = std::fread(block.data(), 1, block.size(), pipe.get()))
        text.write(block.data(), static_cast<std::streamsize>(got));
    EXPECT_EQ(check_lines(text), 395);
}

/// Two rows whose tokens hit each branch of clipping.
std::vector<PolicyCompletion> two_rows() {
    std::vector<PolicyCompletion> rows(2);
    rows[0].advantage = 0.7;
    rows[0].tokens = {{-1, -1.3, -1.1, -1.2}, {-0.5, -0.4, -0.8, -0.45}, {-2, -1.9, -1.7, -2.1}};
    rows[1].advantage = -1.2;
    rows[1].tokens = {{-0.2, -0.6, -0.3, -0.5}, {-3, -2.9, -2.6, std::nan("")}};
    for (PolicyCompletion& row : rows) row.entropies.assign(row.tokens.size(), 1.0);
    return rows;
}

/// Each derivative is that of the loss, where nothing of it is held constant (cispo, vespo hold their weights).
TEST(PolicyLoss, DerivativesAreThoseOfTheLoss) {
    for (const auto type : {PolicyLossType::grpo, PolicyLossType::bnpo, PolicyLossType::dr_grpo, PolicyLossType::dapo,
                            PolicyLossType::sapo, PolicyLossType::luspo}) {
        for (const auto level : {RatioLevel::token, RatioLevel::sequence, RatioLevel::sequence_sum}) {
            PolicyBatchOptions options;
            options.rule.type = type;
            options.rule.level = level;
            options.rule.beta = 0.3;
            options.rule.correction = SamplerCorrection::token_truncate;
            options.divisors = {2, 5, 9, 8, 2, 4};
            auto rows = two_rows();
            const PolicyBatchLoss result = policy_batch_loss(options, rows);
            for (std::size_t i = 0; i < rows.size(); ++i) {
                for (std::size_t t = 0; t < rows[i].tokens.size(); ++t) {
                    constexpr double step = 1e-6;
                    auto above = rows, below = rows;
                    above[i].tokens[t].logp += step;
                    below[i].tokens[t].logp -= step;
                    const double slope =
                        (policy_batch_loss(options, above).loss - policy_batch_loss(options, below).loss) / (2 * step);
                    EXPECT_NEAR(result.by_logps[i][t], slope, 1e-8)
                        << static_cast<int>(type) << " " << static_cast<int>(level) << ": " << i << ", " << t;
                }
            }
        }
    }
}

/// The divisors come from outside: a micro-batch may be cut into any passes.
TEST(PolicyLoss, RowsAddUpWhateverPassesTheyAreIn) {
    for (const auto type : {PolicyLossType::grpo, PolicyLossType::bnpo, PolicyLossType::dapo, PolicyLossType::vespo}) {
        PolicyBatchOptions options;
        options.rule.type = type;
        options.divisors = {2, 5, 9, 8, 2, 4};
        auto rows = two_rows();
        std::vector<PolicyCompletion> first{rows[0]}, second{rows[1]};
        const PolicyBatchLoss whole = policy_batch_loss(options, rows), a = policy_batch_loss(options, first),
                              b = policy_batch_loss(options, second);
        EXPECT_NEAR(whole.loss, a.loss + b.loss, 1e-14);
        EXPECT_EQ(whole.by_logps[0], a.by_logps[0]);
        EXPECT_EQ(whole.by_logps[1], b.by_logps[0]);
    }
}

/// A reference that finds a token certain which the policy almost rules out leaves the range of floats in TRL.
TEST(PolicyLoss, AFarReferenceStaysFinite) {
    PolicyBatchOptions options;
    options.rule.beta = 0.1;
    std::vector<PolicyCompletion> rows(1);
    rows[0].tokens = {{-900, -900, -1, -900}};
    rows[0].entropies = {1};
    const PolicyBatchLoss result = policy_batch_loss(options, rows);
    EXPECT_TRUE(std::isfinite(result.loss));
    EXPECT_TRUE(std::isfinite(result.by_logps[0][0]));
    EXPECT_EQ(result.cut_kl, 1);
}

TEST(PolicyLoss, ThresholdIsLinearBetweenRanks) {
    EXPECT_DOUBLE_EQ(entropy_threshold({4, 1, 3, 2}, 0.5), 2.5);
    EXPECT_DOUBLE_EQ(entropy_threshold({4, 1, 3, 2}, 1), 1);
    EXPECT_DOUBLE_EQ(entropy_threshold({4, 1, 3, 2}, 0), 4);
    EXPECT_DOUBLE_EQ(entropy_threshold({1, 1, 1}, 0.2), 1);
}

}  // namespace
}  // namespace unsloth::spec
