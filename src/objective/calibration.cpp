#include "unsloth/objective/calibration.h"

#include <algorithm>
#include <cmath>

#include "unsloth/core/error.h"

namespace unsloth::objective {
namespace {

constexpr double coldest = 0.05, hottest = 20;

}  // namespace

RatedDecision::RatedDecision(const data::OptionTokens& options, const float* logits)
    : options_(options), logits_(logits, logits + options.ids.size()) {
    const auto count = static_cast<int32_t>(logits_.size());
    for (int32_t begin = 0; begin < count;) {
        const spec::OptionLogit option = spec::option_logit(logits_.data(), options_.shares.data(), begin, count);
        option_logits_.push_back(option.value());
        shares_.push_back(static_cast<double>(options_.shares[static_cast<std::size_t>(begin)]));
        begin = option.end;
    }
    const double highest = *std::max_element(option_logits_.begin(), option_logits_.end());
    for (double& logit : option_logits_) logit -= highest;
}

spec::DecisionFigures RatedDecision::figures(const spec::DecisionRule& rule) const {
    return spec::decision_loss(rule, logits_.data(), options_.shares.data(), static_cast<int32_t>(logits_.size()),
                               [](int32_t, double) {});
}

std::vector<double> RatedDecision::probabilities(double temperature) const {
    std::vector<double> p;
    double sum = 0;
    for (const double logit : option_logits_) sum += p.emplace_back(std::exp(logit / temperature));
    for (double& one : p) one /= sum;
    return p;
}

void RatedDecision::count(std::span<float> bins, double temperature) const {
    const std::vector<double> p = probabilities(temperature);
    const auto top = static_cast<std::size_t>(std::max_element(p.begin(), p.end()) - p.begin());
    if (!std::isfinite(p[top])) return;  // the loss says so
    const auto bin = std::clamp<int64_t>(static_cast<int64_t>(p[top] * calibration_bins), 0, calibration_bins - 1);
    float* const of_bin = bins.data() + 3 * bin;
    of_bin[0] += 1;
    of_bin[1] += static_cast<float>(p[top]);
    of_bin[2] += static_cast<float>(shares_[top]);
}

double RatedDecision::loss(double temperature) const {
    double sum = 0, loss = 0;
    for (const double logit : option_logits_) sum += std::exp(logit / temperature);
    for (std::size_t i = 0; i < shares_.size(); ++i)
        if (shares_[i] != 0) loss -= shares_[i] * (option_logits_[i] / temperature - std::log(sum));
    return loss;
}

double RatedDecision::slope(double temperature) const {
    const std::vector<double> p = probabilities(temperature);
    double slope = 0;
    for (std::size_t i = 0; i < p.size(); ++i)
        if (p[i] != 0 || shares_[i] != 0) slope += (p[i] - shares_[i]) * option_logits_[i];
    return slope;
}

double calibration_error(std::span<const float> bins, double decisions) {
    double error = 0;
    for (std::size_t bin = 0; bin < static_cast<std::size_t>(calibration_bins); ++bin)
        error += std::abs(static_cast<double>(bins[3 * bin + 1]) - static_cast<double>(bins[3 * bin + 2]));
    return error / decisions;
}

std::optional<formats::DecisionCalibration> fit_temperature(const std::vector<RatedDecision>& decisions,
                                                            const SumOverRanks& sum) {
    const auto summed = [&](auto of_decision) {
        double total = 0;
        for (const RatedDecision& one : decisions) total += of_decision(one);
        std::vector<float> values{static_cast<float>(total)};
        sum(values);
        return static_cast<double>(values[0]);
    };
    const double rows = summed([](const RatedDecision&) { return 1.0; });
    if (!(rows > 0)) return std::nullopt;
    // The loss is convex in 1 / temperature: its slope has one zero, which an interval of 1 / temperature encloses.
    double low = 1 / hottest, high = 1 / coldest;
    constexpr int halvings = 40;
    for (int i = 0; i < halvings; ++i) {
        const double middle = std::sqrt(low * high);
        const double slope = summed([&](const RatedDecision& one) { return one.slope(1 / middle); });
        if (!std::isfinite(slope)) return std::nullopt;
        (slope > 0 ? high : low) = middle;
    }
    formats::DecisionCalibration found;
    found.temperature = 1 / std::sqrt(low * high);
    found.rows = static_cast<int64_t>(rows);
    const auto error = [&](double temperature) {
        std::vector<float> bins(calibration_measures);
        for (const RatedDecision& one : decisions) one.count(bins, temperature);
        sum(bins);
        return calibration_error(bins, rows);
    };
    const auto loss = [&](double temperature) {
        return summed([&](const RatedDecision& one) { return one.loss(temperature); }) / rows;
    };
    found.nll_before = loss(1), found.nll_after = loss(found.temperature);
    found.ece_before = error(1), found.ece_after = error(found.temperature);
    return found;
}

}  // namespace unsloth::objective
