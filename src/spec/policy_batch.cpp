#include "unsloth/spec/policy_batch.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "unsloth/core/error.h"

namespace unsloth::spec {
namespace {

/// Mean, least and greatest of what is added.
struct PolicyMean {
    double sum = 0, count = 0, least = HUGE_VAL, greatest = -HUGE_VAL;

    void add(double value) {
        sum += value;
        count += 1;
        least = std::min(least, value);
        greatest = std::max(greatest, value);
    }
    // Without any value TRL reports 0.
    double mean() const { return count > 0 ? sum / count : 0; }
    double min() const { return count > 0 ? least : 0; }
    double max() const { return count > 0 ? greatest : 0; }
    std::optional<double> defined(double value) const { return count > 0 ? std::optional(value) : std::nullopt; }
};

/// What the metrics need, summed up row by row.
class PolicyStatistics {
  public:
    explicit PolicyStatistics(const PolicyRule& rule) : rule_(rule) {}

    void add_token(const PolicyToken& token, double entropy, const PolicyTokenLoss& loss, double advantage) {
        entropy_.add(entropy);
        if (rule_.beta != 0) kl_.add(loss.kl);
        const double difference = token.old_logp - token.sampler_logp;
        if (!std::isnan(difference)) difference_.add(std::abs(difference));
        if (corrects_tokens(rule_.correction)) correction_.add(token_correction(rule_, token));
        if (rule_.level == RatioLevel::token) add_clip(clip_of(rule_, loss.ratio, advantage));
    }
    void end_row(const PolicyRow& row) {
        if (rule_.level != RatioLevel::token) add_clip(clip_of(rule_, row.ratio, row.advantage));
        if (corrects_rows(rule_.correction)) correction_.add(row.correction);
        phi_.add(row.phi);
        if (row.tokens > 0 || rule_.level != RatioLevel::token) {
            low_rows_.add(low_row_.mean());
            high_rows_.add(high_row_.mean());
        }
        low_row_ = high_row_ = {};
    }
    void write(PolicyBatchLoss& to) const {
        auto& metrics = to.metrics;
        metrics.emplace_back("entropy", entropy_.mean());
        if (rule_.beta != 0) metrics.emplace_back("kl", kl_.mean());
        if (rule_.type == PolicyLossType::cispo) {
            metrics.emplace_back("cispo_clip_ratio", high_.mean());
        } else if (rule_.type == PolicyLossType::vespo) {
            metrics.emplace_back("vespo/phi_seq_mean", phi_.mean());
        } else if (rule_.type != PolicyLossType::sapo) {
            metrics.emplace_back("clip_ratio/low_mean", low_.mean());
            metrics.emplace_back("clip_ratio/high_mean", high_.mean());
            metrics.emplace_back("clip_ratio/region_mean", region_.mean());
            metrics.emplace_back("clip_ratio/low_min", low_rows_.defined(low_rows_.least));
            metrics.emplace_back("clip_ratio/high_max", high_rows_.defined(high_rows_.greatest));
        }
        if (rule_.correction == SamplerCorrection::none) return;
        metrics.emplace_back("sampling/sampling_logp_difference/mean", difference_.mean());
        metrics.emplace_back("sampling/sampling_logp_difference/max", difference_.max());
        metrics.emplace_back("sampling/importance_sampling_ratio/min", correction_.min());
        metrics.emplace_back("sampling/importance_sampling_ratio/mean", correction_.mean());
        metrics.emplace_back("sampling/importance_sampling_ratio/max", correction_.max());
    }

  private:
    void add_clip(const PolicyClip& clip) {
        low_.add(clip.low ? 1 : 0);
        high_.add(clip.high ? 1 : 0);
        region_.add(clip.low || clip.high ? 1 : 0);
        low_row_.add(clip.low ? 1 : 0);
        high_row_.add(clip.high ? 1 : 0);
    }

    const PolicyRule& rule_;
    PolicyMean entropy_, kl_, difference_, correction_, phi_;
    PolicyMean low_, high_, region_;   ///< over tokens, or rows of sequence levels
    PolicyMean low_row_, high_row_;    ///< of the current row
    PolicyMean low_rows_, high_rows_;  ///< over the rows that have tokens
};

void choose_by_entropy(std::vector<PolicyCompletion>& batch, double top) {
    std::vector<double> all;
    for (const PolicyCompletion& one : batch) all.insert(all.end(), one.entropies.begin(), one.entropies.end());
    const double least = entropy_threshold(std::move(all), top);
    for (PolicyCompletion& one : batch)
        for (std::size_t t = 0; t < one.tokens.size(); ++t) one.tokens[t].chosen = one.entropies[t] >= least;
}

/// The bonus is a mean over the chosen tokens, whatever the loss type.
void add_entropy_bonus(const PolicyBatchOptions& options, const std::vector<PolicyCompletion>& batch,
                       PolicyBatchLoss& to) {
    double chosen = 0;
    for (const PolicyCompletion& one : batch)
        for (const PolicyToken& token : one.tokens) chosen += token.chosen ? 1 : 0;
    const double weight = options.entropy_coef / (std::max(chosen, 1.0) * options.divisors.accumulation);
    for (const PolicyCompletion& one : batch) {
        auto& by = to.by_entropies.emplace_back();
        for (std::size_t t = 0; t < one.tokens.size(); ++t) {
            by.push_back(one.tokens[t].chosen ? -weight : 0.0);
            to.loss += by.back() * one.entropies[t];
        }
    }
}

}  // namespace

double entropy_threshold(std::vector<double> entropies, double top) {
    if (entropies.empty()) return std::numeric_limits<double>::infinity();
    const double rank = (1 - top) * static_cast<double>(entropies.size() - 1);
    const auto below = entropies.begin() + static_cast<std::ptrdiff_t>(rank);
    std::nth_element(entropies.begin(), below, entropies.end());
    const double part = rank - std::floor(rank);
    if (part == 0 || below + 1 == entropies.end()) return *below;
    return *below + part * (*std::min_element(below + 1, entropies.end()) - *below);
}

PolicyBatchLoss policy_batch_loss(const PolicyBatchOptions& options, std::vector<PolicyCompletion>& batch) {
    const PolicyRule& rule = options.rule;
    PolicyBatchLoss result;
    PolicyStatistics statistics(rule);
    if (options.top_entropy_quantile < 1) choose_by_entropy(batch, options.top_entropy_quantile);
    for (const PolicyCompletion& one : batch) {
        UNSLOTH_CHECK(one.entropies.size() == one.tokens.size(), one.entropies.size(), " entropies");
        PolicySums sums;
        for (const PolicyToken& token : one.tokens) add_token(rule, token, sums);
        const PolicyRow row = row_of(rule, options.divisors, sums, one.advantage);
        auto& by_logps = result.by_logps.emplace_back();
        auto& corrections = result.corrections.emplace_back();
        for (std::size_t t = 0; t < one.tokens.size(); ++t) {
            const PolicyToken& token = one.tokens[t];
            const PolicyTokenLoss loss = token_loss(rule, row, token);
            result.loss += loss.loss;
            by_logps.push_back(loss.by_logp);
            if (corrects_tokens(rule.correction)) corrections.push_back(token_correction(rule, token));
            if (rule.beta != 0 && kl_is_cut(token)) ++result.cut_kl;
            statistics.add_token(token, one.entropies[t], loss, one.advantage);
        }
        if (corrects_rows(rule.correction)) corrections.push_back(row.correction);
        result.loss += empty_row_loss(rule, row);
        statistics.end_row(row);
    }
    statistics.write(result);
    if (options.entropy_coef == 0) return result;
    // What divides dapo's, cispo's and vespo's loss has the accumulation in it.
    const bool whole = rule.type == PolicyLossType::dapo || weighs_log_probabilities(rule.type);
    result.metrics.emplace_back("policy_loss", result.loss * (whole ? 1 : options.divisors.accumulation));
    result.metrics.emplace_back("entropy_coef", options.entropy_coef);
    add_entropy_bonus(options, batch, result);
    return result;
}

}  // namespace unsloth::spec
