// The declarations of a configuration's options by section, for option_table.cpp.
#pragma once

#include <string>
#include <vector>

#include "unsloth/config/config.h"
#include "unsloth/config/option_set.h"

namespace unsloth::config {

/// One of them gives rows to evaluate on; one of the others, evaluations during a run.
inline const std::vector<std::string> evaluation_rows = {"data.eval_file", "data.eval_files", "data.eval_split",
                                                         "data.val_size"},
                                      evaluation_intervals = {"training.eval_steps", "training.evals_per_epoch"};

void declare_model(OptionSet& options, ModelOptions& model);
/// What model.device_map, and others that mean the same of another model, take.
void declare_device_map(Option& map);
void declare_lora(OptionSet& options, LoraOptions& lora);
void declare_data(OptionSet& options, DataOptions& data);
void declare_training(OptionSet& options, TrainingOptions& training);
/// Its part on evaluation, checkpoints and reports.
void declare_saving(OptionSet& options, TrainingOptions& training);
void declare_preference(OptionSet& options, PreferenceOptions& preference);
void declare_distill(OptionSet& options, DistillOptions& distill);
void declare_grpo(OptionSet& options, GrpoOptions& grpo);
void declare_hardware(OptionSet& options, HardwareOptions& hardware);
void declare_distributed(OptionSet& options, DistributedOptions& distributed);
void declare_logging(OptionSet& options, LoggingOptions& logging);

/// Which options the encoded examples depend on, before they are split, ordered and packed; after all others.
void declare_changes_of_examples(OptionSet& options);

/// Words on values that other programs know; after all others.
void declare_foreign_values(OptionSet& options);

}  // namespace unsloth::config
