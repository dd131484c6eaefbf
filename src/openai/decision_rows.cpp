// Rows that decisions are trained on, and the prompt of a question.
#include <cmath>
#include <set>

#include "openai/decision_fields.h"
#include "openai/field_table.h"
#include "unsloth/core/json_reader.h"
#include "unsloth/openai/decision.h"
#include "unsloth/openai/error.h"
#include "unsloth/openai/harmony.h"

namespace unsloth::openai {
namespace {

/// The number of the option that an answer names.
std::size_t option_of(const DecisionQuestion& question, const Json& answer) {
    const auto& options = question.options;
    if (question.type == DecisionQuestion::Type::score && answer.is_number_integer()) {
        if (answer.get<int64_t>() >= 0 && answer.get<uint64_t>() < options.size()) return answer.get<std::size_t>();
        refuse_range("answer", cat("a level's number, from 0 to ", options.size() - 1), answer);
    }
    for (std::size_t i = 0; i < options.size(); ++i)
        if (options[i].is_boolean ? answer == Json(options[i].text == "true") : answer == Json(options[i].text))
            return i;
    std::string known;
    for (const DecisionOption& option : options)
        known += cat(known.empty() ? "" : ", ", option.is_boolean ? option.text : Json(option.text).dump());
    throw invalid(cat("Invalid value for 'answer': ", shown(answer), " is no option of the question (", known, ")."),
                  "answer");
}

std::vector<float> shares_of(const DecisionQuestion& question, const Json& value) {
    constexpr double tolerance = 1e-3;
    if (!value.is_array()) refuse_type("probabilities", "a list of numbers", value);
    if (value.size() != question.options.size())
        refuse_range("probabilities", cat("as many numbers as the question has options, ", question.options.size()),
                     value);
    double sum = 0;
    for (const Json& one : value) {
        if (!one.is_number()) refuse_type("probabilities", "a list of numbers", value);
        if (!(one.get<double>() >= 0)) refuse_range("probabilities", "numbers from 0 to 1", value);
        sum += one.get<double>();
    }
    if (!(std::abs(sum - 1) <= tolerance)) refuse_range("probabilities", "numbers with the sum 1", value);
    std::vector<float> shares;
    for (const Json& one : value) shares.push_back(static_cast<float>(one.get<double>() / sum));
    return shares;
}

}  // namespace

DecisionExample parse_decision_example(const Json& row) {
    const auto column = [&](const char* name) -> const Json* {
        const auto found = row.find(name);
        return found == row.end() || found->is_null() ? nullptr : &*found;
    };
    const auto needed = [&](const char* name) -> const Json& {
        if (const Json* const value = column(name)) return *value;
        throw invalid(cat("Missing required parameter: '", name, "'."), name);
    };
    DecisionExample example;
    example.messages = std::make_shared<Json>(decision_input(needed("input")));
    example.question = decision_question(needed("question"));
    const Json *const answer = column("answer"), *const probabilities = column("probabilities");
    if ((answer == nullptr) == (probabilities == nullptr))
        throw invalid("A row of a decision has either 'answer' or 'probabilities'.", "answer");
    if (probabilities != nullptr) {
        example.shares = shares_of(example.question, *probabilities);
    } else {
        example.shares.resize(example.question.options.size());
        example.shares[option_of(example.question, *answer)] = 1;
    }
    return example;
}

std::optional<std::vector<OptionLabel>> option_labels(const tokenizer::Tokenizer& tokenizer, std::size_t count) {
    constexpr int letters = 26;
    std::vector<OptionLabel> labels;
    std::set<int32_t> taken;
    const auto add = [&](const std::string& name) {
        std::set<int32_t> ids;
        for (const std::string& text : {name, " " + name})
            if (const auto encoded = tokenizer.encode(text, false); encoded.size() == 1) ids.insert(encoded[0]);
        if (const auto id = tokenizer.token_id(name)) ids.insert(*id);
        std::erase_if(ids, [&](int32_t id) { return !taken.insert(id).second; });
        if (!ids.empty()) labels.push_back({name, {ids.begin(), ids.end()}});
    };
    const auto letter = [](int i) { return static_cast<char>('A' + i); };
    for (int i = 0; i < letters && count <= letters; ++i) add(std::string(1, letter(i)));
    for (int i = 0; i < letters * letters && count > letters && labels.size() < count; ++i)
        add({letter(i / letters), letter(i % letters)});
    if (labels.size() < count) return std::nullopt;
    labels.resize(count);
    return labels;
}

DecisionPrompt decision_prompt(const tokenizer::Tokenizer& tokenizer, const tokenizer::ChatTemplate& chat,
                               const Json& messages, const DecisionQuestion& question, const std::string& where) {
    auto labels = option_labels(tokenizer, question.options.size());
    if (!labels)
        throw unsupported(
            cat("'", where, "': the model's tokenizer has no ", question.options.size(), " labels of one token."),
            where);
    std::vector<std::string> names;
    for (const OptionLabel& label : *labels) names.push_back(label.name);
    tokenizer::Rendered rendered = chat.render(decision_row(messages, question, names), tokenizer::TrainedTurns::none);
    tokenizer::require_whole(chat, rendered);
    rendered.text += lead_to_final(rendered.text);
    return {tokenizer::encode_rendered(tokenizer, rendered).ids, std::move(*labels)};
}

}  // namespace unsloth::openai
