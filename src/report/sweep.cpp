#include "unsloth/report/sweep.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "report/charts.h"
#include "unsloth/core/error.h"
#include "unsloth/core/files.h"
#include "unsloth/core/utf8.h"

namespace unsloth::report {
namespace {

using Json = nlohmann::ordered_json;

std::string digits_of(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4f", value);
    return text;
}

std::string key_of(const std::string& option) {
    return option.substr(option.find('.') + 1);
}

/// What became of a trial.
std::string fate_of(const Sweep& sweep, const SweepTrial& trial) {
    if (sweep.best == trial.number) return "best";
    if (trial.scores.empty()) return "waiting";
    if (sweep.finds_rate) return trial.diverged() ? "diverged" : "";
    const std::string at = cat(" at step ", trial.scores.back().step);
    if (trial.diverged()) return "diverged" + at;
    const auto& kept = trial.scores.back().kept;
    return !kept ? "waiting" : *kept ? "kept" : "dropped" + at;
}

using Row = std::vector<std::string>;

/// The first row has the columns' names.
std::vector<Row> rows_of(const Sweep& sweep) {
    std::vector<Row> rows(1, {"trial"});
    if (!sweep.trials.empty())
        for (const auto& [option, value] : sweep.trials.front().options) rows[0].push_back(key_of(option));
    for (std::size_t rung = 0; rung < sweep.shares.size(); ++rung)
        rows[0].push_back(sweep.total_steps > 0 ? cat("step ", sweep.step_of(rung))
                                                : cat(std::lround(1 / sweep.shares[rung]), "th of the steps"));
    rows[0].push_back("");
    for (const SweepTrial& trial : sweep.trials) {
        Row row = {std::to_string(trial.number)};
        for (const auto& [option, value] : trial.options) row.push_back(value);
        for (std::size_t rung = 0; rung < sweep.shares.size(); ++rung) {
            std::string cell;
            for (const SweepScore& score : trial.scores)
                if (score.step == sweep.step_of(rung)) cell = std::isfinite(score.value) ? digits_of(score.value) : "-";
            row.push_back(cell);
        }
        row.push_back(fate_of(sweep, trial));
        rows.push_back(row);
    }
    return rows;
}

Json json_of(const SweepTrial& trial, const std::string& fate) {
    Json options = Json::object(), scores = Json::array();
    for (const auto& [name, value] : trial.options) options[name] = value;
    for (const SweepScore& score : trial.scores)
        scores.push_back({{"step", score.step},
                          {"value", std::isfinite(score.value) ? Json(score.value) : Json()},
                          {"kept", score.kept ? Json(*score.kept) : Json()},
                          {"seconds", score.seconds}});
    return {{"trial", trial.number}, {"options", options}, {"scores", scores}, {"state", fate}};
}

SweepTrial trial_of(const Json& json) {
    SweepTrial trial{.number = json.at("trial").get<int>(), .options = {}, .scores = {}};
    for (const auto& [name, value] : json.at("options").items()) trial.options.emplace_back(name, value);
    for (const Json& one : json.at("scores")) {
        SweepScore score{one.at("step").get<int64_t>(),
                         std::numeric_limits<double>::quiet_NaN(),
                         one.at("seconds").get<double>(),
                         {}};
        if (one.at("value").is_number()) score.value = one["value"].get<double>();
        if (one.at("kept").is_boolean()) score.kept = one["kept"].get<bool>();
        trial.scores.push_back(score);
    }
    return trial;
}

}  // namespace

bool SweepTrial::diverged() const {
    return !scores.empty() && !std::isfinite(scores.back().value);
}

bool SweepTrial::alive() const {
    return std::all_of(scores.begin(), scores.end(), [](const SweepScore& score) { return score.kept.value_or(true); });
}

std::string SweepTrial::words() const {
    std::string text;
    for (const auto& [name, value] : options) text += cat(text.empty() ? "" : ", ", key_of(name), " ", value);
    return text;
}

double Sweep::seconds() const {
    double sum = 0;
    for (const SweepTrial& trial : trials)
        for (const SweepScore& score : trial.scores) sum += score.seconds;
    return sum;
}

const SweepTrial* Sweep::winner() const {
    return best ? &trials.at(static_cast<std::size_t>(*best) - 1) : nullptr;
}

int64_t Sweep::step_of(std::size_t rung) const {
    return static_cast<int64_t>(std::ceil(shares.at(rung) * static_cast<double>(total_steps)));
}

std::optional<Sweep> read_sweep(const std::filesystem::path& folder) {
    const std::filesystem::path file = folder / sweep_file;
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(file, ignored)) return std::nullopt;
    try {
        const Json json = Json::parse(read_file(file));
        Sweep sweep;
        sweep.finds_rate = json.at("kind") == "find_lr";
        sweep.metric = json.at("metric"), sweep.more_is_better = json.at("greater_is_better");
        sweep.shares = json.at("shares").get<std::vector<double>>();
        sweep.total_steps = json.at("total_steps");
        for (const Json& trial : json.at("trials")) sweep.trials.push_back(trial_of(trial));
        if (json.at("best").is_object()) sweep.best = json["best"].at("trial").get<int>();
        if (sweep.best && (*sweep.best < 1 || static_cast<std::size_t>(*sweep.best) > sweep.trials.size()))
            throw Error("json.wrong-value", cat(file.string(), ": there is no trial ", *sweep.best));
        sweep.finished = json.at("finished");
        sweep.command = json.at("command"), sweep.reason = json.at("reason");
        sweep.options = json.at("options").dump();
        return sweep;
    } catch (const Json::exception& failure) {
        throw Error("json.wrong-value", cat(file.string(), " is no record of a sweep: ", failure.what()),
                    "Remove the file, or choose another folder.");
    }
}

std::string sweep_json(const Sweep& sweep) {
    Json steps = Json::array(), trials = Json::array(), best;
    for (std::size_t rung = 0; rung < sweep.shares.size() && sweep.total_steps > 0; ++rung)
        steps.push_back(sweep.step_of(rung));
    for (const SweepTrial& trial : sweep.trials) trials.push_back(json_of(trial, fate_of(sweep, trial)));
    if (const SweepTrial* winner = sweep.winner()) best = trials.at(static_cast<std::size_t>(winner->number) - 1);
    return Json{{"kind", sweep.finds_rate ? "find_lr" : "halving"},
                {"finished", sweep.finished},
                {"best", best},
                {"reason", sweep.reason},
                {"command", sweep.command},
                {"metric", sweep.metric},
                {"greater_is_better", sweep.more_is_better},
                {"shares", sweep.shares},
                {"steps", steps},
                {"total_steps", sweep.total_steps},
                {"seconds", sweep.seconds()},
                {"trials", trials},
                {"options", Json::parse(sweep.options)}}
               .dump(2) +
           "\n";
}

std::filesystem::path trial_folder(const std::filesystem::path& folder, int number) {
    const std::filesystem::path own = folder / trials_folder / cat(number < 10 ? "0" : "", number);
    std::error_code ignored;
    if (std::filesystem::is_directory(own, ignored)) return own;
    const std::optional<Sweep> sweep = read_sweep(folder);
    return sweep && sweep->best == number && !sweep->finds_rate ? folder : own;
}

std::string sweep_table(const Sweep& sweep) {
    const std::vector<Row> rows = rows_of(sweep);
    std::vector<std::size_t> widths(rows.front().size());
    for (const Row& row : rows)
        for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    std::string text = cat(sweep.metric, "\n");
    for (const Row& row : rows) {
        std::string line;
        for (std::size_t i = 0; i < row.size(); ++i)
            line +=
                i + 1 == row.size() ? "  " + row[i] : cat("  ", std::string(widths[i] - row[i].size(), ' '), row[i]);
        text += printable(line.substr(0, line.find_last_not_of(' ') + 1)) + "\n";
    }
    return text;
}

std::string sweep_table_html(const Sweep& sweep) {
    const std::vector<Row> rows = rows_of(sweep);
    std::string text = "<table>\n";
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const bool best = i > 0 && sweep.best == static_cast<int>(i);
        text += "<tr>";
        for (const std::string& cell : rows[i])
            text += cat(i == 0 ? "<th>" : "<td>", best ? "<b>" : "", escaped(cell), best ? "</b>" : "",
                        i == 0 ? "</th>" : "</td>");
        text += "</tr>\n";
    }
    return text + "</table>\n";
}

}  // namespace unsloth::report
