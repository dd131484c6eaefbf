// `probe grpo`: lines of log-probabilities or rewards in, what a run makes of them out. It calls the functions that a
// run calls.
#include <iostream>
#include <limits>

#include "app/commands.h"
#include "unsloth/config/option_table.h"
#include "unsloth/config/parse.h"
#include "unsloth/config/policy_rule.h"
#include "unsloth/config/validate.h"
#include "unsloth/core/error.h"
#include "unsloth/core/json.h"
#include "unsloth/core/json_reader.h"
#include "unsloth/core/text_lines.h"
#include "unsloth/reward/advantages.h"

namespace unsloth::app {
namespace {

using ProbeReader = JsonReader<Json>;

/// Section grpo as a run reads it, from the member `settings`. Options of another loss type have no effect here: a run
/// refuses them.
config::GrpoOptions grpo_options(const ProbeReader& line) {
    const ProbeReader settings = line.at("settings");
    settings.require(settings.value().is_object(), "an object");
    LoadedConfig loaded;
    OptionSet options;
    config::declare_options(options, loaded.config);
    ParseRecord record;
    config::read_config_tree({{"training", {{"objective", "grpo"}}}, {"grpo", settings.value()}}, line.where(), options,
                             record);
    config::check_grpo(loaded.config, record.errors);
    record.errors.raise();
    return loaded.config.grpo;
}

/// A micro-batch: rows of the same number of columns. A row's tokens are the columns where its mask is 1.
class MicroBatch {
  public:
    MicroBatch(const ProbeReader& inputs, const config::GrpoOptions& options) {
        inputs.only_keys({"mask", "logps", "old_logps", "ref_logps", "sampler_logps", "entropies", "advantages"});
        using spec::SamplerCorrection;
        const bool has_sampler = options.sampler_correction != SamplerCorrection::none || inputs.has("sampler_logps");
        const ProbeReader mask = inputs.at("mask"), advantages = inputs.at("advantages");
        mask.require(mask.size() > 0, "a row at least");
        advantages.require(advantages.size() == mask.size(), "an advantage for each row of mask");
        read_places(mask);
        const Values logps = values(inputs.at("logps")), entropies = values(inputs.at("entropies")),
                     old = inputs.has("old_logps") ? values(inputs["old_logps"]) : logps,
                     reference = config::policy_rule(options).beta > 0 ? values(inputs.at("ref_logps")) : logps,
                     sampler = has_sampler ? values(inputs.at("sampler_logps"), /*may_lack=*/true) : old;
        for (std::size_t i = 0; i < places_.size(); ++i) {
            spec::PolicyCompletion& row = rows.emplace_back();
            row.advantage = advantages.at(i).number();
            row.entropies = entropies[i];
            for (std::size_t t = 0; t < places_[i].size(); ++t)
                row.tokens.push_back({logps[i][t], old[i][t], reference[i][t], sampler[i][t]});
            tokens += static_cast<double>(row.tokens.size());
        }
    }

    /// [rows][columns], `otherwise` where the mask is 0.
    Json spread(const std::vector<std::vector<double>>& of_tokens, double otherwise) const {
        Json all = Json::array();
        for (std::size_t i = 0; i < of_tokens.size(); ++i) {
            std::vector<double> row(columns_[i], otherwise);
            for (std::size_t t = 0; t < of_tokens[i].size(); ++t) row[places_[i][t]] = of_tokens[i][t];
            all.push_back(std::move(row));
        }
        return all;
    }

    std::vector<spec::PolicyCompletion> rows;
    double tokens = 0;

  private:
    using Values = std::vector<std::vector<double>>;  ///< [rows][tokens]

    void read_places(const ProbeReader& mask) {
        for (const ProbeReader& row : mask.elements()) {
            auto& places = places_.emplace_back();
            columns_.push_back(row.size());
            for (std::size_t t = 0; t < row.size(); ++t) {
                const int64_t counts = row.at(t).integer();
                row.at(t).require(counts == 0 || counts == 1, "0 or 1");
                if (counts == 1) places.push_back(t);
            }
        }
    }

    /// Whatever is where the mask is 0 is not looked at. `may_lack`: null is NaN.
    Values values(const ProbeReader& of, bool may_lack = false) const {
        of.require(of.size() == places_.size(), "as many rows as mask has");
        Values all;
        for (std::size_t i = 0; i < places_.size(); ++i) {
            const ProbeReader row = of.at(i);
            row.require(row.size() == columns_[i], "as many values as mask has");
            auto& found = all.emplace_back();
            for (const std::size_t place : places_[i])
                found.push_back(may_lack && row.at(place).null() ? std::numeric_limits<double>::quiet_NaN()
                                                                 : row.at(place).number());
        }
        return all;
    }

    std::vector<std::vector<std::size_t>> places_;  ///< of each row's tokens
    std::vector<std::size_t> columns_;
};

/// null where undefined.
Json json_of(const reward::Metrics& metrics) {
    Json all = Json::object();
    for (const auto& [name, value] : metrics) all[name] = value ? Json(*value) : Json();
    return all;
}

double count_of(const ProbeReader& value) {
    value.require(value.integer() >= 1, "an integer from 1");
    return static_cast<double>(value.integer());
}

Json probe_loss(const ProbeReader& line) {
    line.only_keys({"kind", "name", "settings", "gradient_accumulation_steps", "steps_per_generation",
                    "num_items_in_batch", "inputs", "expected"});
    const config::GrpoOptions grpo = grpo_options(line);
    MicroBatch batch(line.at("inputs"), grpo);
    spec::PolicyBatchOptions options = config::policy_batch_options(
        grpo, count_of(line.at("gradient_accumulation_steps")), count_of(line.at("steps_per_generation")));
    options.divisors.rows = static_cast<double>(batch.rows.size());
    options.divisors.tokens = batch.tokens;
    options.divisors.generation_tokens = line.at("num_items_in_batch").number();
    const spec::PolicyBatchLoss result = spec::policy_batch_loss(options, batch.rows);
    Json out = {{"loss", result.loss}, {"d_logps", batch.spread(result.by_logps, 0)}};
    if (!result.by_entropies.empty()) out["d_entropies"] = batch.spread(result.by_entropies, 0);
    if (spec::corrects_tokens(grpo.sampler_correction)) out["sampler_ratio"] = batch.spread(result.corrections, 1);
    if (spec::corrects_rows(grpo.sampler_correction)) out["sampler_ratio"] = result.corrections;
    out["metrics"] = json_of(result.metrics);
    return out;
}

/// Beta Σ (old - reference) of each row.
std::vector<double> kl_penalties(const ProbeReader& line, double beta, std::size_t rows) {
    const ProbeReader old = line.at("old_logps"), reference = line.at("ref_logps");
    std::vector<double> penalties;
    for (const ProbeReader& all : {old, reference}) all.require(all.size() == rows, "a row for each completion");
    for (std::size_t i = 0; i < rows; ++i) {
        const ProbeReader of_old = old.at(i), of_reference = reference.at(i);
        of_reference.require(of_reference.size() == of_old.size(), "as many values as old_logps has");
        double sum = 0;
        for (std::size_t t = 0; t < of_old.size(); ++t) sum += of_old.at(t).number() - of_reference.at(t).number();
        penalties.push_back(beta * sum);
    }
    return penalties;
}

Json probe_advantages(const ProbeReader& line) {
    line.only_keys({"kind", "name", "settings", "rewards", "old_logps", "ref_logps", "expected"});
    // One completion a prompt is an evaluation's; num_generations of a run is 2 at least.
    Json training = line.value();
    const bool evaluates = line["settings"].has("num_generations") && training["settings"]["num_generations"] == 1;
    if (evaluates) training["settings"].erase("num_generations");
    const config::GrpoOptions grpo = grpo_options(ProbeReader(training, line.where()));

    std::vector<std::string> names;
    std::vector<reward::Scores> scores;
    const ProbeReader rewards = line.at("rewards");
    rewards.require(rewards.value().is_object() && !rewards.value().empty(), "an object of one reward at least");
    for (const auto& [name, ignored] : rewards.value().items()) {
        const ProbeReader values = rewards.at(name);
        reward::Scores& one = scores.emplace_back();
        for (const ProbeReader& value : values.elements())
            one.push_back(value.null() ? std::nullopt : std::optional(value.number()));
        values.require(one.size() == scores.front().size() && !one.empty(), "as many values as the first reward has");
        names.push_back(name);
    }
    reward::AdvantageRule rule = reward::advantage_rule(grpo, reward::given_weights(grpo, names));
    if (evaluates) rule.num_generations = 1;
    std::vector<double> penalties;
    if (grpo.kl_in_reward) penalties = kl_penalties(line, grpo.beta, scores.front().size());
    const reward::Advantages result = reward::advantages(rule, names, scores, penalties);
    return {{"advantages", result.advantages}, {"metrics", json_of(result.metrics)}};
}

Json probe_line(const std::string& text, const std::string& where) {
    const Json document = parse_json<Json>(text, where);
    const ProbeReader line(document, where);
    line.require(document.is_object() && line.has("inputs") != line.has("rewards"),
                 "an object with inputs (a loss) or rewards (advantages)");
    return line.has("inputs") ? probe_loss(line) : probe_advantages(line);
}

}  // namespace

void run_probe_grpo(const CommandLine&) {
    std::ios::sync_with_stdio(false);
    for_each_line(std::cin, [](const std::string& line, const std::string& where) {
        std::cout << probe_line(line, where).dump() << '\n';
    });
}

}  // namespace unsloth::app
