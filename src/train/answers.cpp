#include "unsloth/train/answers.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "unsloth/core/error.h"
#include "unsloth/core/interrupt.h"
#include "unsloth/core/log.h"
#include "unsloth/core/progress.h"
#include "unsloth/core/text.h"
#include "unsloth/generate/decoder.h"
#include "unsloth/generate/prompt_images.h"
#include "unsloth/session/session.h"
#include "unsloth/train/step.h"

namespace unsloth::train {
namespace {

constexpr std::size_t shown_bytes = 200;  // of an answer in a message

const char* metric_name(config::AnswerMetric metric) {
    return metric == config::AnswerMetric::exact_match ? "exact_match" : "regex";
}

/// What every rank answered, question by question: rank r has answered r, r + ranks, …
std::vector<session::Prompt> all_answers(const std::vector<session::Prompt>& own, std::size_t questions,
                                         int64_t most_tokens, comm::Group& group, at::Device device) {
    const auto ranks = static_cast<std::size_t>(group.size());
    const auto most = static_cast<int64_t>((questions + ranks - 1) / ranks);
    const at::Tensor ids = at::zeros({most, 1 + most_tokens}, at::kInt);  // an answer's length, and it
    for (std::size_t i = 0; i < own.size(); ++i) {
        int32_t* const row = ids.mutable_data_ptr<int32_t>() + static_cast<int64_t>(i) * (1 + most_tokens);
        *row = static_cast<int32_t>(own[i].size());
        std::copy(own[i].begin(), own[i].end(), row + 1);
    }
    const at::Tensor all =
        at::empty({group.size() * most, 1 + most_tokens}, at::TensorOptions(at::kInt).device(device));
    group.all().all_gather(ids.to(device), all, "answers to the evaluation's rows");
    const at::Tensor there = all.cpu();
    group.check();
    std::vector<session::Prompt> answers;
    for (std::size_t i = 0; i < questions; ++i) {
        const int64_t at = static_cast<int64_t>(i % ranks) * most + static_cast<int64_t>(i / ranks);
        const int32_t* const row = there.const_data_ptr<int32_t>() + at * (1 + most_tokens);
        answers.emplace_back(row + 1, row + 1 + *row);
    }
    return answers;
}

}  // namespace

CompletionEvaluator::CompletionEvaluator(const AnswerRules& rules, const data::Dataset& rows,
                                         const session::OpenedModel& opened,
                                         const std::vector<std::pair<std::string, std::string>>& files)
    : rules_(rules),
      dataset_(rows),
      tower_(opened.file->spec.vision),
      tokenizer_(opened.tokenizer()),
      stops_(session::stop_ids(tokenizer_, opened.file->spec)) {
    if (!rules.regex.empty()) pattern_.emplace(rules.regex, rules.regex_option);
    for (const auto& [name, file] : files) sets_.push_back(name);
    for (int64_t i = 0; i < rows.size(); ++i) {
        Question question = question_of(rows.sample(i), sets_.empty() ? 0 : rows.source(i));
        longest_ = std::max(longest_, static_cast<int64_t>(question.prompt.ids.size()));
        most_images_ = std::max<int64_t>(most_images_, std::ssize(question.prompt.images));
        for (const data::Image& image : question.prompt.images)
            most_patches_ = std::max(most_patches_, image.patches());
        questions_.push_back(std::move(question));
    }
    if (const int64_t allowed = opened.file->spec.usable_positions(); context() > allowed)
        throw Error(
            "model.too-many-positions",
            cat("prompts and ", rules.tokens_option, " take ", context(), " positions, the model allows ", allowed),
            cat("Set a lower ", rules.tokens_option, "."));
}

int64_t CompletionEvaluator::rows() const {
    return std::clamp<int64_t>(static_cast<int64_t>(questions_.size()), 1, rules_.most_rows);
}

int64_t CompletionEvaluator::image_room(int64_t pass_tokens) const {
    if (!sees_images()) return 0;
    return tower_->tiles ? generate::room_for_tiled(rows(), most_images_) : pass_tokens;
}

CompletionEvaluator::Question CompletionEvaluator::question_of(const data::Sample& sample, int32_t set) const {
    const auto trained = [&](std::size_t t) { return sample.labels[t] != data::ignore_label; };
    std::size_t end = sample.ids.size();
    while (end > 0 && !trained(end - 1)) --end;
    std::size_t begin = end;
    while (begin > 0 && trained(begin - 1)) --begin;
    std::size_t first = 0;
    for (const data::Segment& segment : sample.segments)
        if (const auto start = static_cast<std::size_t>(segment.begin); start <= begin) first = start;
    if (begin <= first + 1)  // a token that begins all texts is no question
        throw Error("data.no-prompt", cat("row ", sample.row, " has no prompt before its answer"),
                    "Answers can be judged of rows of prompts or messages whose prompt is no target.");
    const auto ids = [&](std::size_t from, std::size_t to) {
        return session::Prompt(sample.ids.begin() + static_cast<std::ptrdiff_t>(from),
                               sample.ids.begin() + static_cast<std::ptrdiff_t>(to));
    };
    Question question{sample.row, set, {}, tokenizer_.decode(ids(begin, end), /*skip_special=*/true), ""};
    data::Sample& prompt = question.prompt;
    prompt.ids = ids(first, begin);
    for (std::size_t i = 0; i < sample.images.size(); ++i) {  // rows with images are one segment
        if (sample.images[i].first >= static_cast<int32_t>(begin)) break;
        prompt.images.push_back(sample.images[i]);
        prompt.sources.push_back(sample.sources[i]);
    }
    if (!prompt.images.empty())
        prompt.axes.assign(sample.axes.begin(),
                           sample.axes.begin() + std::min(std::ssize(sample.axes), 3 * std::ssize(prompt.ids)));
    if (rules_.metric == config::AnswerMetric::regex) return question;
    const std::optional<std::string> compared = part_of(question.expected);
    if (!compared)
        throw Error("data.answer-pattern", cat(rules_.regex_option, " finds nothing in the answer of row ",
                                               question.row, ": ", question.expected.substr(0, shown_bytes)));
    question.compared = *compared;
    return question;
}

/// What of an answer counts; nothing where the expression finds nothing.
std::optional<std::string> CompletionEvaluator::part_of(const std::string& answer) const {
    if (!pattern_) return trimmed(answer);
    const data::AnswerPattern::Found found = pattern_->find_last(answer);
    if (found.gave_up)
        log::warning(rules_.regex_option, " takes too many steps on an answer of ", answer.size(),
                     " bytes, which counts as one without a match: ", answer.substr(0, shown_bytes));
    return found.text ? std::optional(trimmed(*found.text)) : std::nullopt;
}

bool CompletionEvaluator::is_right(const std::string& answer, const Question& question) const {
    const std::optional<std::string> text = part_of(answer);
    return text && (rules_.metric == config::AnswerMetric::regex || *text == question.compared);
}

/// Its images are decoded.
generate::Request CompletionEvaluator::request_of(const Question& question) const {
    generate::Request request{
        .prompt = question.prompt.ids, .max_new_tokens = rules_.max_new_tokens, .stop_ids = stops_};
    if (question.prompt.images.empty()) return request;
    std::vector<data::Sample> seen = {question.prompt};
    dataset_.load_pixels(seen);
    request.images = std::make_shared<const generate::PromptImages>(seen.front(), tower_.value());
    return request;
}

/// This rank's; those that a signal cut off are empty.
std::vector<session::Prompt> CompletionEvaluator::answers(model::Model& model, ops::Context& ctx,
                                                          comm::Group* group) const {
    std::vector<const Question*> asked;
    const std::size_t step = group == nullptr ? 1 : static_cast<std::size_t>(group->size());
    for (std::size_t i = group == nullptr ? 0 : static_cast<std::size_t>(group->rank()); i < questions_.size();
         i += step)
        asked.push_back(&questions_[i]);
    const comm::LongOperation answering(group, "answering the evaluation's rows");
    Progress progress("answering", static_cast<int64_t>(asked.size()));
    generate::Decoder decoder(ctx, model,  // the output is not streamed: prompts go in as fast as may be
                              {.rows = rows(), .context = context(), .prefill_tokens = model.sizes().tokens});
    std::vector<session::Prompt> own(asked.size());
    // Images are decoded when their turn comes: all together could be more than memory holds.
    const std::size_t most = sees_images() ? 2 * static_cast<std::size_t>(rows()) : asked.size();
    std::size_t added = 0, done = 0;
    const auto add = [&] {
        for (; added < asked.size() && added - done < most; ++added) decoder.add(request_of(*asked[added]));
    };
    const auto ended = [&](int64_t number, const generate::Completion& answer) {
        generate::require_finite(answer, "an answer of the evaluation");
        own[static_cast<std::size_t>(number)] = answer.ids;
        progress.add();
        ++done;
    };
    add();
    while (interrupt_requested() == 0 && decoder.step({}, ended)) add();
    return own;
}

CompletionEvaluator::Result CompletionEvaluator::judge(const std::vector<session::Prompt>& answers) const {
    struct Score {
        int64_t right = 0, answers = 0;
        double share() const { return static_cast<double>(right) / static_cast<double>(std::max<int64_t>(answers, 1)); }
    };
    std::vector<Score> of_sets(sets_.size());
    Score all;
    Result result;
    for (std::size_t i = 0; i < questions_.size(); ++i) {
        const Question& question = questions_[i];
        const std::string answer = tokenizer_.decode(answers[i], /*skip_special=*/true);
        const bool right = is_right(answer, question);
        const auto count = [&](Score& score) { ++score.answers, score.right += right ? 1 : 0; };
        count(all);
        nlohmann::ordered_json row{{"row", question.row}};
        if (!sets_.empty()) {
            count(of_sets[static_cast<std::size_t>(question.set)]);
            row["set"] = sets_[static_cast<std::size_t>(question.set)];
        }
        row["prompt"] = tokenizer_.decode(question.prompt.ids, /*skip_special=*/true);
        row["expected"] = question.expected;
        row["answer"] = answer;
        row["correct"] = right;
        result.rows.push_back(std::move(row));
    }
    const std::string metric = metric_name(rules_.metric);
    result.figures = {{metric, all.share()}};
    for (std::size_t i = 0; i < sets_.size(); ++i)
        result.figures.emplace_back(cat(sets_[i], "_", metric), of_sets[i].share());
    return result;
}

std::optional<CompletionEvaluator::Result> CompletionEvaluator::run(model::Model& model, ops::Context& ctx,
                                                                    comm::Group* group, int& signal) const {
    std::vector<session::Prompt> given = answers(model, ctx, group);
    signal = agree_on_signal(group, ctx.device(), "answers to the evaluation's rows");
    if (signal != 0) return std::nullopt;
    if (group != nullptr) given = all_answers(given, questions_.size(), rules_.max_new_tokens, *group, ctx.device());
    return judge(given);
}

}  // namespace unsloth::train
