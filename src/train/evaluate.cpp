// `evaluate`: what a model makes of rows, by their losses and by its own answers.
#include <algorithm>
#include <cmath>
#include <iostream>

#include <nlohmann/json.hpp>

#include "train/generation.h"
#include "train/json_number.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/progress.h"
#include "unsloth/data/answer_pattern.h"
#include "unsloth/data/run_tokenizer.h"
#include "unsloth/generate/decoder.h"
#include "unsloth/train/commands.h"
#include "unsloth/train/evaluation.h"
#include "unsloth/train/session.h"

namespace unsloth::train {
namespace {

using Json = nlohmann::ordered_json;

/// A row's last trained part is the answer; what stands before it in its segment is asked.
struct Question {
    int64_t row = 0;
    int32_t set = 0;  ///< number of the evaluation set
    Prompt prompt;
    std::string expected;
    std::string compared;  ///< what of it answers are compared with
};

Question question_of(const data::Sample& sample, int32_t set, const tokenizer::Tokenizer& tokenizer) {
    const auto trained = [&](std::size_t t) { return sample.labels[t] != data::ignore_label; };
    std::size_t end = sample.ids.size();
    while (end > 0 && !trained(end - 1)) --end;
    std::size_t begin = end;
    while (begin > 0 && trained(begin - 1)) --begin;
    std::size_t first = begin;
    while (first > 0 && sample.positions[first] != 0) --first;
    if (begin <= first + 1)  // a token that begins all texts is no question
        throw input_error(cat("row ", sample.row, " has no prompt before its answer"),
                          "Answers can be judged of rows of prompts or messages whose prompt is no target.");
    const auto ids = [&](std::size_t from, std::size_t to) {
        return Prompt(sample.ids.begin() + static_cast<std::ptrdiff_t>(from),
                      sample.ids.begin() + static_cast<std::ptrdiff_t>(to));
    };
    return {sample.row, set, ids(first, begin), tokenizer.decode(ids(begin, end), /*skip_special=*/true), ""};
}

/// Tells right answers from wrong ones.
class Judge {
  public:
    explicit Judge(const config::EvaluateRequest& request) : request_(request) {
        if (!request.answer_regex.empty()) pattern_.emplace(request.answer_regex, "--answer_regex");
    }
    const char* metric() const {
        return request_.metric == config::AnswerMetric::exact_match ? "exact_match" : "regex";
    }
    /// What of the row's own answer is compared; input Error where there is nothing. Needed by exact_match alone.
    std::string expected(const Question& question) const {
        if (request_.metric == config::AnswerMetric::regex) return "";
        const std::optional<std::string> text = part_of(question.expected);
        if (!text)
            throw input_error(cat("--answer_regex finds nothing in the answer of row ", question.row, ": ",
                                  question.expected.substr(0, shown_)));
        return *text;
    }
    bool right(const std::string& answer, const std::string& expected) const {
        const std::optional<std::string> text = part_of(answer);
        return text && (request_.metric == config::AnswerMetric::regex || *text == expected);
    }

  private:
    std::optional<std::string> part_of(const std::string& answer) const {
        if (!pattern_) return data::trimmed(answer);
        const data::AnswerPattern::Found found = pattern_->find_last(answer);
        if (found.gave_up)
            log::warning("--answer_regex takes too many steps on an answer of ", answer.size(),
                         " bytes, which counts as one without a match: ", answer.substr(0, shown_));
        return found.text ? std::optional(data::trimmed(*found.text)) : std::nullopt;
    }

    static constexpr std::size_t shown_ = 200;
    const config::EvaluateRequest& request_;
    std::optional<data::AnswerPattern> pattern_;
};

struct Score {
    int64_t right = 0, answers = 0;
};

/// With the likeliest tokens, in the questions' order.
std::vector<std::string> answers_to(const std::vector<Question>& questions, const LoadedModel& model, int64_t context,
                                    int64_t max_new_tokens, const tokenizer::Tokenizer& tokenizer) {
    const std::vector<int32_t> stops = stop_ids(tokenizer, model.model->spec());
    std::vector<generate::Request> requests;
    for (const Question& question : questions)
        requests.push_back({.prompt = question.prompt, .max_new_tokens = max_new_tokens, .stop_ids = stops});
    Progress progress("answering", static_cast<int64_t>(questions.size()));
    generate::Decoder decoder(*model.ctx, *model.model, {.context = context});
    const auto ended = [&](int64_t, const generate::Answer&) {
        progress.add();
        if (const int signal = interrupt_requested(); signal != 0)
            throw Interrupted(signal, "stopped before all prompts were answered");
    };
    std::vector<std::string> texts;
    for (const generate::Answer& answer : decoder.answer(std::move(requests), {}, ended))
        texts.push_back(tokenizer.decode(answer.ids, /*skip_special=*/true));
    return texts;
}

/// Of each set; writes request.answers.
std::vector<Score> judge_answers(const std::vector<Question>& questions, const std::vector<std::string>& answers,
                                 const Judge& judge, const config::EvaluateRequest& request,
                                 const tokenizer::Tokenizer& tokenizer, const std::vector<std::string>& sets) {
    std::vector<Score> scores(std::max<std::size_t>(sets.size(), 1));
    std::string rows;
    for (std::size_t i = 0; i < questions.size(); ++i) {
        const Question& question = questions[i];
        const bool right = judge.right(answers[i], question.compared);
        Score& score = scores[sets.empty() ? 0 : static_cast<std::size_t>(question.set)];
        ++score.answers;
        score.right += right ? 1 : 0;
        Json row{{"row", question.row}};
        if (!sets.empty()) row["set"] = sets[static_cast<std::size_t>(question.set)];
        row["prompt"] = tokenizer.decode(question.prompt, /*skip_special=*/true);
        row["expected"] = question.expected;
        row["answer"] = answers[i];
        row["correct"] = right;
        rows += row.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    }
    if (!request.answers.empty()) write_file_atomically(request.answers, rows);
    return scores;
}

double share(const Score& score) {
    return static_cast<double>(score.right) / static_cast<double>(std::max<int64_t>(score.answers, 1));
}

void add_scores(Json& results, const std::string& metric, const std::vector<Score>& scores,
                const std::vector<std::string>& sets) {
    Score all;
    for (const Score& score : scores) all.right += score.right, all.answers += score.answers;
    results[metric] = share(all);
    results["answers"] = all.answers;
    for (std::size_t i = 0; i < sets.size(); ++i) results[cat("eval_", sets[i], "_", metric)] = share(scores[i]);
}

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
    if (!std::cout.flush()) throw runtime_failure("cannot write to standard output");
}

/// What the plan must hold: batches of as many tokens as training's, and prompts with their answers.
struct EvaluationSizes {
    int64_t batch_tokens = 1, shortest = 0;
    int64_t prompt = 0, context = 0, rows = 0;  ///< longest prompt, with its answer, and how many answers at a time
};

EvaluationSizes sizes_of(const data::Dataset& rows, const std::vector<Question>& questions,
                         const config::Config& config, int64_t max_new_tokens) {
    const data::DatasetStats& stats = rows.stats();
    const int64_t usual = config.training.per_device_train_batch_size * config.model.max_seq_length;
    EvaluationSizes sizes{std::max(stats.longest, std::min(stats.tokens, usual)), stats.longest};
    for (int64_t i = 0; i < rows.size(); ++i) sizes.shortest = std::min(sizes.shortest, rows.tokens(i));
    for (const Question& question : questions)
        sizes.prompt = std::max(sizes.prompt, static_cast<int64_t>(question.prompt.size()));
    if (questions.empty()) return sizes;
    constexpr int64_t most_rows = 64;
    sizes.shortest = 1;
    sizes.context = sizes.prompt + max_new_tokens;
    sizes.rows = std::min<int64_t>(most_rows, static_cast<int64_t>(questions.size()));
    return sizes;
}

}  // namespace

void run_evaluate(const config::LoadedConfig& loaded, const config::EvaluateRequest& request) {
    const config::Config& config = loaded.config;
    if (config.training.objective != config::Objective::sft)
        throw usage_error("evaluate takes rows of training.objective sft",
                          "A run's own evaluations have the figures of other objectives; for the loss of plain rows, "
                          "add --objective sft.");
    const bool judges = request.metric != config::AnswerMetric::none;
    const Judge judge(request);
    const OpenedModel opened = open_model(config);
    const data::Dataset rows =
        data::load_evaluation_rows(config, opened.limits(), encoder_maker(opened, config),
                                   data::run_encoder_fingerprint(opened.tokenizer_folder, config.data));
    std::vector<std::string> sets;
    for (const auto& [name, file] : config.data.eval_files) sets.push_back(name);
    std::optional<tokenizer::Tokenizer> tokenizer;
    std::vector<Question> questions;
    if (judges) {
        tokenizer.emplace(opened.tokenizer());
        for (int64_t i = 0; i < rows.size(); ++i) {
            questions.push_back(question_of(rows.sample(i), rows.source(i), *tokenizer));
            questions.back().compared = judge.expected(questions.back());
        }
    }
    const EvaluationSizes sizes = sizes_of(rows, questions, config, request.max_new_tokens);
    if (sizes.context > opened.file->spec.usable_positions())
        throw usage_error(cat("prompts and --max_new_tokens take ", sizes.context, " positions, the model allows ",
                              opened.file->spec.usable_positions()),
                          "Set a lower --max_new_tokens.");
    Evaluator evaluator(rows, config.data.eval_files, sizes.batch_tokens, /*rank=*/0, /*ranks=*/1, nullptr);
    const data::BatchLimits limits = evaluator.limits();
    const LoadedModel model = load_for_inference(
        loaded, opened, std::max({limits.tokens, sizes.prompt, sizes.rows}), std::max(limits.segments, sizes.rows),
        std::max({limits.labels, sizes.rows, int64_t{1}}), sizes.shortest, cache_for(sizes.rows, sizes.context));
    const objective::References none;
    const auto objective = objective::make_objective(config, model.ctx->device(), none, nullptr);
    const Evaluator::Result found = evaluator.run(*model.model, *model.ctx, *objective, none, 0, 0);
    if (!found.report) throw Interrupted(found.signal, "stopped before all rows were evaluated");
    const EvalReport& report = *found.report;
    Json results{{"eval_loss", number(report.loss)}, {"perplexity", number(std::exp(report.loss))}};
    for (const auto& [name, value] : report.figures) results[name] = number(value);
    results["eval_tokens"] = report.tokens;
    for (const auto& [name, loss] : report.losses) results[cat("eval_", name, "_loss")] = number(loss);
    if (judges) {
        const std::vector<std::string> answers =
            answers_to(questions, model, sizes.context, request.max_new_tokens, *tokenizer);
        add_scores(results, judge.metric(), judge_answers(questions, answers, judge, request, *tokenizer, sets), sets);
    }
    print_results(results, request.json);
}

}  // namespace unsloth::train
