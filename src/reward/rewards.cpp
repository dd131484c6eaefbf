#include "unsloth/reward/rewards.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <set>

#include "reward/answer.h"
#include "reward/built_in.h"
#include "reward/hosted.h"
#include "reward/options.h"
#include "reward/server.h"
#include "unsloth/core/error.h"
#include "unsloth/core/log.h"
#include "unsloth/core/utf8.h"

namespace unsloth::reward {
namespace {

using nlohmann::json;

template <class Values>
auto place(Values& values, std::size_t i) {
    return values.begin() + static_cast<std::ptrdiff_t>(i);
}

std::string joined(const std::vector<std::string>& words) {
    std::string all;
    for (const std::string& word : words) all += cat(all.empty() ? "" : ", ", word);
    return all.empty() ? "none" : all;
}

std::string shortened(const std::string& text) {
    constexpr std::size_t most = 500;
    return text.size() <= most ? text : cat(repair_utf8(text.substr(0, most)), "… (", text.size(), " bytes)");
}

std::string shown_prompt(const json& prompt) {
    return prompt.is_string() ? prompt.get<std::string>() : prompt.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// Failure for what the function did; runtime Error for a helper that broke the protocol.
Answer read_outcome(const Outcome& outcome, const std::string& name, std::size_t rows) {
    switch (outcome.kind) {
        case Outcome::Kind::scores:
            return read_answer(outcome.message, rows);
        case Outcome::Kind::lost:
            throw Failure(outcome.words);
        case Outcome::Kind::broken:
            throw Error("reward.bad-message", cat("reward '", name, "': ", outcome.words),
                        "Only messages may be written where the helper writes messages.");
        case Outcome::Kind::raised:
            break;
    }
    const json& error = outcome.message;
    const auto text = [&](const char* key) {
        return error.contains(key) && error[key].is_string() ? error[key].get<std::string>() : std::string();
    };
    const bool has_row = error.contains("row") && error["row"].is_number_unsigned() && error["row"] < rows;
    throw Failure(cat(text("kind"), text("kind").empty() ? "" : ": ", text("message")),
                  has_row ? std::optional(error["row"].get<std::size_t>()) : std::nullopt, text("traceback"));
}

}  // namespace

struct Rewards::Parts {
    Settings settings;
    std::vector<Entry> entries;
    std::vector<std::string> names;
    std::vector<double> weights;
    std::vector<std::unique_ptr<BuiltIn>> built_in;  ///< null for other kinds
    std::unique_ptr<Hosted> hosted;
    int64_t last_step = -1;
    int steps_unscored = 0;

    /// Metrics as sums over rows, and the number of rows.
    using Sums = std::map<std::string, std::pair<double, double>>;

    std::map<std::size_t, std::vector<std::string>> columns() const;
    void check_columns() const;
    void score_all(const Batch& batch, Scored& to);
    void add(const Answer& answer, std::size_t function, std::size_t first, Scored& to, Sums& metrics) const;
    void handle(const Failure& failure, std::size_t function, std::size_t first, std::size_t last, const Batch& batch,
                Scored& to) const;
    void count_unscored(const Batch& batch, Scored& to);
};

Rewards::Rewards(const json& list, Settings settings) : parts_(std::make_unique<Parts>()) {
    Parts& parts = *parts_;
    parts.settings = std::move(settings);
    parts.entries = read_entries(list, parts.settings.folder);
    for (const Entry& entry : parts.entries) {
        parts.names.push_back(entry.name);
        parts.weights.push_back(entry.weight);
        const bool own = entry.kind == Entry::Kind::built_in;
        parts.built_in.push_back(own ? make_built_in(entry, parts.settings.max_completion_length) : nullptr);
    }
    parts.hosted = std::make_unique<Hosted>(parts.entries, parts.settings);
    parts.check_columns();
}

Rewards::~Rewards() = default;

const std::vector<std::string>& Rewards::names() const {
    return parts_->names;
}

const std::vector<double>& Rewards::weights() const {
    return parts_->weights;
}

std::vector<std::string> Rewards::required_columns() const {
    std::set<std::string> all;
    for (const auto& [function, columns] : parts_->columns()) all.insert(columns.begin(), columns.end());
    return {all.begin(), all.end()};
}

std::chrono::milliseconds Rewards::longest_call(std::size_t rows) const {
    const Limits& limits = parts_->settings.limits;
    Limits::Time hosted{0}, servers{0};
    for (const Entry& entry : parts_->entries) {
        const Limits::Time time = timeout_of(entry, limits, rows);
        if (entry.kind == Entry::Kind::http) servers = std::max(servers, time);
        if (entry.kind == Entry::Kind::python || entry.kind == Entry::Kind::command)
            hosted += 2 * (time + limits.terminate) + limits.start;
    }
    return std::max(servers, hosted);
}

/// That a function needs, as far as is known.
std::map<std::size_t, std::vector<std::string>> Rewards::Parts::columns() const {
    auto all = hosted->required();
    for (std::size_t i = 0; i < entries.size(); ++i)
        if (built_in[i]) all[i] = built_in[i]->columns();
    return all;
}

void Rewards::Parts::check_columns() const {
    if (!settings.columns) return;
    for (const auto& [function, needed] : columns()) {
        for (const std::string& column : needed) {
            if (std::ranges::find(*settings.columns, column) != settings.columns->end()) continue;
            throw Error(
                "reward.missing-column",
                cat("reward '", names[function], "' needs the column '", column, "', which the data does not have"),
                cat("Columns of the data: ", joined(*settings.columns), "."));
        }
    }
}

void Rewards::require_columns(std::vector<std::string> columns) {
    parts_->settings.columns = std::move(columns);
    parts_->check_columns();
}

void Rewards::start() {
    parts_->hosted->start();
    parts_->check_columns();
}

void Rewards::Parts::add(const Answer& answer, std::size_t function, std::size_t first, Scored& to,
                         Sums& metrics) const {
    std::ranges::copy(answer.scores, place(to.scores[function], first));
    const auto rows = static_cast<double>(answer.scores.size());
    for (const auto& [name, value] : answer.metrics) {
        metrics[name].first += value * rows;
        metrics[name].second += rows;
    }
    for (const auto& [name, values] : answer.extra) {
        auto column = std::ranges::find(to.extra, name, &Column::first);
        if (column == to.extra.end())
            column = to.extra.insert(to.extra.end(), {name, std::vector<json>(to.dropped.size())});
        std::ranges::copy(values, place(column->second, first));
    }
}

/// What on_error says of the rows [first, last) of a function that failed.
void Rewards::Parts::handle(const Failure& failure, std::size_t function, std::size_t first, std::size_t last,
                            const Batch& batch, Scored& to) const {
    const Entry& entry = entries[function];
    const std::size_t row = first + failure.row().value_or(0);
    const std::string rank = settings.ranks > 1 ? cat(" on rank ", settings.rank) : "";
    const std::string known_row = failure.row() ? cat(", row ", row) : "";
    const std::string text =
        cat("reward '", entry.name, "' failed", rank, " at step ", batch.trainer_state.global_step + 1, known_row, ": ",
            failure.what(), "\n", failure.traceback(),
            failure.traceback().empty() || failure.traceback().ends_with('\n') ? "" : "\n",
            failure.row() ? "Prompt: " : "The first row's prompt: ", shortened(shown_prompt(batch.prompts[row])),
            "\nCompletion: ", shortened(batch.completions[row]));
    if (entry.on_error == OnError::stop)
        throw Error("reward.failed", text,
                    "on_error \"none\" leaves such rows unscored, \"drop\" removes their groups.");
    log::warning(text);
    // A call that failed has no scores of its other rows either.
    std::fill(place(to.scores[function], first), place(to.scores[function], last), std::nullopt);
    if (entry.on_error == OnError::drop) std::fill(place(to.dropped, first), place(to.dropped, last), true);
}

void Rewards::Parts::count_unscored(const Batch& batch, Scored& to) {
    const std::size_t rows = batch.completions.size();
    for (std::size_t i = 0; i < rows; ++i) {
        if (to.dropped[i])
            for (Scores& scores : to.scores) scores[i].reset();
        to.unscored_rows += std::ranges::none_of(to.scores, [&](const Scores& one) { return one[i].has_value(); });
    }
    if (batch.trainer_state.global_step != last_step) {
        steps_unscored = to.unscored_rows == static_cast<int>(rows) ? steps_unscored + 1 : 0;
        last_step = batch.trainer_state.global_step;
    }
    if (steps_unscored >= settings.limits.unscored_steps)
        throw Error("reward.nothing-scored", cat("no reward function scored any row in ", steps_unscored, " steps"),
                    "Every function returned null for every row, so that there is nothing to learn.");
}

void Rewards::Parts::score_all(const Batch& batch, Scored& to) {
    const std::size_t rows = batch.completions.size();
    std::atomic<bool> over = false;  // servers need not be waited for once something else stops the run
    const std::function<bool()> give_up = [&] { return over || (settings.give_up && settings.give_up()); };
    std::map<std::size_t, std::future<Answer>> servers;
    struct AtEnd {
        std::atomic<bool>& over;
        ~AtEnd() { over = true; }
    } at_end{over};  // before the futures, whose destructors wait
    for (std::size_t k = 0; k < entries.size(); ++k)
        if (entries[k].kind == Entry::Kind::http)
            servers[k] = std::async(std::launch::async, ask_server, std::cref(entries[k]), std::cref(batch),
                                    timeout_of(entries[k], settings.limits, rows), std::cref(give_up));
    const std::vector<HostedPart> hosted_parts = hosted->score(batch);

    Sums metrics;
    const auto take = [&](std::size_t function, std::size_t first, std::size_t last, const auto& answer) {
        try {
            add(answer(), function, first, to, metrics);
        } catch (const Failure& failure) {
            handle(failure, function, first, last, batch, to);
        }
    };
    for (std::size_t k = 0; k < entries.size(); ++k)
        if (built_in[k]) to.scores[k] = built_in[k]->score(batch);
    for (const auto& [function, first, last, outcome] : hosted_parts) {
        const std::size_t count = last - first;
        take(function, first, last, [&, &o = outcome, &f = function] { return read_outcome(o, names[f], count); });
    }
    for (auto& [function, answer] : servers) take(function, 0, rows, [&future = answer] { return future.get(); });
    for (const auto& [name, sum] : metrics) to.metrics.emplace_back(name, sum.first / sum.second);
    if (const auto memory = hosted->resident_gib()) to.metrics.emplace_back("reward/helper_rss_gib", memory);
}

Scored Rewards::score(const Batch& batch) {
    start();
    const std::size_t rows = batch.completions.size();
    UNSLOTH_CHECK(batch.prompts.size() == rows && batch.completion_ids.size() == rows, batch.prompts.size(),
                  " prompts, ", batch.completion_ids.size(), " ids, ", rows, " completions");
    for (const Column& column : batch.columns)
        UNSLOTH_CHECK(column.second.size() == rows, column.first, " has ", column.second.size(), " of ", rows);
    const auto began = std::chrono::steady_clock::now();
    Scored result;
    result.scores.assign(parts_->entries.size(), Scores(rows));
    result.dropped.assign(rows, false);
    if (rows == 0) return result;
    parts_->score_all(batch, result);
    parts_->count_unscored(batch, result);
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    return result;
}

}  // namespace unsloth::reward
