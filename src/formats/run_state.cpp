#include "unsloth/formats/run_state.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/json.h"
#include "unsloth/core/files.h"

namespace unsloth::formats {
namespace {

constexpr const char* file_name = "run_state.json";
constexpr int64_t version = 2;  // 1: `data` did not cover labels and positions

int64_t at_least(const JsonReader& json, std::string_view key, int64_t least) {
    const int64_t value = json[key].integer();
    if (value < least) json[key].refuse(cat("an integer from ", least));
    return value;
}

/// Triples of step, loss and gradient norm; older checkpoints have none.
std::vector<StepMeasure> measures_of(const JsonReader& list) {
    std::vector<StepMeasure> measures;
    if (list.null()) return measures;
    for (const JsonReader& one : list.elements()) {
        one.require(one.size() == 3, "a step, its loss and its gradient norm");
        measures.push_back(
            {one.at(std::size_t{0}).integer(), one.at(std::size_t{1}).number(), one.at(std::size_t{2}).number()});
    }
    return measures;
}

}  // namespace

void LossMean::add(double loss) {
    if (!std::isfinite(loss)) return;
    sum += loss;
    ++steps;
}

std::optional<double> LossMean::mean() const {
    if (steps == 0) return std::nullopt;
    return sum / static_cast<double>(steps);
}

double BestEvaluation::observe(int64_t at_step, double value_there, bool more_is_better) {
    if (!std::isfinite(value_there)) return 0;
    const double gain = !value           ? std::numeric_limits<double>::infinity()
                        : more_is_better ? value_there - *value
                                         : *value - value_there;
    if (!(gain > 0)) return 0;
    value = value_there;
    step = at_step;
    return gain;
}

void write_run_state(const std::filesystem::path& folder, const RunState& state) {
    const RunProgress& p = state.progress;
    OrderedJson json{{"version", version},
                     {"step", p.step},
                     {"updates", p.optimizer.updates},
                     {"loss_scale", p.optimizer.loss_scale},
                     {"good_steps", p.optimizer.good_steps},
                     {"recent_steps", OrderedJson::array()},
                     {"epoch", p.epoch},
                     {"seen_tokens", p.seen_tokens},
                     {"best_eval", nullptr},
                     {"best_step", p.best.step},
                     {"worse_evaluations", p.worse_evaluations},
                     {"unlogged_loss", p.unlogged.sum},
                     {"unlogged_steps", p.unlogged.steps},
                     {"plateau", nullptr},
                     {"evaluation_due", p.evaluation_due},
                     {"per_device_train_batch_size", state.per_device_train_batch_size},
                     {"gradient_accumulation_steps", state.gradient_accumulation_steps},
                     {"world_size", state.world_size},
                     {"cpu_threads", state.cpu_threads},
                     {"data", state.data},
                     {"parameters", state.parameters}};
    for (const StepMeasure& m : p.optimizer.recent)
        json["recent_steps"].push_back(OrderedJson::array({m.step, m.loss, m.grad_norm}));
    if (p.best.value) json["best_eval"] = *p.best.value;
    if (const auto& plateau = p.plateau)
        json["plateau"] = {{"learning_rate", plateau->learning_rate},
                           {"best", plateau->best},
                           {"has_best", plateau->has_best},
                           {"bad_evaluations", plateau->bad_evaluations},
                           {"cooldown_left", plateau->cooldown_left}};
    write_file_atomically(folder / file_name, json.dump(2) + "\n");
}

RunState read_run_state(const std::filesystem::path& folder) {
    const std::string source = (folder / file_name).string();
    const auto parsed = parse_json<OrderedJson>(read_file(source), source);
    const JsonReader json(parsed, source);
    if (json["version"].integer() > version)
        throw Error("checkpoint.other-version",
                    cat(source, ": format ", json["version"].integer(), ", this program knows formats up to ", version),
                    "Update unsloth-train.");
    if (json["version"].integer() < version)
        throw Error("checkpoint.other-version",
                    cat(source, ": format ", json["version"].integer(),
                        " does not say which labels were trained, so that resuming cannot be checked"),
                    "Start a new run from its weights: model.adapter_name_or_path, or of full training model.path.");
    RunState state;
    RunProgress& p = state.progress;
    p.step = at_least(json, "step", 0);
    p.optimizer = {at_least(json, "updates", 0), json["loss_scale"].number(), at_least(json, "good_steps", 0),
                   measures_of(json["recent_steps"])};
    p.epoch = json["epoch"].number();
    p.seen_tokens = at_least(json, "seen_tokens", 0);
    p.best = {json.number("best_eval"), at_least(json, "best_step", 0)};
    p.worse_evaluations = std::max<int64_t>(json.integer("worse_evaluations").value_or(0), 0);
    if (const auto sum = json.number("unlogged_loss"))  // older checkpoints have none
        p.unlogged = {*sum, at_least(json, "unlogged_steps", 0)};
    if (const auto plateau = json.object("plateau"))
        p.plateau = PlateauProgress{(*plateau)["learning_rate"].number(), (*plateau)["best"].number(),
                                    plateau->boolean("has_best").value_or(false),
                                    at_least(*plateau, "bad_evaluations", 0), at_least(*plateau, "cooldown_left", 0)};
    p.evaluation_due = json.boolean("evaluation_due").value_or(false);
    state.per_device_train_batch_size = at_least(json, "per_device_train_batch_size", 1);
    state.gradient_accumulation_steps = at_least(json, "gradient_accumulation_steps", 1);
    state.world_size = at_least(json, "world_size", 1);
    state.cpu_threads = json.integer("cpu_threads").value_or(0);
    state.data = json["data"].string();
    state.parameters = json["parameters"].string();
    return state;
}

}  // namespace unsloth::formats
