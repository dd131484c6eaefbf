// The options of a new configuration, chosen by what a plan says of them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "app/new_config/subject.h"
#include "unsloth/config/json.h"
#include "unsloth/config/load.h"
#include "unsloth/engine_api/engine.h"

namespace unsloth::app {

struct Choice {
    std::string option;  ///< full name
    config::Json value;
    std::string reason;  ///< empty: it is the user's own
};

struct Proposal {
    std::vector<Choice> choices;  ///< by section
    engine_api::PlanEstimate estimate;
};

/// Plans a configuration for the device in question.
using Planner = std::function<engine_api::PlanEstimate(const config::LoadedConfig& config)>;

/// `on_cpu`: the configuration names the CPU as its device. Runtime Error where nothing fits; the planner's errors.
Proposal propose(const ModelFacts& model, const RowFacts& rows, bool on_cpu, const std::string& output_dir,
                 const Planner& plan);

/// The configuration file: sections in the choices' order; ends in a newline.
std::string json_of(const std::vector<Choice>& choices);

}  // namespace unsloth::app
