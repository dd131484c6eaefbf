// policy_loss.h over a micro-batch, on the host: loss, derivatives and the metrics of TRL's names.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/spec/policy_loss.h"

namespace unsloth::spec {

/// A completion: its tokens that count, possibly none.
struct PolicyCompletion {
    double advantage = 0;
    std::vector<PolicyToken> tokens;
    std::vector<double> entropies;  ///< [tokens], of softmax(logits / temperature)
};

struct PolicyBatchOptions {
    PolicyRule rule;
    PolicyDivisors divisors;
    double top_entropy_quantile = 1;  ///< below 1 sets PolicyToken::chosen
    double entropy_coef = 0;
};

struct PolicyBatchLoss {
    double loss = 0;
    std::vector<std::vector<double>> by_logps;      ///< [completions][tokens]
    std::vector<std::vector<double>> by_entropies;  ///< the same, with entropy_coef; otherwise empty
    std::vector<std::vector<double>> corrections;   ///< [completions][tokens], or [1] of a sequence's correction
    /// Only those that the rule gives a meaning; nullopt: undefined.
    std::vector<std::pair<std::string, std::optional<double>>> metrics;
    int cut_kl = 0;  ///< tokens whose KL was cut
};

/// Loss, derivatives and metrics of a micro-batch; sums in the order of rows and tokens. Sets PolicyToken::chosen where
/// top_entropy_quantile is below 1.
PolicyBatchLoss policy_batch_loss(const PolicyBatchOptions& options, std::vector<PolicyCompletion>& batch);

/// Least entropy of the share `top` of tokens that has most of it, linear between ranks; of no value infinity. A tie is
/// chosen whole.
double entropy_threshold(std::vector<double> entropies, double top);

}  // namespace unsloth::spec
