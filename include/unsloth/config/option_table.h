// The one place where the options of a configuration are declared.
#pragma once

#include "unsloth/config/config.h"
#include "unsloth/config/option_set.h"

namespace unsloth::config {

/// Declares every option of `config`, which must be freshly made (its values become the defaults) and outlive
/// `options`.
void declare_options(OptionSet& options, Config& config);

/// The names of the log levels, of the compute types and of what answers are judged by, which single commands offer
/// too.
std::vector<std::string> log_levels();
std::vector<std::pair<std::string, spec::DType>> compute_types();
std::vector<std::pair<std::string, AnswerMetric>> answer_metrics();

}  // namespace unsloth::config
