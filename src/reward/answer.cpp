#include "reward/answer.h"

#include <cmath>

#include "unsloth/core/error.h"
#include "unsloth/core/json_reader.h"

namespace unsloth::reward {

using nlohmann::json;

Scores read_rewards(const json& rewards, std::size_t rows) {
    if (!rewards.is_array()) throw Failure(cat("returned ", shown(rewards), ", not a list of ", rows, " rewards"));
    if (rewards.size() != rows) throw Failure(cat("returned ", rewards.size(), " for ", rows, " rows"));
    Scores scores;
    for (const json& value : rewards) {
        const bool number = value.is_number() && std::isfinite(value.get<double>());
        if (!number && !value.is_boolean() && !value.is_null())
            throw Failure(cat("returned ", shown(value), " for row ", scores.size(), ", which is no finite number"),
                          scores.size());
        if (value.is_null())
            scores.emplace_back();
        else
            scores.emplace_back(number ? value.get<double>() : value.get<bool>() ? 1.0 : 0.0);
    }
    return scores;
}

Answer read_answer(const json& message, std::size_t rows) {
    const auto found = message.find("rewards");
    if (found == message.end()) throw Failure("returned no 'rewards'");
    Answer answer{read_rewards(*found, rows), {}, {}};
    if (const auto metrics = message.find("metrics"); metrics != message.end() && metrics->is_object()) {
        for (const auto& [name, value] : metrics->items()) {
            if (!value.is_number()) throw Failure(cat("the metric '", name, "' is ", shown(value), ", no number"));
            answer.metrics.emplace_back(name, value.get<double>());
        }
    }
    if (const auto extra = message.find("extra"); extra != message.end() && extra->is_object()) {
        for (const auto& [name, values] : extra->items()) {
            if (!values.is_array() || values.size() != rows)
                throw Failure(cat("the extra column '", name, "' is ", shown(values), ", not a list of ", rows));
            answer.extra.emplace_back(name, values.get<std::vector<json>>());
        }
    }
    return answer;
}

}  // namespace unsloth::reward
