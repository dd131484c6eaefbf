// What a helper or a server says of a number of rows, checked.
#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "unsloth/reward/rewards.h"

namespace unsloth::reward {

/// A reward function failed: what on_error is about.
class Failure : public std::runtime_error {
  public:
    explicit Failure(const std::string& what, std::optional<std::size_t> row = {}, std::string traceback = {})
        : std::runtime_error(what), row_(row), traceback_(std::move(traceback)) {}
    std::optional<std::size_t> row() const { return row_; }
    const std::string& traceback() const { return traceback_; }

  private:
    std::optional<std::size_t> row_;
    std::string traceback_;
};

struct Answer {
    Scores scores;
    std::vector<std::pair<std::string, double>> metrics;
    std::vector<Column> extra;
};

/// The list of rewards of `rows` rows: numbers, true and false, null. Failure that says what is wrong.
Scores read_rewards(const nlohmann::json& rewards, std::size_t rows);
/// An object with rewards, and perhaps metrics and extra. Failure.
Answer read_answer(const nlohmann::json& message, std::size_t rows);

}  // namespace unsloth::reward
