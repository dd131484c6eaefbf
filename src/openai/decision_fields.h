// The parts of a decision that requests and rows share.
#pragma once

#include <nlohmann/json.hpp>

#include "unsloth/openai/decision.h"

namespace unsloth::openai {

/// The messages of a row's "input", and its "question". ApiError 400.
nlohmann::ordered_json decision_input(const nlohmann::ordered_json& value);
DecisionQuestion decision_question(const nlohmann::ordered_json& value);

}  // namespace unsloth::openai
