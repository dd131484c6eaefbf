// `evaluate`: what a model makes of rows, by their losses and by its own answers.
#include <algorithm>
#include <cmath>
#include <iostream>

#include <nlohmann/json.hpp>

#include "commands/precision_sensitivity.h"
#include "unsloth/commands/commands.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/data/run_tokenizer.h"
#include "unsloth/session/session.h"
#include "unsloth/train/answers.h"
#include "unsloth/train/evaluation.h"
#include "unsloth/train/json_number.h"

namespace unsloth::commands {
namespace {

using Json = nlohmann::ordered_json;

void print_results(const Json& results, bool json) {
    if (json) {
        std::cout << results.dump() << "\n";
    } else {
        std::size_t width = 0;
        for (const auto& [name, value] : results.items()) width = std::max(width, name.size());
        for (const auto& [name, value] : results.items()) {
            std::cout << name << std::string(width + 2 - name.size(), ' ');
            if (value.is_number_float()) {
                std::cout << value.get<double>() << "\n";  // six digits
            } else {
                std::cout << value.dump() << "\n";
            }
        }
    }
}

void write_answers(const std::string& file, const std::vector<Json>& rows) {
    std::string lines;
    for (const Json& row : rows) lines += row.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    write_file_atomically(file, lines);
}

void add_answers(Json& results, const train::CompletionEvaluator::Result& judged) {
    results[judged.figures.front().first] = judged.figures.front().second;
    results["answers"] = judged.rows.size();
    for (std::size_t i = 1; i < judged.figures.size(); ++i)
        results["eval_" + judged.figures[i].first] = judged.figures[i].second;
}

}  // namespace

void run_evaluate(const config::LoadedConfig& given, const engine_api::EvaluateRequest& request) {
    config::LoadedConfig loaded = session::with_base(given);
    const config::Config& config = loaded.config;
    if (config.training.objective != config::Objective::sft)
        throw Error("option.unsupported", "evaluate takes rows of training.objective sft",
                    "A run's own evaluations have the figures of other objectives; for the loss of plain rows, "
                    "add --objective sft.");
    const bool judges = request.metric != config::AnswerMetric::none;
    if (!request.answer_regex.empty()) data::AnswerPattern(request.answer_regex, "--answer_regex");
    const session::OpenedModel opened = session::open_model(config);
    const bool compares = request.sensitivity != spec::WeightType::automatic;
    if (compares && opened.file->quantization)
        throw Error("model.already-quantized", cat(config.model.path, " is quantized: --sensitivity compares types"));
    (void)session::settle_length(loaded.config.model, opened.file->spec);
    if (const auto& experts = opened.file->spec.experts; experts && experts->router_aux > 0)
        log::info(
            "config.json says output_router_logits: losses here are without the load-balancing loss that "
            "transformers adds to them");
    const data::Dataset rows =
        data::load_evaluation_rows(config, opened.limits(), session::encoder_maker(opened, config),
                                   data::run_encoder_fingerprint(opened.tokenizer_folder, config.data));
    std::optional<train::CompletionEvaluator> answers;
    if (judges) {
        const train::AnswerRules rules{request.metric,   request.answer_regex, request.max_new_tokens,
                                       /*most_rows=*/64, "--answer_regex",     "--max_new_tokens"};
        answers.emplace(rules, rows, opened, config.data.eval_files);
    }
    const data::DatasetStats& stats = rows.stats();
    const int64_t usual = config.training.per_device_train_batch_size * config.model.max_seq_length;
    train::Evaluator evaluator(rows, config.data.eval_files, std::max(stats.longest, std::min(stats.tokens, usual)),
                               /*rank=*/0, /*ranks=*/1, nullptr);
    data::BatchLimits limits = evaluator.limits();
    int64_t shortest = stats.longest;
    for (int64_t i = 0; i < rows.size(); ++i) shortest = std::min(shortest, rows.tokens(i));
    if (answers) {
        shortest = 1;
        // A pass has room for an image as a whole, whatever others decode.
        const int64_t decoding = answers->sees_images() ? answers->rows() : 0;
        limits.tokens = std::max({limits.tokens, answers->longest() + decoding, answers->rows()});
        limits.segments = std::max(limits.segments, answers->rows());
        limits.labels = std::max(limits.labels, answers->rows());
        limits.image_tokens = std::max(limits.image_tokens, answers->image_room(limits.tokens));
    }
    const objective::References none;
    const auto load = [&](const config::LoadedConfig& as) {
        return session::load_for_inference(
            as, opened, limits.tokens, limits.segments, std::max<int64_t>(limits.labels, 1), shortest,
            answers ? placement::cache_for(answers->rows(), answers->context()) : placement::CacheSize{}, {}, {},
            {limits.patches, limits.image_tokens});
    };
    const auto evaluate = [&](const session::LoadedModel& model) {
        install_interrupt_handlers("Stopping");
        const auto objective = objective::make_objective(config, model.ctx->device(), none, nullptr);
        const train::Evaluator::Result found = evaluator.run(*model.model, *model.ctx, *objective, none, 0, 0);
        if (!found.report) throw Interrupted(found.signal, "stopped before all rows were evaluated");
        return *found.report;
    };
    if (compares) {
        const auto loss_of = [&](const config::LoadedConfig& as) { return *evaluate(load(as)).loss; };
        print_results(precision_sensitivity(loaded, opened.file->spec, request.sensitivity, loss_of), request.json);
        return;
    }
    const session::LoadedModel model = load(loaded);
    const train::EvalReport report = evaluate(model);
    if (!std::isfinite(*report.loss))
        throw Error("numerics.not-finite", "the rows' loss is not finite", session::overflow_advice);
    Json results{{"eval_loss", train::number(*report.loss)}, {"perplexity", train::number(std::exp(*report.loss))}};
    for (const auto& [name, value] : report.figures) results[name] = train::number(value);
    results["eval_tokens"] = report.tokens;
    for (const auto& [name, loss] : report.losses) results[cat("eval_", name, "_loss")] = train::number(loss);
    if (answers) {
        int signal = 0;
        const auto judged = answers->run(*model.model, *model.ctx, nullptr, signal);
        if (!judged) throw Interrupted(signal, "stopped before all prompts were answered");
        if (!request.answers.empty()) write_answers(request.answers, judged->rows);
        add_answers(results, *judged);
    }
    print_results(results, request.json);
}

}  // namespace unsloth::commands
