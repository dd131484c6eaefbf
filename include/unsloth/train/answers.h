// Evaluation by answers: rows as questions, what the model answers to them, and which of these answers are right.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unsloth/comm/group.h"
#include "unsloth/config/config.h"
#include "unsloth/data/answer_pattern.h"
#include "unsloth/data/dataset.h"
#include "unsloth/model/model.h"
#include "unsloth/objective/objective.h"
#include "unsloth/placement/recipe.h"
#include "unsloth/session/generation.h"
#include "unsloth/session/session.h"

namespace unsloth::train {

/// At a time in a run's evaluations. More would be faster, and take from training what it keeps of layers.
constexpr int64_t answers_at_a_time = 16;

/// How answers are asked for and judged.
struct AnswerRules {
    config::AnswerMetric metric = config::AnswerMetric::exact_match;
    std::string regex;  ///< what of an answer counts; may be empty
    int64_t max_new_tokens = 0;
    int64_t most_rows = 0;                    ///< answers at a time
    std::string regex_option, tokens_option;  ///< as messages call them
};

class CompletionEvaluator {
  public:
    /// `files`: data.eval_files, of which source i of the rows is the i-th; empty: the rows are one set. Input Error
    /// where a row asks nothing, or has no answer to compare with; usage Error where a question and its answer take
    /// more positions than the model has, and for a regular expression that is none.
    CompletionEvaluator(const AnswerRules& rules, const data::Dataset& rows, const session::OpenedModel& opened,
                        const std::vector<std::pair<std::string, std::string>>& files);

    bool sees_images() const { return most_images_ > 0; }                 ///< some questions have images
    int64_t image_room(int64_t pass_tokens) const;                        ///< ActivationSizes::image_tokens
    int64_t longest() const { return longest_; }                          ///< question, in tokens
    int64_t context() const { return longest_ + rules_.max_new_tokens; }  ///< with its answer
    int64_t rows() const;                                                 ///< that are answered at a time
    placement::Answering needs() const { return {rows(), longest(), context(), most_images_, most_patches_}; }

    struct Result {
        objective::Figures figures;                ///< "exact_match" or "regex", and "NAME_exact_match" of each set
        std::vector<nlohmann::ordered_json> rows;  ///< {"row", "set"?, "prompt", "expected", "answer", "correct"}
    };
    /// Greedy decoding. Called by all ranks of `group` (nullptr: alone), of which each answers its part; the result is
    /// the same on all. The model's plan has a cache for rows() sequences of context() tokens. Nothing when a signal,
    /// then in `signal`, asked to stop before all were answered.
    std::optional<Result> run(model::Model& model, ops::Context& ctx, comm::Group* group, int& signal) const;

  private:
    /// A row's last trained part is the answer; the part before it in its segment is the prompt.
    struct Question {
        int64_t row = 0;
        int32_t set = 0;      ///< number of the evaluation set
        data::Sample prompt;  ///< its ids, and images without pixels
        std::string expected;
        std::string compared;  ///< what of it answers are compared with
    };
    generate::Request request_of(const Question& question) const;
    Question question_of(const data::Sample& sample, int32_t set) const;
    std::optional<std::string> part_of(const std::string& answer) const;
    bool is_right(const std::string& answer, const Question& question) const;
    std::vector<session::Prompt> answers(model::Model& model, ops::Context& ctx, comm::Group* group) const;
    Result judge(const std::vector<session::Prompt>& answers) const;

    AnswerRules rules_;
    data::Dataset dataset_;
    std::optional<spec::VisionSpec> tower_;
    tokenizer::Tokenizer tokenizer_;
    std::optional<data::AnswerPattern> pattern_;
    std::vector<std::string> sets_;  ///< empty: one without a name
    std::vector<int32_t> stops_;
    std::vector<Question> questions_;
    int64_t longest_ = 0;
    int64_t most_images_ = 0, most_patches_ = 0;  ///< of a question, and of its largest image
};

}  // namespace unsloth::train
