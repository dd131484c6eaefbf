// What the readers use of the option table.
#pragma once

#include "unsloth/config/errors.h"
#include "unsloth/config/option_table.h"
#include "unsloth/config/peer_fields.h"

namespace unsloth::import {

using config::Config, config::DataFormat, config::DataOptions, config::find_peer_field, config::Json,
    config::LoadedConfig, config::Objective, config::Option, config::OptionSet, config::OptionType, config::PeerField,
    config::PeerRows, config::PreferenceLoss, config::Errors, config::shown, config::Synonym, config::Taken,
    config::TrainingOptions;

}  // namespace unsloth::import
