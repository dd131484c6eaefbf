#include "unsloth/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "unsloth/core/error.h"
#include "unsloth/core/philox.h"

namespace unsloth::generate {
namespace {

struct Candidate {
    float logit;
    int32_t id;
};

bool likelier(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

/// log(sum(exp(logits))), in fp64.
double log_sum_exp(std::span<const float> logits_V) {
    float highest = -std::numeric_limits<float>::infinity();
    for (const float logit : logits_V) {
        if (std::isnan(logit)) throw runtime_failure("a logit is not a number");
        highest = std::max(highest, logit);
    }
    if (!std::isfinite(highest)) throw runtime_failure("no logit is finite");
    double sum = 0;
    for (const float logit : logits_V) sum += std::exp(static_cast<double>(logit) - highest);
    return highest + std::log(sum);
}

/// Each id once.
std::vector<int32_t> distinct(std::span<const int32_t> ids) {
    std::vector<int32_t> once(ids.begin(), ids.end());
    std::sort(once.begin(), once.end());
    once.erase(std::unique(once.begin(), once.end()), once.end());
    return once;
}

std::vector<float> adjusted(std::span<const float> logits_V, const spec::Sampling& sampling,
                            std::span<const int32_t> ids, std::size_t answer_begin) {
    std::vector<float> logits(logits_V.begin(), logits_V.end());
    const auto at = [&](int32_t id) -> float& {
        UNSLOTH_CHECK(id >= 0 && static_cast<std::size_t>(id) < logits.size(), "id ", id, " of a vocabulary of ",
                      logits.size());
        return logits[static_cast<std::size_t>(id)];
    };
    if (sampling.repetition_penalty != 1) {
        const auto penalty = static_cast<float>(sampling.repetition_penalty);
        for (const int32_t id : distinct(ids)) at(id) = at(id) > 0 ? at(id) / penalty : at(id) * penalty;
    }
    if (sampling.presence_penalty != 0)
        for (const int32_t id : distinct(ids.subspan(answer_begin)))
            at(id) -= static_cast<float>(sampling.presence_penalty);
    for (const auto& [id, bias] : sampling.logit_bias) at(id) += bias;
    return logits;
}

/// What top_k, top_p and min_p leave of the logits over the temperature; never nothing.
std::vector<Candidate> candidates(const std::vector<float>& logits, const spec::Sampling& sampling) {
    std::vector<Candidate> left;
    left.reserve(logits.size());
    const auto temperature = static_cast<float>(sampling.temperature);
    for (std::size_t id = 0; id < logits.size(); ++id)
        left.push_back({logits[id] / temperature, static_cast<int32_t>(id)});
    if (sampling.top_k > 0 && sampling.top_k < static_cast<int64_t>(left.size())) {
        std::nth_element(left.begin(), left.begin() + sampling.top_k, left.end(), likelier);
        left.resize(static_cast<std::size_t>(sampling.top_k));
    }
    const float highest = std::min_element(left.begin(), left.end(), likelier)->logit;
    if (sampling.top_p < 1) {
        std::sort(left.begin(), left.end(), likelier);
        double all = 0, sum = 0;
        for (const Candidate& c : left) all += std::exp(static_cast<double>(c.logit) - highest);
        std::size_t kept = 0;
        while (kept < left.size() && sum < sampling.top_p * all)
            sum += std::exp(static_cast<double>(left[kept++].logit) - highest);
        left.resize(std::max<std::size_t>(kept, 1));
    }
    if (sampling.min_p > 0) {
        const double least = highest + std::log(sampling.min_p);
        std::erase_if(left, [&](const Candidate& c) { return c.logit < least && c.logit != highest; });
    }
    return left;
}

/// The logarithm of an exponential wait of rate 1 that belongs to the id.
double log_wait(const DrawKey& key, int32_t id) {
    const PhiloxWords words = philox4x32(static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32),
                                         static_cast<uint32_t>(id) / 4, key.position, key.answer, key.prompt);
    const double u = (static_cast<double>(words.w[id % 4]) + 0.5) * 0x1p-32;
    return std::log(-std::log1p(-u));  // short waits, which win, are told apart as u near 0 is
}

int32_t draw(const std::vector<Candidate>& from, const DrawKey& key) {
    int32_t first = from.front().id;
    double best = -std::numeric_limits<double>::infinity();
    for (const Candidate& c : from) {
        const double score = c.logit - log_wait(key, c.id);
        if (score > best || (score == best && c.id < first)) best = score, first = c.id;
    }
    return first;
}

}  // namespace

bool is_plain(const spec::Sampling& sampling) {
    return sampling.temperature == 0 && sampling.repetition_penalty == 1 && sampling.presence_penalty == 0 &&
           sampling.logit_bias.empty();
}

Chosen choose_token(std::span<const float> logits_V, const spec::Sampling& sampling, std::span<const int32_t> ids,
                    std::size_t answer_begin, const DrawKey& key) {
    const double normaliser = log_sum_exp(logits_V);
    const std::vector<float> logits = adjusted(logits_V, sampling, ids, answer_begin);
    int32_t id = 0;
    if (sampling.temperature == 0) {
        id = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    } else {
        id = draw(candidates(logits, sampling), key);
    }
    return {id, static_cast<float>(logits_V[static_cast<std::size_t>(id)] - normaliser)};
}

}  // namespace unsloth::generate
