#include "unsloth/formats/run_state.h"

#include "formats/json.h"
#include "unsloth/core/files.h"

namespace unsloth::formats {
namespace {

constexpr const char* file_name = "run_state.json";
constexpr int64_t version = 2;  // 1: `data` did not cover labels and positions

double required_number(const ObjectReader& json, const std::string& key) {
    if (const auto value = json.number(key)) return *value;
    json.fail(key, "a finite number");
}

std::string required_text(const ObjectReader& json, const std::string& key) {
    if (const auto value = json.text(key)) return *value;
    json.fail(key, "a string");
}

int64_t at_least(const ObjectReader& json, const std::string& key, int64_t least) {
    const int64_t value = json.required_integer(key);
    if (value < least) json.fail(key, cat("an integer from ", least));
    return value;
}

}  // namespace

void write_run_state(const std::filesystem::path& folder, const RunState& state) {
    OrderedJson json{{"version", version},
                     {"step", state.step},
                     {"updates", state.updates},
                     {"loss_scale", state.loss_scale},
                     {"good_steps", state.good_steps},
                     {"epoch", state.epoch},
                     {"seen_tokens", state.seen_tokens},
                     {"best_eval", nullptr},
                     {"best_step", state.best_step},
                     {"unlogged_loss", state.unlogged_loss},
                     {"unlogged_steps", state.unlogged_steps},
                     {"plateau", nullptr},
                     {"evaluation_due", state.evaluation_due},
                     {"per_device_train_batch_size", state.per_device_train_batch_size},
                     {"gradient_accumulation_steps", state.gradient_accumulation_steps},
                     {"world_size", state.world_size},
                     {"cpu_threads", state.cpu_threads},
                     {"data", state.data},
                     {"parameters", state.parameters}};
    if (state.best_eval) json["best_eval"] = *state.best_eval;
    if (const auto& p = state.plateau)
        json["plateau"] = {{"learning_rate", p->learning_rate},
                           {"best", p->best},
                           {"has_best", p->has_best},
                           {"bad_evaluations", p->bad_evaluations},
                           {"cooldown_left", p->cooldown_left}};
    write_file_atomically(folder / file_name, json.dump(2) + "\n");
}

RunState read_run_state(const std::filesystem::path& folder) {
    const std::string source = (folder / file_name).string();
    const auto parsed = parse_json<OrderedJson>(read_file(source), source);
    const ObjectReader json(parsed, source);
    if (json.required_integer("version") > version)
        throw input_error(
            cat(source, ": format ", json.required_integer("version"), ", this program knows formats up to ", version),
            "Update unsloth-train.");
    if (json.required_integer("version") < version)
        throw input_error(
            cat(source, ": format ", json.required_integer("version"),
                " does not say which labels were trained, so that going on cannot be checked"),
            "Start a new run from its weights: model.adapter_name_or_path, or of full training model.path.");
    RunState state;
    state.step = at_least(json, "step", 0);
    state.updates = at_least(json, "updates", 0);
    state.loss_scale = required_number(json, "loss_scale");
    state.good_steps = at_least(json, "good_steps", 0);
    state.epoch = required_number(json, "epoch");
    state.seen_tokens = at_least(json, "seen_tokens", 0);
    state.best_eval = json.number("best_eval");
    state.best_step = at_least(json, "best_step", 0);
    if (const auto sum = json.number("unlogged_loss")) {  // older checkpoints have none
        state.unlogged_loss = *sum;
        state.unlogged_steps = at_least(json, "unlogged_steps", 0);
    }
    if (const auto plateau = json.object("plateau"))
        state.plateau = RunState::Plateau{required_number(*plateau, "learning_rate"), required_number(*plateau, "best"),
                                          plateau->boolean("has_best", false), at_least(*plateau, "bad_evaluations", 0),
                                          at_least(*plateau, "cooldown_left", 0)};
    state.evaluation_due = json.boolean("evaluation_due", false);
    state.per_device_train_batch_size = at_least(json, "per_device_train_batch_size", 1);
    state.gradient_accumulation_steps = at_least(json, "gradient_accumulation_steps", 1);
    state.world_size = at_least(json, "world_size", 1);
    state.cpu_threads = json.integer("cpu_threads").value_or(0);
    state.data = required_text(json, "data");
    state.parameters = required_text(json, "parameters");
    return state;
}

}  // namespace unsloth::formats
