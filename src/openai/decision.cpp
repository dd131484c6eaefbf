#include "unsloth/openai/decision.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "openai/decision_fields.h"
#include "openai/field_table.h"
#include "openai/messages.h"

namespace unsloth::openai {
namespace {

using Question = DecisionQuestion;

constexpr std::size_t most_questions = 400, most_decision_choices = most_decision_options, most_levels = 10;

void read_input(DecisionRequest& to, const Json& value, const std::string& name, const ParseOptions& options) {
    to.messages = std::make_shared<Json>(input_messages(value, name, options));
}

void read_type(Question& to, const Json& value, const std::string& name, const ParseOptions&) {
    if (value == "predicate")
        to.type = Question::Type::predicate;
    else if (value == "choice")
        to.type = Question::Type::choice;
    else if (value == "score")
        to.type = Question::Type::score;
    else
        refuse_range(name, "predicate, choice or score", value);
}

void read_instructions(Question& to, const Json& value, const std::string& name, const ParseOptions& options) {
    to.instructions = joined_text(value, name, options);
    if (to.instructions.empty()) refuse_range(name, "a text that is not empty", value);
}

void read_value(DecisionOption& to, const Json& value, const std::string& name, const ParseOptions&) {
    to.is_boolean = value.is_boolean();
    if (!value.is_string() && !value.is_boolean()) refuse_type(name, "a string or a boolean", value);
    to.text = to.is_boolean ? value.dump() : value.get<std::string>();
}

const Field<DecisionOption> choice_option_fields[] = {
    {"value",
     Other<DecisionOption>{read_value, [] { return any_schema({{{"type", "string"}}, {{"type", "boolean"}}}); }},
     /*required=*/true},
    {"description", Text<DecisionOption>{&DecisionOption::description}},
};
const Field<DecisionOption> level_fields[] = {
    {"label", Text<DecisionOption>{&DecisionOption::text}, /*required=*/true},
    {"description", Text<DecisionOption>{&DecisionOption::description}},
};

void read_options(Question& to, const Json& value, const std::string& name, std::size_t most,
                  std::span<const Field<DecisionOption>> fields, const ParseOptions& options) {
    if (!value.is_array()) refuse_type(name, "a list", value);
    if (value.size() < 2 || value.size() > most) refuse_range(name, cat("from 2 to ", most, " entries"), value);
    std::set<std::pair<std::string, bool>> known;  // "true" is not true
    for (std::size_t i = 0; i < value.size(); ++i) {
        const std::string where = cat(name, "[", i, "]");
        if (!value[i].is_object()) refuse_type(where, "an object", value[i]);
        DecisionOption& option = to.options.emplace_back();
        read_fields<DecisionOption>(value[i], {fields}, options, option, where + ".");
        if (!known.emplace(option.text, option.is_boolean).second)
            throw invalid(cat("'", where, "' is there twice."), where);
    }
}

void read_choices(Question& to, const Json& value, const std::string& name, const ParseOptions& options) {
    read_options(to, value, name, most_decision_choices, choice_option_fields, options);
}
void read_levels(Question& to, const Json& value, const std::string& name, const ParseOptions& options) {
    read_options(to, value, name, most_levels, level_fields, options);
}

template <std::size_t most, const auto& fields>
Json options_schema() {
    Json schema = list_schema(object_schema<DecisionOption>({fields}), most);
    schema["minItems"] = 2;
    return schema;
}
const Field<Question> question_fields[] = {
    {"type", Other<Question>{read_type, [] { return Json{{"enum", Json::array({"predicate", "choice", "score"})}}; }},
     /*required=*/true},
    {"instructions", Other<Question>{read_instructions, input_schema}, /*required=*/true},
    {"name", Text<Question>{&Question::name}},
};
const Field<Question> choice_question_fields[] = {
    {"choices", Other<Question>{read_choices, options_schema<most_decision_choices, choice_option_fields>},
     /*required=*/true}};
const Field<Question> score_question_fields[] = {
    {"levels", Other<Question>{read_levels, options_schema<most_levels, level_fields>}, /*required=*/true}};

void read_question(Question& to, const Json& value, const std::string& where, const ParseOptions& options) {
    if (!value.is_object()) refuse_type(where, "an object", value);
    const Json type = value.value("type", Json());
    std::span<const Field<Question>> own;
    if (type == "choice") own = choice_question_fields;
    if (type == "score") own = score_question_fields;
    read_fields<Question>(value, {question_fields, own}, options, to, where + ".");
    if (to.type == Question::Type::predicate) to.options = {{"true", {}, true}, {"false", {}, true}};
}

void read_questions(DecisionRequest& to, const Json& value, const std::string& name, const ParseOptions& options) {
    if (!value.is_array()) refuse_type(name, "a list of questions", value);
    if (value.empty() || value.size() > most_questions)
        refuse_range(name, cat("from 1 to ", most_questions, " questions"), value);
    for (std::size_t i = 0; i < value.size(); ++i) {
        read_question(to.questions.emplace_back(), value[i], cat(name, "[", i, "]"), options);
    }
}

Json questions_schema() {
    const Json kinds = Json::array({object_schema<Question>({question_fields}),
                                    object_schema<Question>({question_fields, choice_question_fields}),
                                    object_schema<Question>({question_fields, score_question_fields})});
    Json schema = list_schema(any_schema(kinds), most_questions);
    schema["minItems"] = 1;
    return schema;
}

const Field<DecisionRequest> decision_fields[] = {
    {"model", Text<DecisionRequest>{&DecisionRequest::model}},
    {"input", Other<DecisionRequest>{read_input, input_schema}, /*required=*/true},
    {"questions", Other<DecisionRequest>{read_questions, questions_schema}, /*required=*/true},
    {"prompt_cache_key", NoEffect{}},
    {"prompt_cache_options", NoEffect{}},
    {"safety_identifier", NoEffect{}},
};

Json answer_of(const Question& question, const std::vector<double>& weights) {
    double mass = 0;
    for (const double weight : weights) mass += weight;
    const auto share = [&](std::size_t i) {
        return mass > 0 ? weights[i] / mass : 1.0 / static_cast<double>(weights.size());
    };
    const auto top = static_cast<std::size_t>(std::ranges::max_element(weights) - weights.begin());
    const Json name = question.name.empty() ? Json(nullptr) : Json(question.name);
    const double confidence = share(top) * std::min(mass, 1.0);
    if (question.type == Question::Type::predicate)
        return {{"type", "predicate"}, {"name", name}, {"probability", share(0)}};
    Json probabilities = Json::array();
    double score = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
        const DecisionOption& option = question.options[i];
        score += static_cast<double>(i) * share(i);
        if (question.type == Question::Type::score) {
            probabilities.push_back({{"value", i}, {"label", option.text}, {"probability", share(i)}});
            continue;
        }
        probabilities.push_back({{"value", option.is_boolean ? Json(option.text == "true") : Json(option.text)},
                                 {"probability", share(i)}});
    }
    if (question.type == Question::Type::score)
        return {{"type", "score"},
                {"name", name},
                {"score", score},
                {"probabilities", std::move(probabilities)},
                {"confidence", confidence}};
    const Json chosen = probabilities[top]["value"];
    return {{"type", "choice"},
            {"name", name},
            {"choice", chosen},
            {"probabilities", std::move(probabilities)},
            {"confidence", confidence}};
}

}  // namespace

Json decision_schema() {
    return object_schema<DecisionRequest>({decision_fields});
}

Json decision_input(const Json& value) {
    return input_messages(value, "input");
}

DecisionQuestion decision_question(const Json& value) {
    DecisionQuestion question;
    read_question(question, value, "question", {});
    return question;
}

DecisionRequest parse_decision(std::string_view body, const ParseOptions& options) {
    DecisionRequest request;
    read_fields<DecisionRequest>(parse_body(body), {decision_fields}, options, request);
    return request;
}

Json decision_row(const Json& messages, const Question& question, const std::vector<std::string>& labels) {
    std::string text;
    if (question.type == Question::Type::predicate) text = "Is this statement about the text above true?\n";
    text += question.instructions + "\n";
    for (std::size_t i = 0; i < question.options.size(); ++i) {
        const DecisionOption& option = question.options[i];
        text += cat(labels[i], ". ", option.text, option.description.empty() ? "" : ": ", option.description, "\n");
    }
    text += "Answer with the label of one option alone.";
    Json asked = messages;
    // Templates want users and assistants in turn.
    if (asked.back()["role"] == "user") {
        asked.back()["content"] = cat(asked.back()["content"].get<std::string>(), "\n\n", text);
    } else {
        asked.push_back({{"role", "user"}, {"content", text}});
    }
    return {{"messages", std::move(asked)},
            {"add_generation_prompt", true},
            {"chat_template_kwargs", {{"enable_thinking", false}}}};
}

void scale_weights(std::vector<double>& weights, double temperature) {
    const double highest = *std::ranges::max_element(weights);
    if (temperature == 1 || !(highest > 0)) return;
    double mass = 0, sum = 0;
    for (double& weight : weights) {
        mass += weight;
        weight = std::exp(std::log(weight / highest) / temperature);
        sum += weight;
    }
    for (double& weight : weights) weight *= mass / sum;
}

std::string decision_text(const DecisionRequest& request, const std::string& model,
                          const std::vector<std::vector<double>>& weights, const DecisionUsage& usage) {
    Json answers = Json::array();
    for (std::size_t i = 0; i < request.questions.size(); ++i)
        answers.push_back(answer_of(request.questions[i], weights[i]));
    const Json answer = {
        {"answers", std::move(answers)},
        {"model", model},
        {"usage",
         {{"input_tokens", usage.input_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
          {"output_tokens", usage.output_tokens},
          {"output_tokens_details", {{"reasoning_tokens", 0}}},
          {"total_tokens", usage.input_tokens + usage.output_tokens}}}};
    return answer.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace unsloth::openai
