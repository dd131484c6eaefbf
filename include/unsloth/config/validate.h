// What no single option can know: options that follow from others, and combinations that make no sense.
#pragma once

#include <string>

#include "unsloth/config/config.h"
#include "unsloth/config/errors.h"
#include "unsloth/config/option_set.h"

namespace unsloth::config {

/// `options`: bound to `loaded`. Fills in what follows from the given options, adds notes, and adds contradictions to
/// `errors`.
void validate(LoadedConfig& loaded, OptionSet& options, Errors& errors);

/// Adds what the options of section grpo contradict each other in; a part of validate().
void check_grpo(const Config& config, Errors& errors);

/// Usage Error that names `option` for anything but auto, cpu, cuda and cuda:N.
void check_device(const std::string& device, const std::string& option);

}  // namespace unsloth::config
