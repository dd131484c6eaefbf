// The engine's commands other than training and measuring; engine_api/engine.h describes the requests.
#pragma once

#include "unsloth/engine_api/engine.h"

namespace unsloth::commands {

/// Log-probabilities of every row of data.train_file, one JSON object a line.
void run_score(const config::LoadedConfig& loaded, const engine_api::ScoreRequest& request);
/// Answers to a prompt, a file of them or a conversation, all together, on stdout.
void run_generate(const config::LoadedConfig& loaded, const engine_api::GenerateRequest& request);
/// OpenAI's API over a model, with the adapters and limits of `answers`. Returns after SIGTERM, when answers have
/// ended.
void run_serve(const config::LoadedConfig& loaded, const engine_api::GenerateRequest& answers,
               const engine_api::ServeRequest& request);
/// Loss, perplexity and token accuracy of data.eval_file or data.eval_files, and of generated answers the share that
/// is right; on stdout. Input Error for rows that are no prompts with answers, where those are asked for.
void run_evaluate(const config::LoadedConfig& loaded, const engine_api::EvaluateRequest& request);
/// What a run would take of a GPU that need not be here, and how long its steps would be; printed as a table or as
/// JSON. False where nothing fits. usage Error for a card that is not known.
bool run_plan(const config::LoadedConfig& loaded, const engine_api::PlanRequest& request);
/// The same as figures, of the mesh that the configuration says. Its errors are run_plan's.
engine_api::PlanEstimate estimate_plan(const config::LoadedConfig& loaded, const engine_api::PlanRequest& request);
/// Runs a step that was skipped again, and says which layer was the first with a value that is not finite. Input Error
/// for a file that is no anomaly's.
void run_replay(const engine_api::ReplayRequest& request);
/// How far the logits of two models are apart. Input Error for texts that cannot be read or encoded.
engine_api::LogitComparison compare_logits(const engine_api::CompareRequest& request);
/// Measures a model on a file of rows, for `prune`. Input Error for a file without two tokens in a row; runtime Error
/// for a loss that is not finite.
engine_api::Calibration calibrate(const config::LoadedConfig& loaded, const engine_api::CalibrationRequest& request);

}  // namespace unsloth::commands
