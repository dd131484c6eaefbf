// What a step of reinforcement learning has besides its tokens: completions with their advantages and what the policy,
// a reference and the sampler said of their tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/spec/policy_batch.h"

namespace unsloth::data {

/// A sampled completion of a prompt. Log-probabilities are natural logarithms at the sampling temperature, one a token
/// of the completion.
struct SampledRow {
    std::vector<int32_t> prompt;
    std::vector<int32_t> ids;    ///< with the end token where it has one
    std::vector<float> sampler;  ///< NaN: not known of this token; empty: none were recorded
    bool truncated = false;      ///< it has no end
    bool counts = true;          ///< false: its tokens are no part of the loss
    double advantage = 0;
    std::vector<float> old_logps;  ///< of the policy at generation; empty: the policy's own, whatever it is
    std::vector<float> reference;  ///< empty without beta
};

/// A row of a step.
struct PolicyRow {
    std::shared_ptr<const SampledRow> sampled;
    std::vector<uint8_t> chosen = {};  ///< by the entropy mask, one a token; empty: all
    bool fresh = false;                ///< sampled by the policy as it is before this step
    bool passed = true;                ///< false: no pass is over it, for it changes nothing (drop_zero_groups)
};

struct PolicyStep {
    /// Of all ranks, micro-batch after micro-batch: Batch::rows are places in it.
    std::vector<PolicyRow> rows;
    /// One for each micro-batch, of rows.size() / micro.size() rows each.
    std::vector<spec::PolicyBatchOptions> micro;
    /// Of the generations that began with this step; NaN: undefined.
    std::vector<std::pair<std::string, double>> metrics;

    std::size_t rows_each() const { return rows.size() / micro.size(); }
    std::size_t micro_of(std::size_t row) const { return row / rows_each(); }
};

}  // namespace unsloth::data
