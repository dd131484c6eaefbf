#include "unsloth/ops/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "ops/checks.h"
#include "unsloth/core/error.h"
#include "unsloth/core/parallel.h"
#include "unsloth/core/philox.h"
#include "unsloth/ops/dtype.h"
#include "unsloth/ops/profiler.h"
#if UNSLOTH_CUDA
#include "kernels/sampling.h"
#endif

namespace unsloth::ops {
namespace {

struct Candidate {
    float logit;
    int32_t id;
};

bool likelier(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

/// What logits are divided by before the softmax whose log-probability is returned.
double divisor_of(LogprobOf logprob, const spec::Sampling& sampling) {
    if (logprob == LogprobOf::model) return 1;
    UNSLOTH_CHECK(sampling.temperature > 0, "a policy of temperature ", sampling.temperature);
    return static_cast<float>(sampling.temperature);
}

/// log(sum(exp(logits / divisor))), in fp64; NaN if a logit is NaN or the highest is infinite.
double log_sum_exp(std::span<const float> logits_V, double divisor) {
    float highest = -std::numeric_limits<float>::infinity();
    for (const float logit : logits_V) {
        if (std::isnan(logit)) return logit;
        highest = std::max(highest, logit);
    }
    if (!std::isfinite(highest)) return std::numeric_limits<double>::quiet_NaN();
    double sum = 0;
    for (const float logit : logits_V) sum += std::exp((static_cast<double>(logit) - highest) / divisor);
    return highest / divisor + std::log(sum);
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
        for (const int32_t id : distinct(ids))
            if (static_cast<std::size_t>(id) < logits.size()) at(id) = at(id) > 0 ? at(id) / penalty : at(id) * penalty;
    }
    if (sampling.presence_penalty != 0)
        for (const int32_t id : distinct(ids.subspan(answer_begin)))
            at(id) -= static_cast<float>(sampling.presence_penalty);
    if (sampling.frequency_penalty != 0)
        for (const int32_t id : ids.subspan(answer_begin)) at(id) -= static_cast<float>(sampling.frequency_penalty);
    for (const auto& [id, bias] : sampling.logit_bias) at(id) += bias;
    return logits;
}

void forbid_others(std::vector<float>& logits, std::span<const uint32_t> allowed) {
    for (std::size_t id = 0; id < logits.size(); ++id)
        if ((allowed[id / 32] >> id % 32 & 1U) == 0) logits[id] = -std::numeric_limits<float>::infinity();
}

void check_allowed(std::span<const uint32_t> allowed, std::size_t vocabulary) {
    UNSLOTH_CHECK(allowed.empty() || allowed.size() == (vocabulary + 31) / 32, allowed.size(),
                  " words of allowed tokens of a vocabulary of ", vocabulary);
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
double log_wait(const SamplingKey& key, int32_t id) {
    const PhiloxWords words = philox4x32(static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32),
                                         static_cast<uint32_t>(id) / 4, key.position, key.answer, key.prompt);
    const double u = (static_cast<double>(words.w[id % 4]) + 0.5) * 0x1p-32;
    return std::log(-std::log1p(-u));  // short waits, which win, stay distinct as u near 0 does
}

int32_t draw(const std::vector<Candidate>& from, const SamplingKey& key) {
    int32_t first = from.front().id;
    double best = -std::numeric_limits<double>::infinity();
    for (const Candidate& c : from) {
        const double score = c.logit - log_wait(key, c.id);
        if (score > best || (score == best && c.id < first)) best = score, first = c.id;
    }
    return first;
}

#if UNSLOTH_CUDA
/// The tokens whose logits the row changes.
void append_adjusted(const RowSampling& row, int64_t vocabulary, std::vector<kernels::AdjustedToken>& to) {
    std::map<int32_t, kernels::AdjustedToken> tokens;
    if (row.sampling->repetition_penalty != 1)
        for (const int32_t id : row.ids)
            if (id < vocabulary) tokens[id].repeated = true;
    if (row.sampling->presence_penalty != 0)
        for (const int32_t id : row.ids.subspan(row.answer_begin)) tokens[id].in_answer = true;
    if (row.sampling->frequency_penalty != 0)
        for (const int32_t id : row.ids.subspan(row.answer_begin)) {
            tokens[id].biased = true;
            tokens[id].bias -= static_cast<float>(row.sampling->frequency_penalty);
        }
    for (const auto& [id, bias] : row.sampling->logit_bias) {
        kernels::AdjustedToken& token = tokens[id];
        token.biased = true;
        token.bias += bias;
    }
    for (auto& [id, token] : tokens) {
        UNSLOTH_CHECK(id >= 0 && id < vocabulary, "id ", id, " of a vocabulary of ", vocabulary);
        token.id = id;
        to.push_back(token);
    }
}

kernels::SampledRow describe(const RowSampling& row) {
    const spec::Sampling& s = *row.sampling;
    kernels::SampledRow how;
    how.temperature = static_cast<float>(s.temperature);
    how.top_k = static_cast<int32_t>(std::min<int64_t>(s.top_k, INT32_MAX));
    how.top_p = s.top_p;
    how.has_min_p = s.min_p > 0;
    if (how.has_min_p) how.log_min_p = std::log(s.min_p);
    how.repetition_penalty = static_cast<float>(s.repetition_penalty);
    how.presence_penalty = static_cast<float>(s.presence_penalty);
    how.seed_low = static_cast<uint32_t>(row.key.seed);
    how.seed_high = static_cast<uint32_t>(row.key.seed >> 32);
    how.prompt = row.key.prompt;
    how.answer = row.key.answer;
    how.position = row.key.position;
    how.logprob_divisor = static_cast<float>(divisor_of(row.logprob, s));
    return how;
}

void choose_on_cuda(Context& ctx, const at::Tensor& logits_CV, std::span<const RowSampling> rows,
                    const at::Tensor& ids_C, const at::Tensor& logprobs_C) {
    std::vector<kernels::SampledRow> how;
    std::vector<kernels::AdjustedToken> adjusted;
    std::vector<uint32_t> allowed;
    for (const RowSampling& row : rows) {
        how.push_back(describe(row));
        check_allowed(row.allowed, static_cast<std::size_t>(logits_CV.size(1)));
        if (!row.allowed.empty()) how.back().allowed_begin = static_cast<int32_t>(allowed.size());
        allowed.insert(allowed.end(), row.allowed.begin(), row.allowed.end());
        how.back().adjusted_begin = static_cast<int32_t>(adjusted.size());
        append_adjusted(row, logits_CV.size(1), adjusted);
        how.back().adjusted_end = static_cast<int32_t>(adjusted.size());
    }
    static_assert(sizeof(kernels::SampledRow) % 8 == 0 && alignof(kernels::AdjustedToken) <= 8);
    const std::size_t bytes_of_how = how.size() * sizeof(how[0]),
                      bytes_of_adjusted = adjusted.size() * sizeof(adjusted[0]),
                      bytes_of_allowed = allowed.size() * sizeof(allowed[0]);
    const at::Tensor pinned = at::empty({static_cast<int64_t>(bytes_of_how + bytes_of_adjusted + bytes_of_allowed)},
                                        at::TensorOptions(at::kByte).pinned_memory(true));
    auto* const bytes = pinned.mutable_data_ptr<uint8_t>();
    std::memcpy(bytes, how.data(), bytes_of_how);
    if (bytes_of_adjusted > 0) std::memcpy(bytes + bytes_of_how, adjusted.data(), bytes_of_adjusted);
    if (bytes_of_allowed > 0) std::memcpy(bytes + bytes_of_how + bytes_of_adjusted, allowed.data(), bytes_of_allowed);
    const at::Tensor there = pinned.to(ctx.device(), /*non_blocking=*/true);
    auto* const data = there.mutable_data_ptr<uint8_t>();
    kernels::Sampling args;
    args.dtype = dtype_of(logits_CV);
    args.rows = static_cast<int>(rows.size());
    args.vocabulary = static_cast<int>(logits_CV.size(1));
    args.logits = {logits_CV.mutable_data_ptr(), logits_CV.stride(0)};
    args.how = reinterpret_cast<const kernels::SampledRow*>(data);
    args.adjusted = reinterpret_cast<kernels::AdjustedToken*>(data + bytes_of_how);
    args.allowed = reinterpret_cast<const uint32_t*>(data + bytes_of_how + bytes_of_adjusted);
    args.ids = ids_C.mutable_data_ptr<int32_t>();
    args.logprobs = logprobs_C.mutable_data_ptr<float>();
    kernels::sample_rows(args, static_cast<cudaStream_t>(ctx.stream()));
}
#endif

}  // namespace

SampledToken sample_token(std::span<const float> logits_V, const spec::Sampling& sampling, std::span<const int32_t> ids,
                          std::size_t answer_begin, const SamplingKey& key, LogprobOf logprob,
                          std::span<const uint32_t> allowed) {
    const double divisor = divisor_of(logprob, sampling), normaliser = log_sum_exp(logits_V, divisor);
    if (std::isnan(normaliser)) return {0, std::numeric_limits<float>::quiet_NaN()};
    std::vector<float> logits = adjusted(logits_V, sampling, ids, answer_begin);
    check_allowed(allowed, logits.size());
    if (!allowed.empty()) forbid_others(logits, allowed);
    if (*std::max_element(logits.begin(), logits.end()) == -std::numeric_limits<float>::infinity())
        return {0, std::numeric_limits<float>::quiet_NaN()};
    int32_t id = 0;
    if (sampling.temperature == 0) {
        id = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    } else {
        id = draw(candidates(logits, sampling), key);
    }
    return {id, static_cast<float>(logits_V[static_cast<std::size_t>(id)] / divisor - normaliser)};
}

void sample_tokens(Context& ctx, const at::Tensor& logits_CV, std::span<const RowSampling> rows,
                   const at::Tensor& ids_C, const at::Tensor& logprobs_C) {
    const Region region(ctx, "sampling");
    const auto count = static_cast<int64_t>(rows.size());
    check_matrix(ctx, "logits", logits_CV, count, logits_CV.size(1), logits_CV.scalar_type());
    check_contiguous(ctx, "ids", ids_C, {count}, at::kInt);
    check_contiguous(ctx, "log-probabilities", logprobs_C, {count}, at::kFloat);
    if (count == 0) return;
#if UNSLOTH_CUDA
    if (ctx.is_cuda()) return choose_on_cuda(ctx, logits_CV, rows, ids_C, logprobs_C);
#endif
    const at::Tensor logits = logits_CV.to(at::kFloat).contiguous();
    const auto vocabulary = static_cast<std::size_t>(logits.size(1));
    parallel_ranges(count, 1, [&](int64_t begin, int64_t end) {
        for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
            const RowSampling& row = rows[i];
            const SampledToken chosen =
                sample_token({logits.const_data_ptr<float>() + i * vocabulary, vocabulary}, *row.sampling, row.ids,
                             row.answer_begin, row.key, row.logprob, row.allowed);
            ids_C.mutable_data_ptr<int32_t>()[i] = chosen.id;
            logprobs_C.mutable_data_ptr<float>()[i] = chosen.logprob;
        }
    });
}

}  // namespace unsloth::ops
