// What the commands use of the option table and of the engine's requests.
#pragma once

#include "unsloth/config/option_table.h"
#include "unsloth/config/parse.h"
#include "unsloth/engine_api/engine.h"

namespace unsloth::app {

using config::AnswerMetric, config::answer_metrics, config::Config, config::DataOptions, config::Json,
    config::LoadedConfig, config::Names, config::Option, config::OptionSet, config::OptionType, config::ParseRecord,
    config::Errors, config::Section;
using engine_api::BenchRequest, engine_api::BenchSubject, engine_api::EvaluateRequest, engine_api::GenerateRequest,
    engine_api::KvCacheDtype, engine_api::NamedFolders, engine_api::PlanRequest, engine_api::ReplayRequest,
    engine_api::ScoreRequest, engine_api::ServeRequest, engine_api::TuneRequest;

}  // namespace unsloth::app
